"""Parquet files are read in batches, and other files are refused."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polytask.tasks.reading import open_source
from polytask.types import UserError

Write = Callable[[str, str | bytes], str]
Read = Callable[..., list[object]]


def test_parquet_is_read_in_batches_and_by_column(tmp_path: Path) -> None:
    table = pa.table({"text": [f"t{i}" for i in range(5000)], "label": pa.array([1, None] * 2500), "x": [[1]] * 5000})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=700)
    source = open_source(str(tmp_path / "x.parquet"))
    rows = list(source.rows(["label", "text"]))
    assert (source.columns, source.unit) == (("text", "label", "x"), "row")
    assert len(rows) == 5000
    assert rows[0] == (1, [1, "t0"])
    assert rows[-1] == (5000, [None, "t4999"])


def test_invalid_or_empty_parquet(tmp_path: Path, write: Write, read: Read) -> None:
    with pytest.raises(UserError, match=r"x\.parquet: cannot read it as a parquet file"):
        read(write("x.parquet", "text"))
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "y.parquet")
    with pytest.raises(UserError, match=r"y\.parquet: the table has no rows"):
        read(str(tmp_path / "y.parquet"))
