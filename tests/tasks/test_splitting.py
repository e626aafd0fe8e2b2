"""A file is split in two: every row in one of them, the same every time, and no text in both."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from polytask.settings import TaskSpec
from polytask.tasks.reading import open_source
from polytask.tasks.splitting import split_file
from polytask.types import UserError

Table = Callable[..., str]


def rows_of(file: Path) -> list[list[str]]:
    source = open_source(str(file))
    return [row[1] for row in source.rows(source.columns) if isinstance(row, tuple)]


def spec_of(train: str, kind: str = "yes_no", text: tuple[str, ...] = ("text",)) -> TaskSpec:
    return TaskSpec("mine", kind, text, "label", train, "")  # type: ignore[arg-type]


def test_parts_hold_every_row_once_and_no_text_is_in_both(tmp_path: Path, table: Table) -> None:
    rows: list[list[object]] = [[i, f"{'Text' if i % 2 else 'text '} {i % 70}", i % 2] for i in range(200)]
    parts = split_file(spec_of(table("x.tsv", ["id", "text", "label"], rows, "\t")), tmp_path / "out")
    train, dev = rows_of(parts.train), rows_of(parts.dev)
    assert (parts.train.name, parts.dev.name) == ("mine-train.csv", "mine-dev.csv")
    assert sorted(train + dev, key=lambda row: int(row[0])) == [[str(value) for value in row] for row in rows]
    plain = [{" ".join(row[1].lower().split()) for row in part} for part in (train, dev)]
    assert not plain[0] & plain[1]
    assert 35 <= len(dev) <= 40
    assert [int(row[0]) for row in train] == sorted(int(row[0]) for row in train)


def test_the_split_is_the_same_every_time_and_another_with_another_seed(tmp_path: Path, table: Table) -> None:
    spec = spec_of(table("x.csv", ["text", "label"], [[f"text {i}", i % 2] for i in range(50)]))
    first = split_file(spec, tmp_path / "out").dev.read_bytes()
    assert split_file(spec, tmp_path / "out").dev.read_bytes() == first
    assert split_file(spec, tmp_path / "other", seed=1).dev.read_bytes() != first
    assert len(rows_of(split_file(spec, tmp_path / "half", share=0.5).dev)) == 25
    with pytest.raises(UserError, match=r"mine-train.csv: already exists with other content"):
        split_file(spec, tmp_path / "out", seed=1)


def test_rows_of_pairs_that_share_a_text_stay_together(tmp_path: Path, table: Table) -> None:
    rows: list[list[object]] = [[f"a{i}", f"b{i}", 0] for i in range(40)] + [[f"b{i}", f"c{i}", 1] for i in range(40)]
    parts = split_file(spec_of(table("x.csv", ["a", "b", "label"], rows), text=("a", "b")), tmp_path / "out")
    train, dev = ({text for row in rows_of(part) for text in row[:2]} for part in (parts.train, parts.dev))
    assert not train & dev
    assert (len(rows_of(parts.dev)), parts.kept_together) == (16, "texts")


def test_when_all_pairs_hang_together_whole_pairs_stay_together(tmp_path: Path, table: Table) -> None:
    chain: list[list[object]] = [[f"t{i}", f"t{i + 1}", i % 2] for i in range(40)]
    swapped = [[b, a, label] for a, b, label in chain]
    source = table("x.csv", ["a", "b", "label"], chain + swapped)
    parts = split_file(spec_of(source, text=("a", "b")), tmp_path / "out")
    train, dev = ({frozenset(row[:2]) for row in rows_of(part)} for part in (parts.train, parts.dev))
    assert not train & dev
    assert (len(rows_of(parts.dev)), parts.kept_together) == (16, "pairs")


def test_no_class_is_only_in_dev(tmp_path: Path, table: Table) -> None:
    rows: list[list[object]] = [[f"text {i}", f"class {i}" if i < 10 else "common"] for i in range(60)]
    parts = split_file(spec_of(table("x.csv", ["text", "label"], rows), "classes"), tmp_path / "out")
    train, dev = ({row[1] for row in rows_of(part)} for part in (parts.train, parts.dev))
    assert dev <= train
    assert len(train) == 11


def test_no_class_of_several_is_only_in_dev(tmp_path: Path, table: Table) -> None:
    rows: list[list[object]] = [[f"text {i}", f"common|rare{i // 2}" if i % 2 else ""] for i in range(80)]
    spec = replace(spec_of(table("x.csv", ["text", "label"], rows), "multilabel"), separator="|")
    parts = split_file(spec, tmp_path / "out")
    train, dev = ({name for row in rows_of(part) for name in row[1].split("|")} for part in (parts.train, parts.dev))
    assert dev <= train
    assert len(train) == 42


def test_ragged_rows_are_counted_and_odd_text_survives(tmp_path: Path) -> None:
    content = "".join(f'"text ""{i}"",\nline two",{i % 2}\n' for i in range(30))
    (tmp_path / "x.csv").write_text(f"text,label\n{content}ragged,1,2\n")
    parts = split_file(spec_of(str(tmp_path / "x.csv")), tmp_path / "out")
    texts = {row[0] for part in (parts.train, parts.dev) for row in rows_of(part)}
    assert parts.dropped == 1
    assert texts == {f'text "{i}",\nline two' for i in range(30)}


@pytest.mark.parametrize("kind", ["yes_no", "tokens"])  # csv files, and JSON lines
def test_missing_values_stay_missing_and_no_text_is_unreadable(kind: str, tmp_path: Path) -> None:
    """NaN is how data frames mark a missing value; a NUL byte, which JSON can hold, is allowed in no text file."""
    lines = [{"text": f"text\0 {i}", "label": float("nan") if i % 2 else "O O"} for i in range(50)]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    spec = replace(spec_of(str(tmp_path / "x.jsonl"), kind), blank_labels="skip")
    parts = split_file(spec, tmp_path / "out")
    rows = rows_of(parts.train) + rows_of(parts.dev)
    assert sorted(rows, key=lambda row: int(row[0].split()[1])) == [
        [f"text\0 {i}" if kind == "tokens" else f"text {i}", ("" if kind == "yes_no" else None) if i % 2 else "O O"]
        for i in range(50)
    ]


def test_too_few_rows_to_split(tmp_path: Path, table: Table) -> None:
    source = table("x.csv", ["text", "label"], [["same", 1], ["same", 0]])
    with pytest.raises(UserError, match=r"x\.csv: 2 rows are too few, or too similar"):
        split_file(spec_of(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()
