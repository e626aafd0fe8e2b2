"""Texts and labels are checked row by row, and errors name the row and column."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polytask.kinds.table import KINDS
from polytask.settings import TaskSpec
from polytask.tasks.reading import open_source
from polytask.tasks.rows import LabelledRow, labelled_rows
from polytask.tasks.sources.source import BrokenRow
from polytask.types import UserError

Write = Callable[[str, str | bytes], str]


def test_too_many_classes_names_the_column(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytask.kinds.names.MOST_CLASSES", 2)
    train = write("t.csv", "text,label\na,x\nb,y\nc,z\n")
    source = open_source(train)
    spec = TaskSpec("t", "classes", ("text",), "label", train, train)
    with pytest.raises(UserError) as error:
        list(labelled_rows(spec, source, KINDS[spec.kind].reader(spec)))
    assert (
        str(error.value) == f"{train}, line 4, column 'label': more than 2 different labels; is this the label column?"
    )


def test_labelled_rows_and_what_is_wrong_with_each(write: Write) -> None:
    rows = ['{"a": "x", "b": 1.5, "y": "no"}', '{"a": " ", "b": null, "y": 1}', '{"a": "x", "b": ["l"], "y": 1}']
    rows += ['{"a": "x", "b": "y", "y": "maybe"}', '{"a": "x", "b": "y"}', '{"a": 0, "b": false, "y": true}']
    source = open_source(write("in.jsonl", "\n".join(rows)))
    spec = TaskSpec("t", "yes_no", ("a", "b"), "y", source.name, source.name)
    first, empty, a_list, no_label, no_key, last = labelled_rows(spec, source, KINDS[spec.kind].reader(spec))
    assert (first, last) == (LabelledRow(1, ("x", "1.5"), 0), LabelledRow(6, ("0", "False"), 1))
    assert empty == BrokenRow(source.name, "line", 2, "a", " ", "the text is empty")  # the first of two that are
    assert a_list == BrokenRow(source.name, "line", 3, "b", "['l']", "a list or table; expected text")
    assert isinstance(no_label, BrokenRow)
    assert (no_label.row, no_label.column, no_label.value) == (4, "y", "maybe")
    assert str(no_key) == f"{source.name}, line 5, column 'y': the line has no such key"
    with pytest.raises(UserError, match=r"no column 'c'; its columns are: a, b, y\n.*no column 'd'"):
        next(labelled_rows(TaskSpec("t", "yes_no", ("c",), "d", "", ""), source, KINDS[spec.kind].reader(spec)))


def test_bytes_of_a_parquet_file_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": [b"x"], "y": ["no"]}), file)
    source = open_source(str(file))
    spec = TaskSpec("t", "yes_no", ("a",), "y", source.name, source.name)
    (row,) = labelled_rows(spec, source, KINDS[spec.kind].reader(spec))
    assert str(row) == f"{file}, row 1, column 'a': \"b'x'\": bytes; expected text: write the column as strings"
