"""Layouts that assign the sequences of a stream to another task, so that its head can read them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from polytask.stream import Layout

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel


def readable_layouts(model: "MultiTaskModel", layout: Layout, task: str) -> Iterator[Layout]:
    """Yield a layout for each part of the stream that the task's head can read; in it that part belongs to the task.

    A head that reads one sequence per example can read the whole stream. A head that reads several sequences of a pair
    can read the pairs of heads that read the same ones, without windows. In a stream of static shape there is filler
    between the tasks' sequences, so each of them is a part of its own.
    """
    k, reading = model.tasks.index(task), model.head(task).reading
    if reading == "joined" and not layout.static_shape:
        yield as_task(layout, k)
        return
    for other in layout.tasks:
        head = model.head(model.tasks[other])
        if reading == "joined" or (reading == head.reading and head.windows is None):
            yield _with_range(layout, k, layout.sequence_ranges[other], layout.token_ranges[other])


def as_task(layout: Layout, k: int) -> Layout:
    """Assign all sequences to task k, except filler behind the last one."""
    sequences = 0, max(last for _, last in layout.sequence_ranges)
    return _with_range(layout, k, sequences, (0, max(last for _, last in layout.token_ranges)))


def _with_range(layout: Layout, k: int, sequences: tuple[int, int], tokens: tuple[int, int]) -> Layout:
    """Assign these sequences and tokens to task k, and none to the other tasks."""
    nothing, tasks = (0, 0), range(len(layout.sequence_ranges))
    return layout.with_ranges(
        tuple(sequences if task == k else nothing for task in tasks),
        tuple(tokens if task == k else nothing for task in tasks),
    )
