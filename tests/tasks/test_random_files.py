"""Reading any bytes gives rows, broken rows or one UserError, and never another exception."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.kinds.table import KINDS
from polytask.serving.input import InputFile
from polytask.settings import TaskSpec
from polytask.tasks.guess import guess_task
from polytask.tasks.reading import Format, open_source
from polytask.tasks.rows import labelled_rows
from polytask.tasks.sources.source import BrokenRow
from polytask.types import LabelKind, UserError

FORMATS: list[Format] = ["csv", "tsv", "jsonl", "parquet", "xlsx"]

# Pieces that files are made of, right and wrong, so that random files get past the first check.
PIECES = [
    *(b"text", b"label", b"text,label\n", b"\n", b"\r\n", b"\r", b",", b"\t", b";", b"|", b'"', b'""', b'"a\nb"'),
    *(b"\0", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"1", b"0", b"nan", b"yes", b" "),
    *(
        b'{"text": "a", "label": 1}\n',
        b'{"text": "\\ud800", "label": NaN}\n',
        b"{",
        b"[1]",
        b'{"text"',
        b"\x1f",
        b"x" * 300,
    ),
]
content = st.binary(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


@contextmanager
def nothing_but_user_errors(file: Path) -> Iterator[None]:
    """And those name the file."""
    try:
        yield
    except UserError as error:
        if str(file) not in str(error):
            raise AssertionError(f"does not name the file: {error}") from error


@settings(max_examples=150, deadline=None)
@given(
    content=content,
    format=st.sampled_from(FORMATS),
    kind=st.sampled_from(["classes", "yes_no", "score"]),
    delimiter=st.none() | st.characters() | st.sampled_from(["tab", "comma", " ", "\0"]),
    quoting=st.sampled_from([None, "minimal", "none"]),
    encoding=st.sampled_from(
        [None, "utf-8", "utf-16", "utf-16-be", "latin-1", "cp1252", "shift_jis", "ascii", "utf-7", "idna"]
    ),
)
def test_random_bytes(folder: Path, content: bytes, format: Format, kind: LabelKind, **options: Any) -> None:
    file = folder / "x"
    file.write_bytes(content)
    spec = TaskSpec("t", kind, ("text",), "label", str(file), str(file), range=(0, 1))
    with nothing_but_user_errors(file):
        source = open_source(str(file), format=format, **options)
        for entry in labelled_rows(spec, source, KINDS[spec.kind].reader(spec)):
            if isinstance(entry, BrokenRow):
                assert entry.row > 0
                assert str(file) in str(entry)
            else:
                entry[1][0].encode()  # no half of a surrogate pair, which no file could hold


@settings(max_examples=60, deadline=None)
@given(content=content, ending=st.sampled_from(["csv", "tsv", "jsonl"]))
def test_guessing_and_predicting_on_random_bytes(folder: Path, content: bytes, ending: str) -> None:
    file = folder / f"x.{ending}"
    file.write_bytes(content)
    for read in (
        lambda: guess_task("t", str(file)),
        lambda: InputFile(open_source(str(file))).check(["text"], strict=False),
    ):
        with nothing_but_user_errors(file):
            read()


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(st.fixed_dictionaries({"text": json_value, "label": json_value}), min_size=1, max_size=6))
def test_any_json_in_every_cell(folder: Path, rows: list[dict[str, Any]]) -> None:
    file = folder / "cells.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind in ("classes", "yes_no", "score"):
        spec = TaskSpec("t", kind, ("text",), "label", str(file), str(file), range=(0, 1))  # type: ignore[arg-type]
        found = list(labelled_rows(spec, open_source(str(file)), KINDS[spec.kind].reader(spec)))
        assert [entry.row if isinstance(entry, BrokenRow) else entry[0] for entry in found] == list(
            range(1, len(rows) + 1)
        )


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), damage=st.binary(min_size=1, max_size=40))
def test_a_parquet_file_damaged_anywhere(folder: Path, place: float, damage: bytes) -> None:
    file = folder / "damaged.parquet"
    pq.write_table(pa.table({"text": [f"row {i}" for i in range(200)], "label": list(range(200))}), file)
    whole = file.read_bytes()
    at = int(place * len(whole))
    file.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
    with nothing_but_user_errors(file):
        source = open_source(str(file))
        list(source.rows(source.columns))
