"""Shards cover every row of a file once, whatever its row groups are."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polytask.bulk.shards import Shard, cut, format_of, measure, num_rows, open_shard
from polytask.bulk.storage import Storage
from polytask.types import UserError


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 30))
def test_ranges_cover_all_rows_once_and_are_small(row_groups: list[int], most: int) -> None:
    ranges = cut(row_groups, most)
    assert [row for start, rows in ranges for row in range(start, start + rows)] == list(range(sum(row_groups)))
    assert all(0 < rows <= most for _, rows in ranges)


def test_ranges_end_with_row_groups_unless_one_is_too_large() -> None:
    assert cut([10, 10, 10, 10, 10], 25) == [(0, 20), (20, 20), (40, 10)]
    assert cut([30, 5, 5], 10) == [(0, 10), (10, 10), (20, 10), (30, 10)]
    assert cut([], 10) == cut([0], 10) == []


@pytest.mark.parametrize("row_group_size", [7, 1000])
def test_a_shard_has_its_rows_with_their_numbers(tmp_path: Path, make_rows: Any, row_group_size: int) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(make_rows(0, 100), path, row_group_size=row_group_size)
    for start, rows in ((0, 100), (13, 29), (99, 1)):
        with open_shard(Shard("part", str(path), start, rows), None) as file:
            found = list(file.records())
        assert [number for number, _ in found] == list(range(start + 1, start + rows + 1))
        assert [record["number"] for _, record in found] == list(range(start, start + rows))


def test_the_rows_of_every_format_are_counted(tmp_path: Path, make_rows: Any) -> None:
    (tmp_path / "in.csv").write_text('text,n\n"two\nlines",1\nb,2\n')
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b", "n": 2}\n')
    assert measure(Storage.of(str(tmp_path / "in.csv"))).columns == ("text", "n")
    assert [num_rows(Storage.of(str(tmp_path / name))) for name in ("in.csv", "in.jsonl")] == [2, 2]
    pq.write_table(make_rows(0, 9), tmp_path / "in.parquet")
    assert num_rows(Storage.of(str(tmp_path / "in.parquet"))) == 9
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "in.parquet").read_bytes()[:-20])
    assert num_rows(Storage.of(str(tmp_path / "cut.parquet"))) == -1


def test_other_formats_are_refused() -> None:
    with pytest.raises(UserError, match=r"s3://b/in\.xlsx: the extension must be one of \.csv, .*\.parquet"):
        format_of("s3://b/in.xlsx")
