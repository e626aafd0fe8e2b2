"""Layouts that assign the sequences of a stream to another task, so that its head can read them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from polytask.model import MultiTaskModel
from polytask.stream import Layout


def readable_layouts(model: MultiTaskModel, layout: Layout, task: str) -> Iterator[Layout]:
    """Yield a layout for each part of the stream that the task's head can read; in it that part belongs to the task.

    A head that reads one sequence per example can read the whole stream. A head that encodes the texts of a pair
    separately can read the pairs of other such heads.
    """
    k = model.tasks.index(task)
    whole = as_task(layout, k)
    if not model.head(task).separate_texts:
        yield whole
        return
    for other, sequences in enumerate(layout.sequence_ranges):
        if sequences[0] < sequences[1] and model.head(model.tasks[other]).separate_texts:
            yield _with_range(whole, k, sequences)


def as_task(layout: Layout, k: int) -> Layout:
    """Assign all sequences except filler to task k."""
    return _with_range(layout, k, (0, max(last for _, last in layout.sequence_ranges)))


def _with_range(layout: Layout, k: int, sequences: tuple[int, int]) -> Layout:
    """Assign these sequences to task k, and none to the other tasks."""
    ends = [0, *accumulate(layout.lengths)]
    tokens, nothing = (ends[sequences[0]], ends[sequences[1]]), (0, 0)
    tasks = range(len(layout.sequence_ranges))
    return replace(
        layout,
        sequence_ranges=tuple(sequences if task == k else nothing for task in tasks),
        token_ranges=tuple(tokens if task == k else nothing for task in tasks),
    )
