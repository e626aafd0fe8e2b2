"""Device tensors at fixed addresses, which captured steps read their streams from. Knows streams, no method."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from polytask.stream import Stream

ALIGNMENT = 64
"""In bytes."""


def shape_of(stream: Stream) -> tuple[Any, ...]:
    """Return a key that is equal for two streams of static shape if their steps run the same kernels."""
    layout = stream.layout
    shapes = tuple((tuple(t.shape), t.dtype) for t in tensors_of(stream))
    named = tuple(stream.labels), tuple(stream.teacher_outputs), tuple(stream.words)
    return shapes, named, layout.sequence_ranges, layout.token_ranges, layout.length_bound, layout.options


def tensors_of(stream: Stream) -> list[Tensor]:
    assert not stream.windows, "steps with windows are not captured"
    own = [stream.token_ids_T, stream.position_ids_T, stream.segment_ids_T, stream.layout.cu_seqlens_S1]
    tags = [] if stream.tag_ids_T is None else [stream.tag_ids_T]
    return [*own, *tags, *stream.labels.values(), *stream.teacher_outputs.values(), *stream.words.values()]


def as_stream(tensors: list[Tensor], like: Stream) -> Stream:
    """Return tensors in the order of `tensors_of` as a stream like the given one."""
    tokens, positions, segments, cu, *rest = tensors
    tags = None if like.tag_ids_T is None else rest.pop(0)
    values = iter(rest)
    labels, teacher_outputs, words = (
        dict(zip(names, values, strict=False)) for names in (like.labels, like.teacher_outputs, like.words)
    )
    layout = replace(like.layout, cu_seqlens_S1=cu)
    return Stream(tokens, positions, segments, layout, labels, teacher_outputs, tags, words, share=like.share)


class StaticTensors:
    """Tensors at fixed addresses on the device, which get new values by one copy."""

    def __init__(self, like: list[Tensor], device: torch.device) -> None:
        sizes = [-(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT for t in like]
        starts = [sum(sizes[:k]) for k in range(len(sizes))]
        # Two host buffers, used in turn: one may still be in transfer when the next is written.
        on_gpu = device.type == "cuda"
        hosts = [torch.zeros(sum(sizes), dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
        self._bytes = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        self._hosts = [(host, _views(host, starts, like), torch.cuda.Event() if on_gpu else None) for host in hosts]
        self.tensors = _views(self._bytes, starts, like)

    def fill(self, tensors: list[Tensor]) -> None:
        if not tensors:
            return
        self._hosts.reverse()
        host, views, sent = self._hosts[0]
        if sent is not None:
            sent.synchronize()  # a step of several passes may fill the same tensors more than twice
        if tensors:
            torch._foreach_copy_(views, tensors)  # one call costs less than one for each
        self._bytes.copy_(host, non_blocking=True)
        if sent is not None:
            sent.record()


def _views(flat: Tensor, starts: list[int], like: list[Tensor]) -> list[Tensor]:
    return [
        flat[start : start + t.numel() * t.element_size()].view(t.dtype).view(t.shape)
        for start, t in zip(starts, like, strict=True)
    ]
