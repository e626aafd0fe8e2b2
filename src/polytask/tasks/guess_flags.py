"""Columns of 0 and 1, one for each class of a task of kind multilabel: those the user gave, or might want."""

from collections.abc import Sequence

from polytask.kinds.names import NO, YES, class_name
from polytask.tasks.columns import Column
from polytask.types import UserError

MOST_NAMED = 8  # columns in a hint


def check_flags(file: str, columns: Sequence[Column]) -> None:
    """Raises a UserError if one of several label columns that the user gave has other values than yes and no."""
    for column in columns:
        other = next((value for value in column.values if class_name(value).lower() not in YES | NO), None)
        if other is not None:
            raise UserError(
                f"{file}, column {column.name!r}: several label columns are the classes of kind multilabel and must "
                f"have 0 and 1, found {other!r}; pass one column with --label"
            )


def flags_hint(task: str, columns: Sequence[Column]) -> str:
    """Returns how to make one task of several columns of 0 and 1; "" if there are fewer than two."""
    found = {column.name: {class_name(value).lower() for value in column.values} for column in columns}
    names = [name for name, values in found.items() if values and (values <= {"0", "1"} or values <= {"true", "false"})]
    if len(names) < 2:
        return ""
    more = ",..." if len(names) > MOST_NAMED else ""
    return (
        f"; for one task whose classes are columns of 0 and 1, pass --label {task}={','.join(names[:MOST_NAMED])}{more}"
    )
