"""Chooses the columns of a file or a table that each task's texts are read from."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from polytask.types import UserError

if TYPE_CHECKING:
    from polytask.serving.predictor import Predictor

TextColumns = Mapping[str, tuple[str, ...]]
"""For each task, the columns of its texts."""
MAX_COLUMNS = 20
"""Columns that an error lists."""


def text_columns(
    predictor: "Predictor",
    tasks: Sequence[str] | None,
    columns: Sequence[str] | None,
    found: Sequence[str],
    where: str,
) -> TextColumns:
    """Returns the text columns of the tasks, followed by those of options: the given ones, or those of the training
    data.

    Without tasks, all tasks whose text columns are among those that were found.
    """
    if columns:
        tasks = predictor.taking(len(columns)) if tasks is None else tasks
        predictor.check([task for task in tasks if not predictor.spec(task).has_options], [tuple(columns)])
        if len(columns) < 2 and any(predictor.spec(task).has_options for task in tasks):
            raise UserError(
                f"predict: --columns (columns=[...]): must be the text column and the columns with options, found "
                f"{columns[0]!r}"
            )
        return dict.fromkeys(tasks, tuple(columns))
    if tasks is not None:
        predictor.check(tasks)
        return {task: predictor.spec(task).input_columns for task in tasks}
    specs = predictor.bundle.specs.values()
    complete = {
        spec.name: spec.input_columns for spec in specs if spec.kind != "text" and set(spec.input_columns) <= set(found)
    }
    if not complete:
        expected = "; ".join(f"{spec.name}: {', '.join(spec.input_columns)}" for spec in specs)
        more = len(found) - MAX_COLUMNS
        columns_found = ", ".join(found[:MAX_COLUMNS]) + (f" and {more:,} more" if more > 0 else "")
        raise UserError(
            f"{where}: must have the text columns of a task ({expected}), found the columns {columns_found}; pass "
            "--columns (columns=[...]) to choose the text columns"
        )
    return complete
