"""Rows of csv and tsv files are read as they were written; errors name the line."""

import codecs
import csv
import io
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.tasks.reading import open_source
from polytask.tasks.sources.source import BrokenRow
from polytask.types import UserError

Write = Callable[[str, str | bytes], str]
Read = Callable[..., list[object]]


field = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(field, min_size=3, max_size=3), min_size=1, max_size=8),
    delimiter=st.sampled_from("\t,;|"),
    end=st.sampled_from(["\n", "\r\n"]),
    everything_quoted=st.booleans(),
)
def test_what_the_csv_module_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    read: Read,
    rows: list[list[str]],
    delimiter: str,
    end: str,
    everything_quoted: bool,
) -> None:
    text = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if everything_quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([["a", "b", "c"], *rows])
    source = tmp_path_factory.mktemp("csv") / "x.csv"
    source.write_bytes(text.getvalue().encode())
    found = read(str(source), delimiter=delimiter, quoting="minimal")
    assert [list(map(plain, row[1])) for row in found] == [list(map(plain, row)) for row in rows]  # type: ignore[index]


def plain(value: str) -> str:
    """Without what a lone carriage return, which the csv module does not quote, may become."""
    return value.replace("\r", " ").rstrip(" ")


def test_a_carriage_return_inside_a_text_does_not_end_the_row(write: Write, read: Read) -> None:
    source = write("x.csv", 'text,label\none\rtwo,1\n"three\r\nfour",2\r\n')
    assert read(source) == [(2, ["one two", "1"]), (3, ["three\r\nfour", "2"])]


def test_a_quoted_field_may_hold_lines_and_rows_are_counted_by_their_first_line(write: Write, read: Read) -> None:
    source = write("x.csv", 'text,label\n"two\nlines",1\n\nlast,0\n')
    assert read(source) == [(2, ["two\nlines", "1"]), (5, ["last", "0"])]


def test_a_ragged_row_is_broken_and_the_next_is_read(write: Write, read: Read) -> None:
    source = write("x.csv", "text,label\na,1\nb,2,3\nc\nd,4\n")
    first, too_many, too_few, last = read(source)
    assert (first, last) == ((2, ["a", "1"]), (5, ["d", "4"]))
    assert str(too_many) == (
        f"{source}, line 3: 3 fields, expected 2 as in the header (read with delimiter comma and quoting minimal)"
    )
    assert isinstance(too_few, BrokenRow)
    assert too_few.row == 4


def test_a_quote_that_is_never_closed_is_a_broken_row(write: Write, read: Read) -> None:
    source = write("x.csv", 'text,label\na,1\n"open,1\nb,2\n')
    found = read(source, quoting="minimal")
    assert found[0] == (2, ["a", "1"])
    assert "line 3: a quote is opened here and never closed" in str(found[1])


def test_the_index_column_of_pandas_and_a_byte_order_mark(write: Write, read: Read) -> None:
    source = write("x.csv", codecs.BOM_UTF8 + b"\tid\ttext\n0\tx1\thello\n")
    assert open_source(source).columns == ("", "id", "text")
    assert read(source) == [(2, ["0", "x1", "hello"])]
    assert list(open_source(source).rows(["text"])) == [(2, ["hello"])]


def test_options_are_obeyed(write: Write, read: Read) -> None:
    source = write("x.data", 'text;a,b\n"x";1\n')
    assert read(source, format="csv", delimiter="semicolon", quoting="none") == [(2, ['"x"', "1"])]
    assert read(source, format="csv", delimiter=",") != read(source, format="csv", delimiter=";")
    with pytest.raises(UserError, match="delimiter must be one character, or tab, comma, semicolon, pipe, found '::'"):
        read(source, format="csv", delimiter="::")
    with pytest.raises(UserError, match=r"unknown extension '.data'; expected .csv, .tsv, .*or set `format`"):
        read(source)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [";", ",", "\t", "^"])
def test_the_delimiter_that_excel_declares(write: Write, read: Read, encoding: str, end: str, delimiter: str) -> None:
    lines = [f"sep={delimiter}", delimiter.join(["text", "label"]), delimiter.join(['"é, ; it\'s"', "1"])]
    source = write("x.csv", (end.join(lines) + end).encode(encoding))
    assert read(source) == [(3, ["é, ; it's", "1"])]  # the line of the file, the declaration counted
    assert read(write("y.csv", "SEP=;\na,b\n1,2\n"), delimiter="comma") == [(3, ["1", "2"])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.csv: the file is empty"),
        (b"text,label\n", r"x.csv: no rows below the header line \(text, label\)"),
        (b"text,label,text\na,b,c\n", "x.csv: column names must be unique, found 'text'"),
        (b"text,label\ngood,1\nbad \x81,2\n", "x.csv, line 3, byte 23 of the file: 0x81 is not valid utf-8"),
        (b"text,label\na\0b,1\n", "x.csv, line 2: expected a text file, found a NUL byte"),
    ],
)
def test_files_that_cannot_be_read(write: Write, read: Read, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(write("x.csv", content))
