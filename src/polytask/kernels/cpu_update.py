"""Optimizers on the CPU update as much at once as the cache holds.

An update is several operations on the same tensors. On a GPU each of them should have all parameters, which saves
kernel launches. On a CPU the time is that of memory: here all operations run on one chunk before the next.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from polytask.fused_forms import definition_of, fuses
from polytask.optim.base import ListOptimizer, TensorLists

CHUNK = 2**18
"""Elements per thread that are updated at once, so that they stay in the cache between operations."""


@fuses(ListOptimizer.update_lists)
def update_in_chunks(optimizer: ListOptimizer, lists: TensorLists, options: Mapping[str, Any]) -> None:
    """Bit-identical to one update of all parameters."""
    if all(parameter.is_cuda for parameter in lists.params):
        definition_of(ListOptimizer.update_lists)(optimizer, lists, options)
        return
    for chunk in _chunks(lists, CHUNK * torch.get_num_threads(), optimizer.elementwise):
        optimizer.update(chunk, options)


def _chunks(lists: TensorLists, size: int, elementwise: bool) -> Iterator[TensorLists]:
    """Small parameters together, up to `size` elements; large ones alone, and in pieces if that is allowed."""
    start = count = 0
    for end, parameter in enumerate(lists.params):
        if count and count + parameter.numel() > size:
            yield from _pieces(_part(lists, start, end), size, elementwise)
            start, count = end, 0
        count += parameter.numel()
    yield from _pieces(_part(lists, start, len(lists.params)), size, elementwise)


def _part(lists: TensorLists, start: int, end: int) -> TensorLists:
    state = {name: tensors[start:end] for name, tensors in lists.state.items()}
    return TensorLists(lists.params[start:end], lists.grads[start:end], state, lists.steps[start:end])


def _pieces(part: TensorLists, size: int, elementwise: bool) -> Iterator[TensorLists]:
    tensors = [part.params[0], part.grads[0], *(tensors[0] for tensors in part.state.values())]
    if tensors[0].numel() <= size or not elementwise or not all(tensor.is_contiguous() for tensor in tensors):
        yield part
        return
    parameter: Tensor
    for parameter, grad, *state in zip(*(tensor.view(-1).split(size) for tensor in tensors), strict=True):
        named = {name: [tensor] for name, tensor in zip(part.state, state, strict=True)}
        yield TensorLists([parameter], [grad], named, part.steps)
