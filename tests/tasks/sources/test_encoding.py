"""The encoding is detected from the bytes; an unclear one is an error, and never misread."""

import codecs
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from polytask.tasks.reading import detected_fields, open_source
from polytask.tasks.sources.encoding import CHUNK, find_encoding
from polytask.types import UserError

Write = Callable[[str, str | bytes], str]
Read = Callable[..., list[object]]

WESTERN = {
    "French": "Je l'ai trouvé très agréable, même créée à Noël : « œuvre » — 5 €",
    "German": "Die Tür öffnet sich für größere Männer – „äußerst schön“",  # noqa: RUF001
    "Spanish": "¿Qué pasó mañana? ¡Nada! El niño está aquí",
    "English": "It’s “fine” – really…",  # noqa: RUF001
    "Danish": "Rødgrød med fløde på Ærø",
    "Icelandic": "Það er gott veður í dag og ég þarf að fara",
    "Portuguese": "Não é à toa que a ação começou",
}
OTHERS = [
    ("Это очень хороший фильм", ["cp1251", "koi8-r", "cp866", "iso8859-5"]),
    ("Αυτή είναι μια πολύ καλή ταινία", ["cp1253"]),
    ("Zażółć gęślą jaźń, to był bardzo mały złoty pieniądz", ["cp1250", "iso8859-2"]),
    ("Bu çok güzel bir şey değil mi, ışık", ["cp1254"]),  # noqa: RUF001
    ("これはとても良い映画です", ["shift_jis", "euc_jp"]),
    ("这是一部很好的电影", ["gbk"]),
    ("這是一部很好的電影", ["big5"]),
    ("이것은 아주 좋은 영화입니다", ["cp949"]),
    ("זה סרט טוב מאוד", ["cp1255"]),
    ("هذا فيلم جيد جدا", ["cp1256"]),
    (WESTERN["French"].replace("—", "-"), ["mac-roman"]),
    ("Die Tür öffnet sich für größere Männer", ["cp850", "mac-roman"]),
]


def found(write: Write, content: bytes) -> str:
    return find_encoding("x.csv", Path(write("x.csv", content)))


@pytest.mark.parametrize("language", WESTERN)
def test_excels_encodings(write: Write, read: Read, language: str) -> None:
    table = f"text;label\r\n{WESTERN[language]};1\r\nplain;0\r\n"
    for encoding in ("utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        assert read(write("x.csv", table.encode(encoding))) == [(2, [WESTERN[language], "1"]), (3, ["plain", "0"])]
    big_endian = codecs.BOM_UTF16_BE + table.encode("utf-16-be")
    assert read(write("x.csv", big_endian))[0] == (2, [WESTERN[language], "1"])


@pytest.mark.parametrize(("text", "encodings"), OTHERS)
def test_other_encodings_are_not_taken_for_windows_1252(write: Write, text: str, encodings: list[str]) -> None:
    for encoding in encodings:
        assert found(write, f"text,label\n{text},1\n".encode(encoding)) == "utf-8"
    for encoding in ("utf-8", "utf-16", "utf-16-le", "utf-16-be"):
        assert found(write, f"text,label\n{text},1\n".encode(encoding)) == encoding


def test_a_utf_8_file_with_a_wrong_byte_stays_utf_8(write: Write) -> None:
    assert found(write, "é è à\n".encode() + b"caf\xe9 wrong\n") == "utf-8"
    assert found(write, "é\n".encode() + b"caf\xe9 l\xe0 tr\xe8s\n") == "cp1252"


def test_a_byte_that_windows_1252_does_not_have_is_named(write: Write, read: Read) -> None:
    good = "text,label\n" + "".join(f"très bon numéro {i},1\n" for i in range(50))
    source = write("x.csv", good.encode("cp1252") + b"bad \x81,1\n")
    with pytest.raises(UserError, match=f"line 52, byte {len(good) + 5} of the file: 0x81 is not valid cp1252"):
        read(source)


def test_nul_bytes_in_other_text_are_no_utf_16(write: Write, read: Read) -> None:
    for content in (b"text,label\na\0b,1\n", b"\0" * 100, b"text,label\n\0a,1\n", b"t\0,\0\n\0\0\0"):
        with pytest.raises(UserError, match="a NUL byte"):
            read(write("x.csv", content))


def test_a_character_on_the_border_of_two_chunks(write: Write) -> None:
    for shift in range(4):
        text = "a" * (CHUNK - shift) + "é€😀\n"
        assert found(write, text.encode()) == "utf-8"
        assert found(write, (text * 2).replace("😀", "").encode("cp1252")) == "cp1252"


def test_memory_does_not_grow_with_the_file(write: Write) -> None:
    peaks = []
    for copies in (4, 16):
        file = Path(write("x.csv", b"plain words\n" * (copies * CHUNK // 12) + "déjà vu\n".encode("cp1252")))
        tracemalloc.start()
        assert find_encoding("x.csv", file) == "cp1252"
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_a_fallback_is_used_for_what_is_not_unicode(write: Write, read: Read) -> None:
    text = "Příliš žluťoučký kůň"
    source = write("x.csv", f"text,label\n{text},1\n".encode("cp1250"))
    assert read(source, fallback="cp1250") == [(2, [text, "1"])]
    assert find_encoding("x.csv", Path(write("y.csv", b"d\xe9j\xe0 vu\n")), fallback="UTF-16") == "cp1252"
    assert read(write("x.csv", f"text,label\n{text},1\n"), fallback="cp1250") == [(2, [text, "1"])]


def test_a_given_encoding_is_not_detected(write: Write, read: Read) -> None:
    source = write("x.csv", "text,label\ncafé,1\n".encode("cp1252"))
    with pytest.raises(UserError, match="0xe9 is not valid utf-8"):
        read(source, encoding="utf-8")
    with pytest.raises(
        UserError, match="encoding is utf-8, but the file starts with the byte order mark of UTF-16; set"
    ):
        read(write("x.csv", "text,label\na,1\n".encode("utf-16")), encoding="utf-8")


def test_a_workbook_with_the_ending_of_a_text(write: Write) -> None:
    with pytest.raises(
        UserError, match=r"x\.csv: expected a text file, found an Excel workbook .* rename a workbook to \.xlsx"
    ):
        open_source(write("x.csv", b"PK\x03\x04" + bytes(40)))


def test_the_fields_that_were_found(write: Write) -> None:
    text = "text;label\ncafé;1\n"
    assert detected_fields(open_source(write("x.csv", text.encode("cp1252")))) == {
        "encoding": "cp1252",
        "delimiter": "semicolon",
    }
    assert detected_fields(open_source(write("x.txt", text.replace(";", "\t").encode("utf-16")))) == {
        "encoding": "utf-16"
    }
    assert detected_fields(open_source(write("x.csv", "text,label\ncafé,1\n"))) == {}
    assert detected_fields(open_source(write("x.csv", "text\ncafé\n"))) == {}
    assert detected_fields(open_source("sample:opinions-train")) == {}
