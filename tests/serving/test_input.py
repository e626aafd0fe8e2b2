"""Files of rows to predict: every column and key, and what is wrong with a row before it is used."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polytask.serving.input import Dialect, InputFile
from polytask.tasks.reading import open_source
from polytask.types import UserError


def opened(path: Path, content: str) -> InputFile:
    path.write_text(content, encoding="utf-8")
    return InputFile(open_source(str(path)))


def test_texts_and_missing_texts(tmp_path: Path) -> None:
    values = ["a", 1, 0.5, None, "", " \n", float("nan")]
    file = opened(tmp_path / "in.jsonl", "".join(json.dumps({"id": 0, "a": value}) + "\n" for value in values) + "{}\n")
    found = [file.texts(number, record, ["a"], strict=False)["a"] for number, record in file.records()]
    assert found == ["a", "1", "0.5", None, None, None, None, None]
    file.check(["a"], strict=False)
    with pytest.raises(UserError, match=r"in\.jsonl, line 4, column 'a': the text is empty"):
        file.check(["a"], strict=True)
    with pytest.raises(UserError, match="no column 'b'; its columns are: id, a"):
        file.check(["b"], strict=False)


def test_a_column_of_a_conll_file_with_two_names_is_written_once(tmp_path: Path) -> None:
    file = opened(tmp_path / "in.conll", "# global.columns = FORM NER\nEU B-ORG\n")
    ((_, record),) = file.records()
    assert record["0"] == record["FORM"] == ["EU"]
    assert file.written_columns == ("FORM", "NER")
    assert file.written(record) == {"FORM": ["EU"], "NER": ["B-ORG"]}
    file = opened(tmp_path / "in.jsonl", '{"a": 1}\n{"b": 2}\n')
    assert file.written_columns == ("a", "b")
    assert [file.written(record) for _, record in file.records()] == [{"a": 1}, {"b": 2}]


def test_a_list_is_no_text(tmp_path: Path) -> None:
    file = opened(tmp_path / "in.jsonl", '{"a": "x"}\n{"a": ["x"]}\n')
    with pytest.raises(UserError, match=r"line 2, column 'a': .*a list or table; expected text"):
        file.check(["a"], strict=False)


def test_a_text_column_that_the_first_line_lacks(tmp_path: Path) -> None:
    file = opened(tmp_path / "in.jsonl", '{"id": 1}\n{"id": 2, "a": "x"}\n')
    assert file.columns == ("id", "a")
    file.check(["a"], strict=False)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    file = opened(tmp_path / "in.jsonl", '{"a": "x"}\n')
    assert file.columns == ("a",)
    (tmp_path / "in.jsonl").write_text('{"a": "x"}\n{"b": "x"}\n')
    with pytest.raises(UserError, match="changed while it was read"):
        file.check(["a"], strict=False)


def test_two_parquet_columns_without_a_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["", "text", ""])
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(UserError, match="2 columns have no name"):
        InputFile(open_source(str(tmp_path / "in.parquet"))).check(["text"], strict=False)


@pytest.mark.parametrize(
    ("content", "dialect"),
    [
        ("a;b\n1;2\n", Dialect(";", "utf-8")),
        ("\ufeffa\tb\n1\t2\n", Dialect("\t", "utf-8-sig")),
        ("a\n1, 2\n1, 2, 3\n", Dialect(None, "utf-8")),
    ],
)
def test_the_dialect_found(tmp_path: Path, content: str, dialect: Dialect) -> None:
    assert opened(tmp_path / "in.csv", content).dialect == dialect
    assert opened(tmp_path / "in.jsonl", '{"a": 1}').dialect is None


def test_text_in_other_encodings_is_written_so_that_excel_reads_it(tmp_path: Path) -> None:
    for encoding in ("cp1252", "utf-16"):
        (tmp_path / "in.csv").write_bytes("id;text\n1;café\n".encode(encoding))
        source = open_source(str(tmp_path / "in.csv"), encoding=encoding)
        assert InputFile(source).dialect == Dialect(";", "utf-8-sig")
