"""Rows come out as they were written, whatever the format; what cannot be read is named with its place."""

import codecs
import csv
import io
import json
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.tasks.reading import BrokenRow, DelimitedSource, hub_names, no_column, open_source
from polytask.types import UserError


def write(folder: Path, name: str, content: str | bytes) -> str:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


def read(source: str, **options: object) -> list[object]:
    opened = open_source(source, **options)  # type: ignore[arg-type]
    return list(opened.rows(opened.columns))


# --- delimited files --------------------------------------------------------------------------------------------------

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
    rows: list[list[str]],
    delimiter: str,
    end: str,
    everything_quoted: bool,
) -> None:
    text = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if everything_quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([["a", "b", "c"], *rows])
    source = write(tmp_path_factory.mktemp("csv"), "x.csv", text.getvalue())
    found = read(source, delimiter=delimiter, quoting="minimal")
    assert [list(map(plain, row[1])) for row in found] == [list(map(plain, row)) for row in rows]  # type: ignore[index]


def plain(value: str) -> str:
    """Without what a lone carriage return, which the csv module does not quote, may become."""
    return value.replace("\r", " ").rstrip(" ")


def test_a_carriage_return_inside_a_text_does_not_end_the_row(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", 'text,label\none\rtwo,1\n"three\r\nfour",2\r\n')
    assert read(source) == [(2, ["one two", "1"]), (3, ["three\r\nfour", "2"])]


@pytest.mark.parametrize("delimiter", ["\t", ",", ";", "|"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "txt"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_delimiter_is_found_out_whatever_the_ending(tmp_path: Path, delimiter: str, ending: str, end: str) -> None:
    lines = [["text", "label"], ["a plain text", "1"], ['"quoted, with; all | of\tthem"', "0"]]
    source = write(tmp_path, f"x.{ending}", end.join(delimiter.join(line) for line in lines) + end)
    assert read(source) == [(2, ["a plain text", "1"]), (3, ["quoted, with; all | of\tthem", "0"])]


def test_stray_quotes_are_plain_text_when_that_makes_the_rows_regular(tmp_path: Path) -> None:
    source = write(tmp_path, "x.tsv", 'text\tlabel\n"Never" he said\t1\nan open " quote\t0\n"not closed\t1\nlast\t0\n')
    assert [row[1][0] for row in read(source)] == ['"Never" he said', 'an open " quote', '"not closed', "last"]  # type: ignore[index]


def test_a_late_stray_quote_counts_too(tmp_path: Path) -> None:
    rows = "".join(f"row {i}\t1\n" for i in range(1500))
    source = write(tmp_path, "x.tsv", f'text\tlabel\n{rows}"open\t0\nlast\t1\n')
    found = read(source)
    assert len(found) == 1502
    assert found[-2:] == [(1502, ['"open', "0"]), (1503, ["last", "1"])]


def test_one_bad_row_does_not_make_a_quoted_file_unquoted(tmp_path: Path) -> None:
    rows = "".join(f'"he said ""{i}"""\t1\n' for i in range(30))
    source = write(tmp_path, "x.tsv", f'text\tlabel\n{rows}"bad" quotes\t0\n')
    found = read(source)
    assert found[0] == (2, ['he said "0"', "1"])
    assert isinstance(found[-1], BrokenRow)
    assert found[-1].row == 32
    assert "set `quoting: none`" in found[-1].problem


def test_a_quoted_field_may_hold_lines_and_rows_are_counted_by_their_first_line(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", 'text,label\n"two\nlines",1\n\nlast,0\n')
    assert read(source) == [(2, ["two\nlines", "1"]), (5, ["last", "0"])]


def test_a_ragged_row_is_broken_and_the_next_is_read(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", "text,label\na,1\nb,2,3\nc\nd,4\n")
    first, too_many, too_few, last = read(source)
    assert (first, last) == ((2, ["a", "1"]), (5, ["d", "4"]))
    assert str(too_many) == (
        f"{source}, line 3: 3 fields, expected 2 as in the header (read with delimiter comma and quoting minimal)"
    )
    assert isinstance(too_few, BrokenRow)
    assert too_few.row == 4


def test_a_quote_that_is_never_closed_is_a_broken_row(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", 'text,label\na,1\n"open,1\nb,2\n')
    found = read(source, quoting="minimal")
    assert found[0] == (2, ["a", "1"])
    assert "line 3: a quote is opened here and never closed" in str(found[1])


def test_the_index_column_of_pandas_and_a_byte_order_mark(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", codecs.BOM_UTF8 + b"\tid\ttext\n0\tx1\thello\n")
    assert open_source(source).columns == ("", "id", "text")
    assert read(source) == [(2, ["0", "x1", "hello"])]
    assert list(open_source(source).rows(["text"])) == [(2, ["hello"])]


def test_one_column_files_keep_their_commas(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a.txt", "text\nhello, world\nby\tnow\n")) == [(2, ["hello, world"]), (3, ["by\tnow"])]
    assert read(write(tmp_path, "b.csv", 'text\n"hello, world"\nnow\n')) == [(2, ["hello, world"]), (3, ["now"])]


def test_options_are_obeyed(tmp_path: Path) -> None:
    source = write(tmp_path, "x.data", 'text;a,b\n"x";1\n')
    assert read(source, format="csv", delimiter="semicolon", quoting="none") == [(2, ['"x"', "1"])]
    assert read(source, format="csv", delimiter=",") != read(source, format="csv", delimiter=";")
    with pytest.raises(UserError, match="delimiter '::'; expected one character, or tab, comma, semicolon, pipe"):
        read(source, format="csv", delimiter="::")
    with pytest.raises(UserError, match=r"unknown ending '.data'; expected .csv, .tsv, .*or set `format`"):
        read(source)


def test_a_field_larger_than_the_csv_modules_limit(tmp_path: Path) -> None:
    assert len(read(write(tmp_path, "x.csv", f"text,label\n{'x' * 300_000},1\n"))[0][1][0]) == 300_000  # type: ignore[index]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.csv: the file is empty"),
        (b"text,label\n", r"x.csv: only a header line \(text, label\)"),
        (b"text,label,text\na,b,c\n", "x.csv: the header has column 'text' more than once"),
        (b"text,label\ngood,1\nbad \xe9,2\n", "x.csv, line 3, byte 23 of the file: 0xe9 is not utf-8 text"),
        (b"text,label\na\0b,1\n", "x.csv, line 2: a NUL byte"),
        ("text,label\na,1\n".encode("utf-16"), "starts as UTF-16 does, and is read as utf-8; set `encoding: utf-16`"),
        ("text,label\na,1\n".encode("utf-16-le"), "line 1: a NUL byte; expected a text file .if it is UTF-16"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, "x.csv", content))


def test_a_wrong_byte_far_into_the_file_is_placed_exactly(tmp_path: Path) -> None:
    good = "text,label\n" + "ä good row,1\n" * 20_000
    source = write(tmp_path, "x.csv", good.encode() + b"bad \xff,1\n")
    with pytest.raises(UserError, match=f"line 20002, byte {len(good.encode()) + 5} of the file: 0xff"):
        read(source)


def test_encodings(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a.csv", "text,b\né,1\n".encode("utf-16")), encoding="utf-16") == [(2, ["é", "1"])]
    assert read(write(tmp_path, "b.csv", "text,b\né,1\n".encode("cp1252")), encoding="cp1252") == [(2, ["é", "1"])]
    for name in ("klingon", "base64"):
        with pytest.raises(UserError, match=f"unknown encoding '{name}'"):
            open_source(write(tmp_path, "c.csv", b"a,b\n1,2\n"), encoding=name)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.csv: no such file"):
        open_source(str(tmp_path / "nothing.csv"))
    with pytest.raises(UserError, match="is a folder, expected a file"):
        open_source(str(tmp_path))


def test_fingerprint_follows_the_content_not_the_name(tmp_path: Path) -> None:
    one, same = write(tmp_path, "1.csv", "a,b\n1,2\n"), write(tmp_path, "2.csv", "a,b\n1,2\n")
    other = write(tmp_path, "3.csv", "a,b\n1,3\n")
    assert open_source(one).fingerprint() == open_source(same).fingerprint() != open_source(other).fingerprint()


def test_no_column_says_what_there_is(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, "x.csv", ",sentence,sentiment\n0,a,1\n"))
    message = str(no_column(source, "sentense"))
    assert message.endswith("no column 'sentense'; its columns are: sentence, sentiment; did you mean 'sentence'?")


# --- JSON lines, parquet, samples, the hub ----------------------------------------------------------------------------


def test_json_lines_and_their_broken_rows(tmp_path: Path) -> None:
    lines = [
        '{"text": "a", "label": 1}',
        "",
        "{oops",
        '["list"]',
        '{"text": "b"}',
        '{"label": 2.5, "text": null, "x": 0}',
    ]
    source = open_source(write(tmp_path, "x.jsonl", "\r\n".join(lines)))
    assert source.columns == ("text", "label")
    first, bad, no_object, no_label, last = source.rows(["text", "label"])
    assert (first, last) == ((1, ["a", 1]), (6, [None, 2.5]))
    assert "x.jsonl, line 3: '{oops': not valid JSON: " in str(bad)
    assert "line 4: '[\"list\"]': not a JSON object" in str(no_object)
    assert "line 5, column 'label': the line has no such key" in str(no_label)
    assert list(source.rows(["text", "label"], needed=["text"]))[3] == (5, ["b", None])


@pytest.mark.parametrize(("content", "message"), [("", "file is empty"), ("{oops\n", "line 1: '{oops'")])
def test_json_lines_without_a_first_object(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, "x.ndjson", content))


def test_json_that_is_too_deep_or_too_long_is_a_broken_row(tmp_path: Path) -> None:
    source = write(tmp_path, "x.jsonl", '{"a": 1}\n' + "[" * 200_000 + "\n" + '{"a": ' + "1" * 5000 + "}\n")
    first, deep, long = read(source)
    assert first == (1, [1])
    assert isinstance(deep, BrokenRow)
    assert len(deep.value) == 80
    assert isinstance(long, BrokenRow)


def test_parquet_is_read_in_batches_and_by_column(tmp_path: Path) -> None:
    table = pa.table({"text": [f"t{i}" for i in range(5000)], "label": pa.array([1, None] * 2500), "x": [[1]] * 5000})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=700)
    source = open_source(str(tmp_path / "x.parquet"))
    rows = list(source.rows(["label", "text"]))
    assert (source.columns, source.unit) == (("text", "label", "x"), "row")
    assert len(rows) == 5000
    assert rows[0] == (1, [1, "t0"])
    assert rows[-1] == (5000, [None, "t4999"])


def test_parquet_that_is_none_or_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.parquet: not a parquet file"):
        read(write(tmp_path, "x.parquet", "text"))
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "y.parquet")
    with pytest.raises(UserError, match=r"y\.parquet: a table without rows"):
        read(str(tmp_path / "y.parquet"))


def test_samples() -> None:
    assert open_source("sample:opinions-train").columns == ("text", "opinion")
    assert all(isinstance(row, tuple) for row in read("sample:opinions-train"))
    with pytest.raises(UserError, match=r"sample:nothing: no such sample; there are: .*opinions-train"):
        open_source("sample:nothing")
    with pytest.raises(UserError, match="no such sample"):
        open_source("sample:../sample/opinions-train")


@pytest.fixture
def local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set in a local folder, and no way to the net."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "data"
    folder.mkdir()
    for split, count in (("train", 3), ("test", 1)):
        rows = [{"text": f"{split} {i}", "label": i} for i in range(count)]
        write(folder, f"{split}.jsonl", "\n".join(map(json.dumps, rows)))
    return f"hub:{folder}"


def test_a_local_folder_through_the_hub_library(local_hub: str) -> None:
    source = open_source(f"{local_hub}#train")
    assert (source.columns, source.unit) == (("text", "label"), "row")
    assert list(source.rows(["label", "text"])) == [(1, [0, "train 0"]), (2, [1, "train 1"]), (3, [2, "train 2"])]
    assert source.fingerprint() == open_source(f"{local_hub}#train").fingerprint()
    assert source.fingerprint() != open_source(f"{local_hub}#test").fingerprint()
    with pytest.raises(UserError, match='Unknown split "dev"'):
        _ = open_source(f"{local_hub}#dev").columns
    with pytest.raises(UserError, match="expected hub:DATASET#SPLIT"):
        _ = open_source(local_hub).columns


def test_the_hub_library_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"hub:imdb#train: .*pip install 'polytask\[hub\]'"):
        _ = open_source("hub:imdb#train").columns


def test_what_a_hub_name_can_mean(tmp_path: Path) -> None:
    assert hub_names("imdb") == [("imdb", None)]
    assert hub_names("glue/mrpc") == [("glue/mrpc", None), ("glue", "mrpc")]
    assert hub_names("nyu-mll/glue/mrpc") == [("nyu-mll/glue", "mrpc")]
    assert hub_names(str(tmp_path)) == [(str(tmp_path), None)]
    assert hub_names(f"{tmp_path}/config") == [(str(tmp_path), "config")]
    with pytest.raises(UserError, match="expected OWNER/NAME/CONFIG at most"):
        _ = open_source("hub:a/b/c/d#train").columns


def test_the_dialect_is_found_once(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, "x.csv", "text\tlabel\na\t1\n"))
    assert isinstance(source, DelimitedSource)
    assert source.dialect == ("\t", "minimal")
    assert source.dialect is source.dialect
