"""Data in memory becomes JSON lines: the same for every library, missing values empty, errors with row and column."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from polytask.tasks.in_memory import rows_of, write_rows
from polytask.types import UserError

COLUMNS = {"text": ["one", "", None, "two"], "label": [1, 0, 1, None], "other": [[1], [2], [3], [4]]}
ROWS = [dict(zip(COLUMNS, values, strict=True)) for values in zip(*COLUMNS.values(), strict=True)]
WANTED = [{"text": row["text"], "label": row["label"]} for row in ROWS]
KINDS = {
    "pandas": lambda: pd.DataFrame({**COLUMNS, "label": pd.array(COLUMNS["label"], "Int64")}, index=[3, 3, 1, 1]),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars lazy": lambda: pl.LazyFrame(COLUMNS),
    "datasets": lambda: datasets.Dataset.from_dict(COLUMNS),
    "pyarrow": lambda: pa.table(COLUMNS),
    "list": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_gives_the_same_file(kind: str, tmp_path: Path) -> None:
    path = write_rows(rows_of(KINDS[kind](), ["text", "label"], "data"), tmp_path, "team-train")
    assert [json.loads(line) for line in path.read_text().splitlines()] == WANTED
    assert path == write_rows(iter(WANTED), tmp_path, "team-train")
    assert len(list(tmp_path.iterdir())) == 1
    assert write_rows(iter(WANTED[:3]), tmp_path, "team-train") != path


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    path = write_rows(iter(WANTED), tmp_path, "x")
    whole = path.read_bytes()
    path.write_bytes(whole[:10])
    assert write_rows(iter(WANTED), tmp_path, "x").read_bytes() == whole


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.str_("a"), "a"),
        (np.int32(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (float("nan"), None),
        (np.float64("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (np.array(["a", "b"]), ["a", "b"]),
        (pd.Timestamp("2026-01-02"), "2026-01-02T00:00:00"),
        ({"a": (1, np.int8(2))}, {"a": [1, 2]}),
    ],
)
def test_values_are_plain(value: Any, plain: Any) -> None:
    (row,) = rows_of([{"a": value}], ["a"], "data")
    assert row == {"a": plain}
    assert type(row["a"]) is type(plain)


def test_columns_of_pandas() -> None:
    frame = pd.DataFrame({0: ["x", "y"], "c": pd.Categorical(["b", None]), "i": pd.array([1, None], dtype="Int64")})
    assert list(rows_of(frame, ["0", "c", "i"], "data")) == [
        {"0": "x", "c": "b", "i": 1},
        {"0": "y", "c": None, "i": None},
    ]
    twice = pd.DataFrame([["x", "y"]], columns=["a", "a"])
    with pytest.raises(UserError, match="data: column names must be unique, found 'a' more than once"):
        list(rows_of(twice, ["a"], "data"))


def test_half_of_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    path = write_rows(rows_of([{"a": "x\ud800y"}], ["a"], "data"), tmp_path, "x")
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "x\ufffdy"}


@pytest.mark.parametrize("kind", ["pandas", "polars", "datasets", "pyarrow", "list", "generator"])
def test_a_missing_column_is_named_with_the_others(kind: str) -> None:
    with pytest.raises(UserError, match="data: no column 'labl'; its columns are: text, label, other; did you mean 'l"):
        list(rows_of(KINDS[kind](), ["text", "labl"], "data"))


def empty() -> Iterator[dict[str, Any]]:
    yield from ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pd.DataFrame({"text": [], "label": []}), "data: has no rows"),
        (empty(), "data: has no rows; a generator can be read only once"),
        ([{"text": "a", "label": object()}], "data, row 1, column 'label': <object"),
        ([{"text": b"a", "label": 1}], "data, row 1, column 'text': b'a': must be text"),
        ([{"text": "a", "label": 1}, "b"], "data, row 2: must be a dict, found 'b'"),
        (datasets.DatasetDict(), r"found datasets.*DatasetDict \(choose one of its splits\)"),
        ({"text": ["a"], "label": [1]}, r"found builtins.dict \(pass pandas.DataFrame\(...\) of it\)"),
        (3, "data: must be the name of a file, a data frame"),
    ],
)
def test_data_that_cannot_be_used(data: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(rows_of(data, ["text", "label"], "data"))


def test_no_library_is_imported_that_the_user_did_not_import() -> None:
    code = """
import sys, polytask
from polytask.tasks.in_memory import rows_of
list(rows_of([{"a": "x"}], ["a"], "data"))
polytask.Classes([{"a": "x", "b": 1}], text="a", label="b")
assert not {"pandas", "polars", "datasets", "sklearn"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
