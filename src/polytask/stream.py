"""The packed tokens of a step, and the layout that says which tokens belong to which sequence and task.

Shape letters: T tokens of a stream, S sequences, D hidden size, K tasks of a model, B padded rows, L width of a row.
A field or variable that ends in such letters is a tensor of that shape.
"""

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from polytask.settings import WindowPool
from polytask.step_share import StepShare
from polytask.types import UserError

MANY_TASKS = 4
"""In a stream of static shape with this many tasks or more, every task has the same number of tokens."""
LENGTH_OF_MISSING = 2
"""The tokens of the sequence that fills the place of a missing option: [CLS] and [SEP]. A pair has at least three."""
Pooling = Literal["first", "pooler", "mean"]
Reading = Literal["joined", "separate", "both", "options"]
"""The sequences of several texts: one with all texts, one for each text, or all of these in this order. A single text
is always one sequence. options: the first text with each of the others, one sequence for each option."""
Ranges = tuple[tuple[int, int], ...]
"""For each task its first element and the one after its last."""


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length as padded rows, for attention without a varlen kernel."""

    token_index: Tensor | None
    """Which tokens of the stream are in the bucket; None: all of them, and the stream is the block already."""
    slot_index: Tensor | None
    """The place of each of them in the flattened block of rows * width."""
    rows: int
    width: int
    mask_B11L: Tensor | None
    """True for tokens, False for padding; None if there is no padding."""


@dataclass(frozen=True)
class Groups:
    """The tasks of a stream, for operations that process all of them at once. Filler counts as the last task's."""

    tasks: tuple[int, ...]
    ends_G: Tensor
    """The end of each task's tokens (int32)."""
    ids_T: Tensor
    """The index into `tasks` of each token."""


@dataclass(frozen=True)
class Layout:
    """The sequences of a stream and the tasks that they belong to.

    Filler sequences come last and belong to no task. A stream of static shape has filler behind each task's sequences
    instead, and its ranges depend only on the size class of each task's number of tokens (`Packer.pack`).
    """

    cu_seqlens_S1: Tensor
    lengths: tuple[int, ...]
    sequence_ranges: tuple[tuple[int, int], ...]
    """For each task of the model, its first sequence and the one after its last, without filler. Tasks that share rows
    may have the same sequences, if the encoder has no parameters of single tasks."""
    token_ranges: tuple[tuple[int, int], ...]
    """For each task of the model, its first token and the one after its last; with filler if the shape is static."""
    length_bound: int | None = None
    """Upper bound of the sequence lengths in a stream of static shape; None for other streams."""
    prefix: int = 0
    """How many positions at the start of each sequence are not of the text (`with_prefix`)."""
    options: tuple[int, ...] = ()
    """For each task of the model, how many options an example has, each of which is a sequence; 1 for tasks without
    options. Empty if no task has options."""

    @staticmethod
    def from_padding(mask_BL: Tensor, tasks: int | Sequence[int] = 0) -> "Layout":
        """The layout of a padded batch, whose `x_BLD.flatten(0, 1)` is then the stream: B * L tokens, without a copy.

        `mask_BL` is 1 for tokens and 0 for padding, which must be at the end or at the start of a row. `tasks` is the
        index of the task that all rows belong to, or that of each row, in ascending order. The padding of a row is a
        sequence of its own, of the row's task: tokens do not attend to it, and its states have no meaning.
        """
        is_token_BL = mask_BL.bool().cpu()
        if is_token_BL.dim() != 2 or not is_token_BL.numel():
            raise UserError(f"mask_BL: must be a matrix with a row for each text, found the shape {[*mask_BL.shape]}")
        rows, width = is_token_BL.shape
        tasks_B = [tasks] * rows if isinstance(tasks, int) else list(tasks)
        if len(tasks_B) != rows or sorted(tasks_B) != tasks_B or tasks_B[0] < 0:
            raise UserError(
                f"tasks: must be {rows} indices from 0 on in ascending order, one for each row, found {tasks_B}"
            )
        if (is_token_BL.diff(dim=1).sum(1) > 1).any():
            raise UserError("mask_BL: padding must be at the end or at the start of a row, found it between tokens")
        tokens_B = is_token_BL.sum(1)
        first_B = torch.where(is_token_BL[:, 0], tokens_B, width - tokens_B).tolist()
        parts = [[length for length in (first, width - first) if length] for first in first_B]
        lengths = tuple(length for part in parts for length in part)
        counts = [0, *itertools.accumulate(map(len, parts))]
        ends = [bisect.bisect_left(tasks_B, k) for k in range(max(tasks_B) + 2)]
        cu_seqlens_S1 = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=mask_BL.device)
        return Layout(
            cu_seqlens_S1,
            lengths,
            tuple((counts[first], counts[last]) for first, last in itertools.pairwise(ends)),
            tuple((width * first, width * last) for first, last in itertools.pairwise(ends)),
        )

    @property
    def max_length(self) -> int:
        return max(self.lengths) if self.length_bound is None else self.length_bound

    @property
    def static_shape(self) -> bool:
        """Whether many streams have exactly these ranges, so that a training step can be captured and replayed."""
        return self.length_bound is not None

    @property
    def tasks(self) -> tuple[int, ...]:
        """The tasks that have sequences in the stream."""
        return tuple(k for k, (first, last) in enumerate(self.sequence_ranges) if first < last)

    @property
    def only_task(self) -> int | None:
        """The task of a stream of static shape that has a single task; its filler belongs to that task too."""
        return self.tasks[0] if self.static_shape and len(self.tasks) == 1 else None

    @property
    def equal_tasks(self) -> tuple[int, ...] | None:
        """The tasks of a stream of static shape in which every task has the same number of tokens."""
        return self.tasks if self.static_shape and len(self.tasks) >= MANY_TASKS else None

    @property
    def real_tokens(self) -> int:
        """The number of tokens without filler."""
        return sum(sum(self.lengths[first:last]) for first, last in set(self.sequence_ranges))

    def num_examples(self, outputs: Iterable[Sized]) -> int:
        """The number of examples of the stream, given the outputs of its tasks; those that tasks share count once."""
        return sum({self.sequence_ranges[k]: len(own) for k, own in zip(self.tasks, outputs, strict=True)}.values())

    @property
    def is_real_T(self) -> Tensor:
        """Which tokens of a stream of static shape are not filler."""
        places_T = torch.arange(max(end for _, end in self.token_ranges), device=self.cu_seqlens_S1.device)
        ends = [(self.token_ranges[k][0], self.cu_seqlens_S1[self.sequence_ranges[k][1]]) for k in self.tasks]
        return torch.stack([(places_T >= start) & (places_T < end) for start, end in ends]).any(0)

    def to(self, device: torch.device) -> "Layout":
        return replace(self, cu_seqlens_S1=self.cu_seqlens_S1.to(device, non_blocking=True))

    def for_capture(self) -> "CapturedLayout":
        """The same layout, with lengths that cannot be read."""
        ranges = self.sequence_ranges, self.token_ranges
        return CapturedLayout(self.cu_seqlens_S1, (), *ranges, self.length_bound, options=self.options)

    def with_ranges(
        self, sequence_ranges: Ranges, token_ranges: Ranges, options: tuple[int, ...] | None = None
    ) -> "Layout":
        """The same sequences, assigned to other tasks. `options` replaces the numbers of options, if given."""
        options = self.options if options is None else options
        return replace(self, sequence_ranges=sequence_ranges, token_ranges=token_ranges, options=options)

    def with_prefix(self, length: int) -> "Layout":
        """The layout of the same sequences after `length` more positions are put before each of them."""
        sequences = len(self.cu_seqlens_S1) - 1
        added = length * torch.arange(sequences + 1, dtype=torch.int32, device=self.cu_seqlens_S1.device)
        token_ranges = list(self.token_ranges)
        behind = sequences
        for k in reversed(self.tasks):
            (first, last), (start, end) = self.sequence_ranges[k], self.token_ranges[k]
            token_ranges[k] = (start + length * first, end + length * (behind if self.static_shape else last))
            behind = first
        return replace(
            self,
            cu_seqlens_S1=self.cu_seqlens_S1 + added,
            lengths=self._lengths_with_prefix(length),
            token_ranges=tuple(token_ranges),
            length_bound=None if self.length_bound is None else self.length_bound + length,
            prefix=self.prefix + length,
        )

    def positions(self, tokens: int) -> Tensor:
        """[T]: the position of each of the stream's tokens in its sequence."""
        borders_S1 = self.cu_seqlens_S1
        places_T = torch.arange(tokens, dtype=borders_S1.dtype, device=borders_S1.device)
        return places_T - borders_S1[self.sequence_indices(tokens)]

    def sequence_indices(self, tokens: int) -> Tensor:
        """[T]: the index of the sequence that each of the stream's tokens is in."""
        borders_S1 = self.cu_seqlens_S1
        places_T = torch.arange(tokens, dtype=borders_S1.dtype, device=borders_S1.device)
        return torch.searchsorted(borders_S1[1:], places_T, right=True)

    def _lengths_with_prefix(self, length: int) -> tuple[int, ...]:
        return tuple(length + own for own in self.lengths)

    @cached_property
    def as_one_task(self) -> "Layout":
        """The same sequences as those of a single task, filler included."""
        sequences = len(self.cu_seqlens_S1) - 1
        tokens = max((end for _, end in self.token_ranges), default=0) if self.static_shape else sum(self.lengths)
        return self.with_ranges(((0, sequences),), ((0, tokens),))

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
        """The sequences sorted by length; a new bucket starts where padding would exceed a quarter of a row."""
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

    The graph is replayed for streams of other lengths, so anything computed from the lengths of the first stream would
    be wrong for the others. Reading `lengths` raises an error, and so does what depends on them: `real_tokens`,
    `groups` and `buckets`.
    """

    @property
    def lengths(self) -> tuple[int, ...]:
        raise RuntimeError(
            "layout.lengths is not known in a captured step, which is replayed for streams of other lengths; "
            "use layout.cu_seqlens_S1, layout.max_length and layout.token_ranges, or set train.capture: false"
        )

    @lengths.setter
    def lengths(self, given: tuple[int, ...]) -> None:
        """Ignores the lengths of the stream that the step is captured with."""

    def with_ranges(
        self, sequence_ranges: Ranges, token_ranges: Ranges, options: tuple[int, ...] | None = None
    ) -> "Layout":
        options = self.options if options is None else options
        return replace(self, lengths=(), sequence_ranges=sequence_ranges, token_ranges=token_ranges, options=options)

    def _lengths_with_prefix(self, length: int) -> tuple[int, ...]:
        return ()


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
    """The packed tokens of a step: the sequences in the order of their tasks, without padding between them."""

    token_ids_T: Tensor
    position_ids_T: Tensor
    segment_ids_T: Tensor
    layout: Layout
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    """For each task of the stream, the labels of its examples in order (NO_LABEL for those without a label); for masked
    text, [2, M]: the place of each masked token among the task's tokens, and its original id."""
    teacher_outputs: Mapping[str, Tensor] = field(default_factory=dict)
    """For each task with a teacher, the teacher's outputs for its examples."""
    tag_ids_T: Tensor | None = None
    """The part-of-speech tag of the word that each token is in, 0 for none; None if the model has no word tags."""
    words: Mapping[str, Tensor] = field(default_factory=dict)
    """For each task with a label for each word, [S, W]: the place of the first token of each word among the task's
    tokens, -1 behind the last word of a sequence. Its labels are [S, W] too."""
    windows: Mapping[str, Tensor] = field(default_factory=dict)
    """For each task of which some text has several windows, the first sequence of each text, counted from the task's
    first, and the end: one number more than texts."""
    share: StepShare | None = None
    """Which part of the step it is; None: the stream is the whole step."""

    def __len__(self) -> int:
        """The number of tokens. A process without a part of the step has a stream without tokens."""
        return len(self.token_ids_T)

    @property
    def token_share(self) -> float:
        """The share of the step's tokens that the stream has."""
        return 1.0 if self.share is None else len(self) / self.share.tokens

    def normal_like(self, x_TD: Tensor) -> Tensor:
        """Draw a standard normal number for each number of the first tokens, whose states are `x_TD`.

        Where processes divide a step, they draw the noise of the whole step and take their part of it: the noise of a
        token does not depend on the number of processes.
        """
        if self.share is None:
            return torch.randn_like(x_TD)
        first = self.share.first_token
        return self.share.random.normal(self.share.tokens, x_TD)[first : first + len(x_TD)]

    def to(self, device: torch.device) -> "Stream":
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Stream":
        """The same stream in pinned memory, from which a GPU copies while the CPU goes on."""
        return self._with_tensors(Tensor.pin_memory)

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Stream":
        return Stream(
            change(self.token_ids_T),
            change(self.position_ids_T),
            change(self.segment_ids_T),
            replace(self.layout, cu_seqlens_S1=change(self.layout.cu_seqlens_S1)),
            {task: change(labels) for task, labels in self.labels.items()},
            {task: change(outputs) for task, outputs in self.teacher_outputs.items()},
            None if self.tag_ids_T is None else change(self.tag_ids_T),
            {task: change(places) for task, places in self.words.items()},
            {task: change(starts) for task, starts in self.windows.items()},
            self.share,
        )


@dataclass(frozen=True)
class Encoded:
    """One task's part of the encoder's output: the input of a head."""

    hidden_TD: Tensor
    """The hidden states of the whole stream; `tokens` selects this task's."""
    layout: Layout
    task_index: int
    pooler: Callable[[Tensor], Tensor]
    """The encoder's pooler: maps first-token states h to tanh(W h + b)."""
    words_VD: Tensor | None = None
    """The encoder's word embeddings."""
    labels: Tensor | None = None
    """This task's labels in the stream."""
    words: Tensor | None = None
    """This task's words in the stream (`Stream.words`)."""
    windows_B1: Tensor | None = None
    """Which sequences are the windows of each text (`Stream.windows`); None: every text is one sequence."""
    window_pool: WindowPool = "mean"

    @property
    def tokens(self) -> slice:
        return slice(*self.layout.token_ranges[self.task_index])

    def given_options(self) -> Tensor:
        """[B, M], for a task with options: whether an example has an option. Missing options have no text at all, so
        that their sequences consist of two special tokens."""
        first, last = self.layout.sequence_ranges[self.task_index]
        lengths_S = self.layout.cu_seqlens_S1[first : last + 1].diff()
        given_BM: Tensor = (lengths_S > LENGTH_OF_MISSING).unflatten(0, (-1, self.layout.options[self.task_index]))
        return given_BM

    def pool(self, pooling: Pooling) -> Tensor:
        """One vector per text of the task: its first token, the pooler's output, or the mean over its tokens.

        The vectors of a text's windows become one by `window_pool`.
        """
        vectors_SD = self.pool_sequences(pooling)
        if self.windows_B1 is None:
            return vectors_SD
        return pool_windows(vectors_SD, self.windows_B1, self.window_pool)

    def pool_sequences(self, pooling: Pooling) -> Tensor:
        """One vector per sequence of the task."""
        first, last = self.layout.sequence_ranges[self.task_index]
        if pooling == "mean":
            offsets = self.layout.cu_seqlens_S1[first : last + 1].long() - self.tokens.start
            own_TD = self.hidden_TD[self.tokens].float()
            mean_SD = torch.segment_reduce(own_TD, "mean", offsets=offsets, axis=0, unsafe=True)
            return mean_SD.to(self.hidden_TD.dtype)
        states_SD = self.hidden_TD.index_select(0, self.layout.cu_seqlens_S1[first:last])
        return self.pooler(states_SD) if pooling == "pooler" else states_SD


def pool_windows(vectors_SD: Tensor, starts_B1: Tensor, pool: WindowPool) -> Tensor:
    """The mean, or the largest of each number, of the vectors from each start to before the next one: [B, D].

    A single vector stays bit-identical.
    """
    assert pool != "first", "only the first window is encoded"
    pooled_BD = torch.segment_reduce(vectors_SD.float(), pool, offsets=starts_B1, axis=0, unsafe=True)
    return pooled_BD.to(vectors_SD.dtype)
