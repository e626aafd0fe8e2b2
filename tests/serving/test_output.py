"""Whatever the rows hold, they are written and read back: compared with Python's csv and json, and with pyarrow."""

import csv
import json
import math
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.serving.input import Dialect, InputFile
from polytask.serving.output import write_rows
from polytask.tasks.reading import Format, open_source

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
scalar = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
large = st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**40, 0.5, -1])
value = st.recursive(
    scalar | large, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)
rows = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c", "d", "é ,;"]), value), min_size=1, max_size=8)
one_kind = st.sampled_from([st.booleans(), st.integers(-(2**70), 2**70), large, st.floats(allow_nan=False), text])
columns = st.dictionaries(st.sampled_from("abc"), one_kind.flatmap(lambda kind: st.lists(kind, min_size=4, max_size=4)))
rows_of_columns = columns.map(lambda held: [{name: held[name][i] for name in held} for i in range(4)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def copy(source: Path, target: Path, format: Format) -> list[str]:
    """Writes all rows of the source, three at a time, and gives back the columns."""
    file = InputFile(open_source(str(source)))
    types: dict[str, Any] = dict(file.column_types) if format == "parquet" else dict.fromkeys(file.columns)
    held = [record for _, record in file.records()]
    with write_rows(target, format, Dialect(";", "utf-8"), types) as write:
        for start in range(0, len(held), 3):
            write(held[start : start + 3])
    return list(file.columns)


@settings(max_examples=100, deadline=None)
@given(rows=rows | rows_of_columns)
def test_json_lines_into_every_format(folder: Path, rows: list[dict[str, Any]]) -> None:
    rows.append({"text": "so that there is a key"})
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = copy(source, folder / "out.jsonl", "jsonl")
    assert [json.loads(line) for line in (folder / "out.jsonl").read_text().split("\n")[:-1]] == rows
    assert names == list(dict.fromkeys(name for row in rows for name in row))

    copy(source, folder / "out.csv", "csv")
    with (folder / "out.csv").open(newline="", encoding="utf-8") as file:
        header, *cells = csv.reader(file, delimiter=";")
    assert header == names
    for row, line in zip(rows, cells, strict=True):
        for name, cell in zip(names, line, strict=True):
            same(row.get(name), cell or None)

    copy(source, folder / "out.parquet", "parquet")
    for row, found in zip(rows, pq.read_table(folder / "out.parquet").to_pylist(), strict=True):
        for name in names:
            same(row.get(name), found[name])


def same(value: Any, written: Any) -> None:
    """The value itself, or its text."""
    if isinstance(value, str) or value is None or not isinstance(written, str):
        assert (value or None) == (written or None) or value == written
    else:
        assert json.loads(written) == value


def test_types_of_parquet_columns(tmp_path: Path) -> None:
    held: dict[str, tuple[list[Any], pa.DataType]] = {
        "integers": ([1, 2**63 - 1, None], pa.int64()),
        "numbers": ([1, 0.5, None], pa.float64()),
        "inexact": ([2**53 + 1, 0.5, None], pa.string()),
        "huge": ([2**63, 1, None], pa.string()),
        "truths": ([True, None, False], pa.bool_()),
        "truth and number": ([True, 1, None], pa.string()),
        "texts": (["a", None, "1"], pa.string()),
        "mixed": (["a", 1, None], pa.string()),
        "nested": ([[1], {"a": 1}, None], pa.string()),
        "nothing": ([None, None, None], pa.string()),
    }
    lines = [json.dumps({name: values[i] for name, (values, _) in held.items()}) for i in range(3)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    copy(tmp_path / "in.jsonl", tmp_path / "out.parquet", "parquet")
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert {name: schema.field(name).type for name in schema.names} == {name: kind for name, (_, kind) in held.items()}


def test_columns_of_parquet_files_keep_their_types(tmp_path: Path) -> None:
    now = datetime(2024, 5, 6, 7, 8, 9, 123456)
    table = pa.table(
        {
            "text": pa.array(["a", None]),
            "large": pa.array(["a", None], pa.large_string()),
            "dictionary": pa.array(["a", None]).dictionary_encode(),
            "unsigned": pa.array([2**64 - 1, None], pa.uint64()),
            "half": pa.array([0.5, None], pa.float16()),
            "single": pa.array([0.1, math.inf], pa.float32()),
            "decimal": pa.array([Decimal("1.20"), None], pa.decimal128(30, 2)),
            "time": pa.array([now, None], pa.timestamp("us", "Europe/Berlin")),
            "day": pa.array([now.date(), None]),
            "bytes": pa.array([b"\0\xff", None]),
            "lists": pa.array([[1, None], None]),
            "structs": pa.array([{"a": [{"b": b"x"}]}, None]),
            "maps": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
            "nulls": pa.nulls(2),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    copy(tmp_path / "in.parquet", tmp_path / "out.parquet", "parquet")
    assert pq.read_table(tmp_path / "out.parquet").equals(pq.read_table(tmp_path / "in.parquet"))


def test_values_of_parquet_files_as_text(tmp_path: Path) -> None:
    row = {"day": datetime(2024, 5, 6).date(), "price": Decimal("1.20"), "sure": True, "lists": [Decimal("0.1"), None]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "in.parquet")
    copy(tmp_path / "in.parquet", tmp_path / "out.csv", "csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file, delimiter=";"))[1] == ["2024-05-06", "1.20", "true", '["0.1", null]']
    copy(tmp_path / "in.parquet", tmp_path / "out.jsonl", "jsonl")
    found = json.loads((tmp_path / "out.jsonl").read_text())
    assert found == {"day": "2024-05-06", "price": "1.20", "sure": True, "lists": ["0.1", None]}
