"""Rows that are in memory: pandas and Polars frames, Hugging Face data sets, Arrow tables, and iterables of dicts.

They are written as JSON lines, under a name that contains the hash of the content, and are then read like any other
file. Only the columns that a task names are written. pandas, Polars and datasets are never imported: what a value is
can be seen from its type's name.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from polytask.disk.atomic import atomic_file
from polytask.disk.hashing import sha256
from polytask.disk.writable import make_folder
from polytask.tasks.sources.hub import named, names_in_lists
from polytask.tasks.sources.source import checked_columns, no_column
from polytask.text.tokenizer import without_lone_surrogates
from polytask.types import UserError

BATCH = 10_000  # rows of a table that are converted at once
HASH_DIGITS = 16  # of the SHA-256, in the name of a file
TABLES = ("pandas.DataFrame", "polars.DataFrame", "polars.LazyFrame", "datasets.Dataset", "pyarrow.Table")
MISSING = ("NAType", "NaTType")  # the types of pandas.NA and pandas.NaT

Record = dict[str, Any]


def kind_of(data: object) -> str:
    """Names the library's type that a value has, as in `pandas.DataFrame`; "" for a value of no known library."""
    for kind in type(data).__mro__:
        name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        if name in TABLES:
            return name
    return ""


def rows_of(data: Any, columns: Sequence[str], where: str) -> Iterator[Record]:
    """Yields the rows of a value as dicts with these columns and plain Python values; None for a missing value.

    An iterable of dicts can be read only once. `where` names the value in error messages.
    """
    kind = kind_of(data)
    if kind == "polars.LazyFrame":
        data, kind = data.collect(), "polars.DataFrame"
    rows = _table_rows(data, kind, columns, where) if kind else _dict_rows(data, columns, where)
    empty = True
    for number, row in enumerate(rows, start=1):
        empty = False
        yield {name: _plain(value, f"{where}, row {number}, column {name!r}") for name, value in row.items()}
    if empty:
        raise UserError(f"{where}: has no rows; a generator can be read only once")


def columns_of(data: Any, kind: str, where: str) -> tuple[str, ...]:
    """Returns the names of a table's columns as text; they must be unique."""
    names = data.columns if kind in ("pandas.DataFrame", "polars.DataFrame") else data.column_names
    return checked_columns(where, [str(name) for name in names])


def write_rows(rows: Iterable[Record], folder: Path, name: str) -> Path:
    """Writes rows as FOLDER/NAME-HASH.jsonl and returns its path; a file with this content is not written again."""
    with tempfile.TemporaryFile() as written:
        digest = hashlib.sha256()
        for row in rows:
            line = _line(row)
            digest.update(line)
            written.write(line)
        path = folder / f"{name}-{digest.hexdigest()[:HASH_DIGITS]}.jsonl"
        if not path.is_file() or sha256(path) != digest.hexdigest():
            make_folder(folder)
            written.seek(0)
            with atomic_file(path) as unfinished, unfinished.open("wb") as target:
                shutil.copyfileobj(written, target)
    return path


def _line(row: Record) -> bytes:
    text = json.dumps(row, ensure_ascii=False) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError:
        return without_lone_surrogates(text).encode()


def _table_rows(data: Any, kind: str, columns: Sequence[str], where: str) -> Iterator[Record]:
    names: Sequence[str] = columns_of(data, kind, where)
    _check_columns(names, columns, where)
    if kind == "datasets.Dataset":
        data, names = data.with_format(None).select_columns(list(columns)), columns
    indices = [names.index(column) for column in columns]
    for start in range(0, len(data), BATCH):
        values = [_values(data, kind, index, start) for index in indices]
        for row in zip(*values, strict=True):
            yield dict(zip(columns, row, strict=True))


def _values(data: Any, kind: str, index: int, start: int) -> list[Any]:
    """Returns the values of one column of a table, from a row on, as a list."""
    part = slice(start, start + BATCH)
    match kind:
        case "pandas.DataFrame":
            return list(data.iloc[part, index])
        case "polars.DataFrame":
            return list(data[part].to_series(index).to_list())
        case "pyarrow.Table":
            return list(data.column(index).slice(start, BATCH).to_pylist())
        case _:
            column = data.column_names[index]
            return named(data[part][column], names_in_lists(data, column))


def _dict_rows(data: Any, columns: Sequence[str], where: str) -> Iterator[Record]:
    """Yields the named values of dicts. As in a file of JSON lines, the first one names the columns."""
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        advice = ""
        if isinstance(data, Mapping):
            is_columns = type(data) is dict and not any(map(kind_of, data.values()))
            advice = " (pass pandas.DataFrame(...) of it)" if is_columns else " (choose one of its splits)"
        raise UserError(
            f"{where}: must be the name of a file, a data frame, a data set, a pyarrow table or a list of dicts; found "
            f"{type(data).__module__}.{type(data).__name__}{advice}"
        )
    for number, row in enumerate(data, start=1):
        if not isinstance(row, Mapping):
            raise UserError(f"{where}, row {number}: must be a dict, found {row!r:.80}")
        named = {str(key): value for key, value in row.items()}
        if number == 1:
            _check_columns(tuple(named), columns, where)
        yield {column: named[column] for column in columns if column in named}


def _check_columns(names: Sequence[str], columns: Sequence[str], where: str) -> None:
    source: Any = SimpleNamespace(name=where, columns=names)
    missing = [str(no_column(source, column)) for column in columns if column not in names]
    if missing:
        raise UserError("\n".join(missing))


def _plain(value: Any, where: str) -> Any:
    """Returns a value as JSON has it; numbers and texts of NumPy become Python's, missing values None."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return None if value != value else float(value)
    if type(value).__name__ in MISSING:
        return None
    if hasattr(value, "tolist"):  # a number or an array of NumPy, or a list of Polars
        return _plain(value.tolist(), where)
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if hasattr(value, "isoformat"):  # a date or a time
        return value.isoformat()
    raise UserError(f"{where}: {value!r:.80}: must be text, a number or a list, found {type(value).__name__}")
