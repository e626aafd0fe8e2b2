"""Layouts that assign the sequences of a stream to another task, so that its head can read them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from polytask.stream import Layout, Reading

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel


def readable_layouts(model: "MultiTaskModel", layout: Layout, task: str) -> Iterator[Layout]:
    """Yield a layout for each part of the stream that the task's head can read; in it that part belongs to the task.

    A head that reads one sequence per example can read the whole stream. A head that reads several sequences of an
    example can read the examples of heads that read the same ones, without windows; if they are options, only examples
    with as many options as those of the first such head. In a stream of static shape there is filler between the tasks'
    sequences, so each of them is a part of its own.
    """
    k, reading = model.tasks.index(task), model.head(task).reading
    if reading == "joined" and not layout.static_shape:
        yield as_task(layout, k)
        return
    parts = {layout.sequence_ranges[other]: other for other in reversed(layout.tasks)}  # tasks may share sequences
    readable = [one for one in sorted(parts.values()) if reading in ("joined", _whole_texts(model, one))]
    for other in readable:
        if reading != "options" or layout.options[other] == layout.options[readable[0]]:
            yield _with_range(layout, k, layout.sequence_ranges[other], layout.token_ranges[other], other)


def _whole_texts(model: "MultiTaskModel", k: int) -> Reading | None:
    """The sequences of task k's examples; None if they are windows, which are only parts of texts."""
    head = model.head(model.tasks[k])
    return head.reading if head.windows is None else None


def as_task(layout: Layout, k: int) -> Layout:
    """Assign all sequences to task k, except filler behind the last one."""
    sequences = 0, max(last for _, last in layout.sequence_ranges)
    return _with_range(layout, k, sequences, (0, max(last for _, last in layout.token_ranges)))


def _with_range(
    layout: Layout, k: int, sequences: tuple[int, int], tokens: tuple[int, int], other: int | None = None
) -> Layout:
    """Assign these sequences and tokens, which are those of the task `other`, to task k, and none to other tasks."""
    nothing, tasks = (0, 0), range(len(layout.sequence_ranges))
    options = () if other is None or not layout.options else (layout.options[other],) * len(layout.options)
    return layout.with_ranges(
        tuple(sequences if task == k else nothing for task in tasks),
        tuple(tokens if task == k else nothing for task in tasks),
        options,
    )
