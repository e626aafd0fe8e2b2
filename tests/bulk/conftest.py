"""Input files for bulk prediction, and what plain prediction says about them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polytask import Finished, load, predict_file

TEXTS = ["good", "bad and long", "a fine day in the park", "", "neither this nor that", None, "the worst of all"]


def make_table(start: int, rows: int) -> pa.Table:
    """Rows with a number, texts of all tasks of the quick start, and a column of lists."""
    numbers = range(start, start + rows)
    return pa.table(
        {
            "number": list(numbers),
            "text": [TEXTS[n % len(TEXTS)] and f"{TEXTS[n % len(TEXTS)]} {n}" for n in numbers],
            "question1": [f"what is {n}" for n in numbers],
            "question2": [f"who is {n % 5}" for n in numbers],
            "tags": [["x"] * (n % 3) for n in numbers],
        }
    )


@pytest.fixture(scope="session")
def make_rows() -> Callable[[int, int], pa.Table]:
    return make_table


@pytest.fixture(scope="session")
def bulk_input(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three Parquet files: small row groups, one large row group, and no rows."""
    folder = tmp_path_factory.mktemp("bulk")
    pq.write_table(make_table(0, 50), folder / "a.parquet", row_group_size=10)
    pq.write_table(make_table(50, 45), folder / "b.parquet")
    pq.write_table(make_table(95, 0), folder / "c.parquet")
    return folder


@pytest.fixture(scope="session")
def plain(tiny_run: Finished, bulk_input: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows that plain prediction writes for the same files."""
    folder, rows = tmp_path_factory.mktemp("plain"), []
    for name in ("a", "b"):
        predict_file(load(tiny_run.folder), None, str(bulk_input / f"{name}.parquet"), folder / f"{name}.parquet")
        rows += pq.read_table(folder / f"{name}.parquet").to_pylist()
    return rows


def read_output(folder: Path) -> list[dict[str, Any]]:
    """The rows of all shards, in order."""
    return [row for path in sorted(folder.glob("part-*")) for row in pq.read_table(path).to_pylist()]


def same_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Compares rows; numbers may differ in the last digits, because other texts are computed together."""
    assert [row["number"] for row in found] == [row["number"] for row in expected]
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            assert value == (pytest.approx(other[name], rel=1e-3) if isinstance(value, float) else other[name]), name
