"""The delimiter and the quoting are detected from the file."""

from collections.abc import Callable

import pytest

from polytask.tasks.reading import open_source
from polytask.tasks.sources.delimited import DelimitedSource
from polytask.tasks.sources.source import BrokenRow

Write = Callable[[str, str | bytes], str]
Read = Callable[..., list[object]]


@pytest.mark.parametrize("delimiter", ["\t", ",", ";", "|"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "txt"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_delimiter_is_detected_for_any_extension(
    write: Write, read: Read, delimiter: str, ending: str, end: str
) -> None:
    lines = [["text", "label"], ["a plain text", "1"], ['"quoted, with; all | of\tthem"', "0"]]
    source = write(f"x.{ending}", end.join(delimiter.join(line) for line in lines) + end)
    assert read(source) == [(2, ["a plain text", "1"]), (3, ["quoted, with; all | of\tthem", "0"])]


def test_stray_quotes_are_plain_text_when_that_makes_the_rows_regular(write: Write, read: Read) -> None:
    source = write("x.tsv", 'text\tlabel\n"Never" he said\t1\nan open " quote\t0\n"not closed\t1\nlast\t0\n')
    assert [row[1][0] for row in read(source)] == ['"Never" he said', 'an open " quote', '"not closed', "last"]  # type: ignore[index]


def test_a_late_stray_quote_counts_too(write: Write, read: Read) -> None:
    rows = "".join(f"row {i}\t1\n" for i in range(1500))
    source = write("x.tsv", f'text\tlabel\n{rows}"open\t0\nlast\t1\n')
    found = read(source)
    assert len(found) == 1502
    assert found[-2:] == [(1502, ['"open', "0"]), (1503, ["last", "1"])]


def test_one_bad_row_does_not_make_a_quoted_file_unquoted(write: Write, read: Read) -> None:
    rows = "".join(f'"he said ""{i}"""\t1\n' for i in range(30))
    source = write("x.tsv", f'text\tlabel\n{rows}"bad" quotes\t0\n')
    found = read(source)
    assert found[0] == (2, ['he said "0"', "1"])
    assert isinstance(found[-1], BrokenRow)
    assert found[-1].row == 32
    assert "set `quoting: none`" in found[-1].problem


def test_one_column_files_keep_their_commas(write: Write, read: Read) -> None:
    assert read(write("a.txt", "text\nhello, world\nby\tnow\n")) == [(2, ["hello, world"]), (3, ["by\tnow"])]
    assert read(write("b.csv", 'text\n"hello, world"\nnow\n')) == [(2, ["hello, world"]), (3, ["now"])]


def test_texts_full_of_commas_in_a_file_with_semicolons(write: Write, read: Read) -> None:
    rows = "".join(f"well, {'so, ' * (i % 4)}then;{i},5;x\n" for i in range(20))
    assert read(write("a.csv", f"text;price;label\n{rows}"))[1] == (3, ["well, so, then", "1,5", "x"])
    # The header itself has a comma, and every row one too.
    assert read(write("b.csv", "text;price, net;label\na;1,5;x\nb;2,5;y\n"))[1] == (3, ["b", "2,5", "y"])


def test_a_field_larger_than_the_csv_modules_limit(write: Write, read: Read) -> None:
    assert len(read(write("x.csv", f"text,label\n{'x' * 300_000},1\n"))[0][1][0]) == 300_000  # type: ignore[index]


def test_the_dialect_is_found_once(write: Write) -> None:
    source = open_source(write("x.csv", "text\tlabel\na\t1\n"))
    assert isinstance(source, DelimitedSource)
    assert source.dialect == ("\t", "minimal")
    assert source.dialect is source.dialect
