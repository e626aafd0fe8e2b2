"""Errors name the line and the byte that is not text, in any encoding."""

from collections.abc import Callable

import pytest

from polytask.tasks.reading import open_source
from polytask.types import UserError

Write = Callable[[str, str | bytes], str]
Read = Callable[..., list[object]]


def test_a_wrong_byte_far_into_the_file_is_placed_exactly(write: Write, read: Read) -> None:
    good = "text,label\n" + "ä good row,1\n" * 20_000
    source = write("x.csv", good.encode() + b"bad \xff,1\n")
    with pytest.raises(UserError, match=f"line 20002, byte {len(good.encode()) + 5} of the file: 0xff"):
        read(source)


def test_encodings(write: Write, read: Read) -> None:
    assert read(write("a.csv", "text,b\né,1\n".encode("utf-16")), encoding="utf-16") == [(2, ["é", "1"])]
    assert read(write("b.csv", "text,b\né,1\n".encode("cp1252")), encoding="cp1252") == [(2, ["é", "1"])]
    for name in ("klingon", "base64"):
        with pytest.raises(UserError, match=f"unknown encoding '{name}'"):
            open_source(write("c.csv", b"a,b\n1,2\n"), encoding=name)
