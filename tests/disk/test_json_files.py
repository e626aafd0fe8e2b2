"""Small text files, JSON files and JSON Lines files: what is read, and which file and line an error names."""

from pathlib import Path

import pytest

from polytask.disk.json_files import read_json, read_json_lines, read_text
from polytask.types import UserError


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff{}", "is not UTF-8 text"),
        (b"[" * 200_000, "its brackets are nested too deeply"),
        (b"[1]", "must contain a JSON object, found list"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "is not valid JSON"),
    ],
)
def test_an_invalid_json_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "side.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"side.json.* {message}"):
        read_json(path)


def test_json_lines_are_read_up_to_an_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "side.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n{"unfinish')
    assert list(read_json_lines(path)) == [{"a": 1}, {"b": 2}]
    assert list(read_json_lines(path, containing=b'"b"')) == [{"b": 2}]
    for bad in (b"[1]", b"\xff", b"{", b"[" * 200_000):
        path.write_bytes(b'{"a": 1}\n' + bad + b"\n")
        with pytest.raises(UserError, match=r"side\.jsonl, line 2 is not"):
            list(read_json_lines(path))
    with pytest.raises(UserError, match="none cannot be read"):
        list(read_json_lines(tmp_path / "none"))


def test_a_text_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="/dev/zero: the recipe is larger than 1,048,576 bytes"):
        read_text(Path("/dev/zero"), "recipe")
    (tmp_path / "x").write_bytes(b"a\r\nb\rc\n")
    assert read_text(tmp_path / "x", "recipe") == "a\nb\nc\n"
