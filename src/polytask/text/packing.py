"""Token ids of examples -> one packed stream. Knows ids and borders; knows no task's meaning and no file.

A single text is `[CLS] a [SEP]`; a pair is `[CLS] a [SEP] b [SEP]` in one sequence (segments 0 and 1), or two sequences
when each text is encoded by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from polytask.stream import Layout, Stream
from polytask.text.masking import Ids as Ids
from polytask.text.masking import MaskedText, Masker, token_labels

FILLER_LENGTH = 16  # filler is cut short, because attention's cost follows the longest sequence


@dataclass(frozen=True)
class Part:
    """Examples of one task on their way into a stream."""

    task: str
    texts: Sequence[tuple[Ids, ...]]
    """For each example the ids of its text or its two texts, without special tokens."""
    apart: bool = False
    """A pair's texts go into two sequences."""
    labels: npt.NDArray[np.generic] | None = None

    @classmethod
    def masked(cls, task: str, texts: Sequence[MaskedText]) -> "Part":
        """Single texts whose labels are their hidden tokens."""
        return cls(task, [(text.ids,) for text in texts], labels=token_labels(texts))


@dataclass(frozen=True)
class Packer:
    """Turns examples of several tasks into streams for a model with these tasks."""

    tasks: tuple[str, ...]
    cls_id: int
    sep_id: int
    max_length: int
    """Longest sequence, special tokens included; longer texts lose their end, the longer text of a pair first."""
    masker: Masker | None = None
    """Needed where a task's tokens are to be hidden."""

    def masked(self, text: Ids, share: float, rng: np.random.Generator) -> MaskedText:
        """A single text, cut to fit, with `share` of its tokens hidden."""
        assert self.masker is not None, "this packer was made without a masker"
        return self.masker.mask(text[: self.max_length - 2], share, rng)

    def pack(self, parts: Sequence[Part], token_budget: int | None = None) -> Stream:
        """One stream, its sequences ordered by task; with a budget, filled up to exactly that many tokens."""
        ordered = sorted(parts, key=lambda part: self.tasks.index(part.task))
        assert len({part.task for part in ordered}) == len(ordered), "a task has one part in a stream"
        ids: list[Ids] = []
        second_starts: list[int] = []
        sequence_ranges = [(0, 0)] * len(self.tasks)
        for part in ordered:
            first = len(ids)
            for texts in part.texts:
                for sequence, second_start in self.sequences(texts, part.apart):
                    ids.append(sequence)
                    second_starts.append(second_start)
            sequence_ranges[self.tasks.index(part.task)] = (first, len(ids))
        num_real = len(ids)
        lengths = [len(sequence) for sequence in ids]
        if token_budget is not None:
            for length in filler_lengths(token_budget - sum(lengths)):
                ids.append(np.zeros(length, dtype=np.int64))
                second_starts.append(length)
                lengths.append(length)
        layout = _layout(lengths, num_real, sequence_ranges)
        labels = {p.task: torch.from_numpy(np.ascontiguousarray(p.labels)) for p in ordered if p.labels is not None}
        flat = np.concatenate(ids).astype(np.int64)
        positions = np.concatenate([np.arange(length) for length in lengths])
        segments = positions >= np.repeat(second_starts, lengths)
        return Stream(
            torch.from_numpy(flat),
            torch.from_numpy(positions),
            torch.from_numpy(segments.astype(np.int64)),
            layout,
            labels,
        )

    def sequences(self, texts: tuple[Ids, ...], apart: bool) -> Iterator[tuple[Ids, int]]:
        """Each sequence of an example with its special tokens, and where its second segment starts."""
        cls, sep = [self.cls_id], [self.sep_id]
        if len(texts) == 1 or apart:
            for text in texts:
                sequence = np.concatenate([cls, text[: self.max_length - 2], sep])
                yield sequence, len(sequence)
        else:
            a, b = cut_pair(texts[0], texts[1], self.max_length - 3)
            yield np.concatenate([cls, a, sep, b, sep]), len(a) + 2

    def length(self, lengths: tuple[int, ...], apart: bool) -> int:
        """How many tokens of a stream an example with texts of these lengths takes."""
        if len(lengths) == 1 or apart:
            return sum(min(length, self.max_length - 2) + 2 for length in lengths)
        return min(sum(lengths), self.max_length - 3) + 3


def cut_pair(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    """Both texts inside `room` tokens, the longer one cut first; the first keeps the odd token."""
    if len(a) + len(b) <= room:
        return a, b
    half_a, half_b = room - room // 2, room // 2
    if len(a) <= half_a:
        return a, b[: room - len(a)]
    if len(b) <= half_b:
        return a[: room - len(b)], b
    return a[:half_a], b[:half_b]


def filler_lengths(room: int) -> list[int]:
    """Lengths of dummy sequences that fill `room` tokens."""
    if room < 0:
        raise ValueError(f"the stream is {-room} tokens larger than its budget")
    full, rest = divmod(room, FILLER_LENGTH)
    return [FILLER_LENGTH] * full + ([rest] if rest else [])


def batches_by_length(lengths: Sequence[int], token_budget: int) -> Iterator[list[int]]:
    """Index lists that together hold every example once, similar lengths side by side, each inside the token budget."""
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and tokens + lengths[i] > token_budget:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += lengths[i]
    if batch:
        yield batch


def _layout(lengths: list[int], num_real: int, sequence_ranges: list[tuple[int, int]]) -> Layout:
    cu = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    num_tasks = len(sequence_ranges)
    task_ids_S = np.full(len(lengths), num_tasks - 1, dtype=np.int64)  # filler counts as the last task's in lookups
    for k, (first, last) in enumerate(sequence_ranges):
        task_ids_S[first:last] = k
    return Layout(
        cu_seqlens_S1=torch.from_numpy(cu),
        task_ids_S=torch.from_numpy(task_ids_S),
        task_ids_T=torch.from_numpy(np.repeat(task_ids_S, lengths)),
        lengths=tuple(lengths),
        sequence_ranges=tuple(sequence_ranges),
        token_ranges=tuple((int(cu[first]), int(cu[last])) for first, last in sequence_ranges),
    )
