"""The packed tokens of a step and where everything lies in them. Knows nothing of polytask's other files.

Shape letters: T tokens of a stream, S its sequences, D the hidden size, K the tasks of a model, B padded rows, L their
width. A field or variable that ends in such letters is a tensor of that shape.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

MANY = 4
"""In a steady stream of this many tasks or more, all have as many tokens."""
Pooling = Literal["first", "pooler", "mean"]


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length laid out as padded rows: what attention without a varlen kernel works on."""

    token_index: Tensor
    """Which tokens of the stream are in the bucket."""
    slot_index: Tensor
    """Where each of them goes in the flattened [rows * width] padded block."""
    rows: int
    width: int
    mask_B11L: Tensor | None
    """True where there is a token; None when nothing is padded."""


@dataclass(frozen=True)
class Groups:
    """The tasks that are in a stream, for products that treat all of them at once. Filler counts as the last one's."""

    tasks: tuple[int, ...]
    ends_G: Tensor
    """Where each task's tokens end (int32)."""
    ids_T: Tensor
    """Each token's place in `tasks`."""


@dataclass(frozen=True)
class Layout:
    """Where the sequences and the tasks lie in a stream. Filler sequences come last and belong to no task, unless it is
    a steady stream."""

    cu_seqlens_S1: Tensor
    lengths: tuple[int, ...]
    sequence_ranges: tuple[tuple[int, int], ...]
    """For each task of the model, the first sequence and the one after the last."""
    token_ranges: tuple[tuple[int, int], ...]
    """For each task of the model, the first token and the one after the last."""
    at_most: int | None = None
    """In a steady stream, no sequence is longer than this. Its ranges depend on the number of tokens by size class
    only, and hold filler of the task's own behind its sequences (`Packer.pack`); some filler has no tokens."""
    made: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What a part of the model makes once in a pass of the encoder and uses in several layers; gone when it ends."""

    @property
    def max_length(self) -> int:
        return max(self.lengths) if self.at_most is None else self.at_most

    @property
    def steady(self) -> bool:
        return self.at_most is not None

    @property
    def alone(self) -> int | None:
        """The task that a steady stream is all of, filler included."""
        tasks = [k for k, (first, last) in enumerate(self.sequence_ranges) if first < last]
        return tasks[0] if self.steady and len(tasks) == 1 else None

    @property
    def evenly(self) -> tuple[int, ...] | None:
        """The tasks of a steady stream in which all have as many tokens."""
        tasks = tuple(k for k, (first, last) in enumerate(self.sequence_ranges) if first < last)
        return tasks if self.steady and len(tasks) >= MANY else None

    @property
    def real_tokens(self) -> int:
        """Without filler."""
        return sum(sum(self.lengths[first:last]) for first, last in self.sequence_ranges)

    def to(self, device: torch.device) -> "Layout":
        return replace(self, cu_seqlens_S1=self.cu_seqlens_S1.to(device, non_blocking=True))

    def for_capture(self) -> "CapturedLayout":
        """The same, with lengths that cannot be read."""
        return CapturedLayout(self.cu_seqlens_S1, (), self.sequence_ranges, self.token_ranges, self.at_most)

    @cached_property
    def groups(self) -> Groups:
        tasks = tuple(k for k, (first, last) in enumerate(self.token_ranges) if first < last)
        tokens = sum(self.lengths)
        ends = [self.token_ranges[k][1] for k in tasks[:-1]] + [tokens]
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        ids_T = torch.arange(len(tasks)).repeat_interleave(torch.tensor(sizes))
        device = self.cu_seqlens_S1.device
        ends_G = torch.tensor(ends, dtype=torch.int32)
        return Groups(tasks, ends_G.to(device, non_blocking=True), ids_T.to(device, non_blocking=True))

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """Sequences sorted by length and cut where padding them together would waste more than a quarter of a row."""
        device = self.cu_seqlens_S1.device
        starts = [0]
        for length in self.lengths:
            starts.append(starts[-1] + length)
        order = sorted((s for s, length in enumerate(self.lengths) if length), key=lambda s: -self.lengths[s])
        groups: list[list[int]] = []
        for s in order:
            if not groups or self.lengths[s] * 4 < self.lengths[groups[-1][0]] * 3:
                groups.append([])
            groups[-1].append(s)
        return tuple(_bucket(group, starts, self.lengths, device) for group in groups)


class CapturedLayout(Layout):
    """The layout of a step that is captured in a CUDA graph.

    The graph is replayed for streams with other lengths, so what is computed from the lengths of the first one would be
    wrong for the others. Reading them is an error, and so is everything that is made of them: `real_tokens`, `groups`
    and `buckets`.
    """

    @property
    def lengths(self) -> tuple[int, ...]:
        raise RuntimeError(
            "layout.lengths is not known in a captured step, which is replayed for streams of other lengths; "
            "use layout.cu_seqlens_S1 on the device, layout.max_length and layout.token_ranges, or train.capture: false"
        )

    @lengths.setter
    def lengths(self, given: tuple[int, ...]) -> None:
        """Those of the first stream are forgotten."""


def _bucket(group: list[int], starts: list[int], lengths: tuple[int, ...], device: torch.device) -> Bucket:
    width = lengths[group[0]]
    columns = torch.arange(width)
    lengths_B1 = torch.tensor([[lengths[s]] for s in group])
    mask_BL = columns < lengths_B1
    tokens_BL = torch.tensor([[starts[s]] for s in group]) + columns
    slots_BL = torch.arange(len(group) * width).view(len(group), width)
    padded = not bool(mask_BL.all())
    return Bucket(
        token_index=tokens_BL[mask_BL].to(device),
        slot_index=slots_BL[mask_BL].to(device),
        rows=len(group),
        width=width,
        mask_B11L=mask_BL[:, None, None, :].to(device) if padded else None,
    )


@dataclass(frozen=True)
class Stream:
    """The packed tokens of a step: sequences one after another, ordered by task, with no padding between them."""

    token_ids_T: Tensor
    position_ids_T: Tensor
    segment_ids_T: Tensor
    layout: Layout
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    """For each task in the stream, the labels of its examples, in order; of masked text, those of its tokens."""
    taught: Mapping[str, Tensor] = field(default_factory=dict)
    """For each task with a teacher, the teacher's outputs for its examples."""

    def to(self, device: torch.device) -> "Stream":
        return Stream(
            self.token_ids_T.to(device, non_blocking=True),
            self.position_ids_T.to(device, non_blocking=True),
            self.segment_ids_T.to(device, non_blocking=True),
            self.layout.to(device),
            {task: labels.to(device, non_blocking=True) for task, labels in self.labels.items()},
            {task: outputs.to(device, non_blocking=True) for task, outputs in self.taught.items()},
        )


@dataclass(frozen=True)
class Encoded:
    """One task's part of the encoder's output, which is what a head sees."""

    hidden_TD: Tensor
    """The whole stream's hidden states; `tokens` and `sequences` say which are this task's."""
    layout: Layout
    task_index: int
    pooler: Callable[[Tensor], Tensor]
    """The encoder's pooler: first-token states to tanh(W h + b)."""
    words_VD: Tensor | None = None
    """The encoder's word vectors."""
    labels: Tensor | None = None
    """The stream's labels of this task."""

    @property
    def tokens(self) -> slice:
        return slice(*self.layout.token_ranges[self.task_index])

    def pool(self, pooling: Pooling) -> Tensor:
        """One vector for each of the task's sequences: first token, pooler output, or mean over its tokens."""
        first, last = self.layout.sequence_ranges[self.task_index]
        if pooling == "mean":
            offsets = self.layout.cu_seqlens_S1[first : last + 1].long() - self.tokens.start
            own_TD = self.hidden_TD[self.tokens].float()
            mean_SD = torch.segment_reduce(own_TD, "mean", offsets=offsets, axis=0, unsafe=True)
            return mean_SD.to(self.hidden_TD.dtype)
        states_SD = self.hidden_TD.index_select(0, self.layout.cu_seqlens_S1[first:last])
        return self.pooler(states_SD) if pooling == "pooler" else states_SD
