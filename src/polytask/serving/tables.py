"""Predicts the rows of a table in memory; the result is a table of the same kind with the predictions as columns."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from polytask.serving.added import added_columns, check_names
from polytask.serving.examples import with_options
from polytask.serving.text_columns import text_columns
from polytask.tasks.in_memory import columns_of, kind_of, rows_of
from polytask.tasks.rows import text_problem
from polytask.types import UserError

if TYPE_CHECKING:
    from polytask.serving.predictor import Predictor

WHERE = "predict"


def is_table(data: Any) -> bool:
    """Whether the data is a table or a list of dicts, rather than texts."""
    if kind_of(data):
        return True
    return isinstance(data, Sequence) and not isinstance(data, str) and len(data) > 0 and isinstance(data[0], Mapping)


def predict_table(
    predictor: "Predictor",
    data: Any,
    tasks: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    probabilities: str,
    strict: bool,
) -> Any:
    """Returns the table with the columns that `predict_file` adds, in its order and with its index."""
    kind = kind_of(data)
    table = data.collect() if kind == "polars.LazyFrame" else data
    found = columns_of(table, kind.replace("Lazy", "Data"), WHERE) if kind else tuple(map(str, table[0]))
    chosen = text_columns(predictor, [tasks] if isinstance(tasks, str) else tasks, columns, found, WHERE)
    added = {task: added_columns(predictor, task, probabilities, lists=True) for task in chosen}
    check_names(WHERE, found, added)
    values: dict[str, list[Any]] = {name: [] for entry in added.values() for name in entry.types}
    for names, options in dict.fromkeys((names, predictor.spec(task).has_options) for task, names in chosen.items()):
        group = [task for task, own in chosen.items() if (own, predictor.spec(task).has_options) == (names, options)]
        examples = [_example(row, names, options, number) for number, row in enumerate(_rows(table, names))]
        for task, predictions in predictor.predict_tasks(examples, tasks=group, strict=strict).items():
            for prediction in predictions:
                for name, value in added[task].values(prediction).items():
                    values[name].append(value)
    types = {name: kind for entry in added.values() for name, kind in entry.types.items()}
    result = _with_columns(table, kind, values, types)
    return result.lazy() if kind == "polars.LazyFrame" else result


def _example(row: Mapping[str, Any], names: Sequence[str], options: bool, number: int) -> tuple[Any, ...]:
    values = [row.get(name) for name in names]
    if not options or text_problem(values[0]):
        return (values[0],) if options else tuple(values)
    return with_options(str(values[0]), values[1:], f"{WHERE}: row {number} (counted from 0)")


def _rows(table: Any, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    if len(table):
        yield from rows_of(table, names, WHERE)


def _with_columns(table: Any, kind: str, values: Mapping[str, list[Any]], types: Mapping[str, pa.DataType]) -> Any:
    """Returns a copy of a table with these columns at its end."""
    match kind:
        case "pandas.DataFrame":
            table = table.copy()
            for name, column in values.items():
                table[name] = column
        case "polars.DataFrame" | "polars.LazyFrame":
            polars = sys.modules["polars"]  # imported by whoever made the frame
            table = table.with_columns([polars.Series(name, column) for name, column in values.items()])
        case "pyarrow.Table":
            for name, column in values.items():
                table = table.append_column(name, pa.array(column, types[name]))
        case "datasets.Dataset":
            for name, column in values.items():
                table = table.add_column(name, column)
        case "":
            new = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
            table = [{**row, **more} for row, more in zip(table, new, strict=True)]
        case _:
            raise UserError(f"{WHERE}: cannot add columns to a {kind}")
    return table
