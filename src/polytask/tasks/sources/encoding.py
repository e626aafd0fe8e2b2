"""Detects the encoding of a text file from its bytes. Knows no format of rows."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from polytask.types import UserError

MARKS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
"""Byte order marks. UTF-32 comes first: its little-endian mark starts with that of UTF-16."""
ZIP, OLD_OFFICE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
WINDOWS = "cp1252"
CHUNK = 2**18
ENOUGH = 100_000  # bytes above 127 that are enough to recognize an encoding
FEWEST_ZEROS = 0.1
"""The least share of zeros among the upper bytes of UTF-16: those of delimiters, digits and line ends are zero."""
MOST_ODD = 0.1
"""The largest share of odd bytes among those above 127 in a Windows-1252 file."""

WIDE = re.compile("utf[-_ ]?(16|32)", re.IGNORECASE)
HIGH_BYTES = bytes(range(128, 256))
CONTROL = re.compile(r"[\0-\x08\x0e-\x1f]")
# Rare in Western European text: long runs of accented letters and signs (frequent in Cyrillic, Greek and Asian
# encodings), a capital accent after a small letter (Mac Roman), a sign inside or in front of a word (DOS and Central
# European code pages, Big5), bytes that Windows-1252 does not define, and control characters.
ODD = re.compile(
    rb"[\xa1-\xaa\xac-\xba\xbc-\xff]{3,}|[\x80\x82-\x84\x86-\x8c\x98-\x9c\x9f\xa1-\xaa\xac-\xba\xbc-\xff]{4,}"
    rb"|(?<=[a-z])[\x8a\x8c\x8e\x9f\xc0-\xd6\xd8-\xde]"
    rb"|(?<=[A-Za-z])[\x80\x82\x84\x86-\x89\x8b\x98\x9b\xa1-\xa9\xac\xae-\xb3\xb5\xb6\xb8\xb9\xbc-\xbf\xd7\xf7](?=[A-Za-z])"
    rb"|[\xa4\xac\xae\xb1-\xb3\xb6\xb8\xb9\xbc-\xbe](?=[A-Za-z])"
    rb"|(?<![A-Za-z])\xff|[\x81\x8d\x8f\x90\x9d]|[\0-\x08\x0e-\x1f]"
)


def find_encoding(source: str, file: Path, fallback: str | None = None) -> str:
    """Returns UTF-8, UTF-16 or UTF-32, or for a file that is none of them `fallback` or Windows-1252.

    For bytes that are not sensible text in any of these it returns utf-8, so that reading stops at the first wrong
    byte. Reads a chunk at a time, so that memory stays constant.
    """
    start = next(_chunks(file), b"")
    if start.startswith((ZIP, OLD_OFFICE)):
        raise UserError(
            f"{source}: expected a text file, found an Excel workbook or another archive; rename a workbook to .xlsx, "
            "or set `format: xlsx`"
        )
    for encoding, marks in MARKS.items():
        if start.startswith(marks):
            return encoding
    if b"\0" in start:
        return _utf_16_without_mark(start) or "utf-8"
    if _is_utf_8(file):
        return "utf-8"
    if fallback is not None and not WIDE.match(fallback):
        return fallback
    return WINDOWS if _is_windows_1252(file) else "utf-8"


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            yield chunk


def _is_utf_8(file: Path) -> bool:
    """Whether the file is UTF-8. The search ends at a NUL byte, where reading stops in any encoding."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in _chunks(file):
            if b"\0" in chunk:
                return True
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _utf_16_without_mark(start: bytes) -> str | None:
    """Returns the byte order in which the start of the file is lines of text, if only one of the two gives that."""
    pairs = len(start) // 2
    fitting = []
    for name, upper, lower in (("utf-16-le", start[1::2], start[0::2]), ("utf-16-be", start[0::2], start[1::2])):
        if upper.count(0) < max(4, FEWEST_ZEROS * pairs, 4 * lower.count(0)):
            continue
        try:
            text = codecs.getincrementaldecoder(name)().decode(start)  # the chunk may end inside a character
        except UnicodeDecodeError:
            continue
        if ("\n" in text or "\r" in text) and not CONTROL.search(text):
            fitting.append(name)
    return fitting[0] if len(fitting) == 1 else None


def _is_windows_1252(file: Path) -> bool:
    """Whether the bytes above 127 are Western European text, and not UTF-8 with a few wrong bytes."""
    high = odd = in_utf_8 = 0
    for chunk in _chunks(file):
        if chunk.isascii():
            continue
        high += _num_high(chunk)
        odd += sum(len(match[0]) for match in ODD.finditer(chunk))
        in_utf_8 += _num_high(chunk.decode("utf-8", "ignore").encode())
        if high >= ENOUGH:
            break
    return in_utf_8 <= high / 2 and odd <= MOST_ODD * high


def _num_high(content: bytes) -> int:
    return len(content) - len(content.translate(None, HIGH_BYTES))
