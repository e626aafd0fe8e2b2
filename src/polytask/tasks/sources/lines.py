"""Reads the lines of a text file in any encoding. Knows no format of rows."""

import codecs
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from polytask.tasks.sources.encoding import MARKS, find_encoding
from polytask.types import UserError

LONGEST_LINE = 16 * 2**20  # characters: longer than any document, but little memory
NOT_OF_FILES = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"}
"""Python's codecs that no file is written in: from text to text, or for single names."""


def checked_encoding(source: str, file: Path, encoding: str | None, fallback: str | None = None) -> str:
    """Returns the given encoding if Python knows it and the file's first bytes do not contradict it.

    If none is given, the encoding is detected, with `fallback` for a file that is neither UTF-8 nor UTF-16.
    """
    if encoding is None:
        try:
            encoding = find_encoding(source, file, fallback)
        except OSError as error:
            raise UserError(f"{source}: cannot read the file ({error.strerror})") from error
    try:
        name = codecs.lookup(encoding).name
        if name.replace("_", "-") in NOT_OF_FILES:
            raise LookupError
        "".encode(encoding)  # raises for codecs that are not text encodings, such as base64
    except (LookupError, ValueError) as error:
        raise UserError(
            f"{source}: unknown encoding {encoding!r}; expected a name such as utf-8, utf-16, cp1252"
        ) from error
    try:
        with file.open("rb") as content:
            start = content.read(4)
    except OSError as error:
        raise UserError(f"{source}: cannot read the file ({error.strerror})") from error
    for marked, marks in MARKS.items():
        if start.startswith(marks) and not name.startswith(("utf-16", "utf-32")):
            raise UserError(
                f"{source}: encoding is {name}, but the file starts with the byte order mark of {marked.upper()}; set "
                f"`encoding: {marked}` or save the file as UTF-8"
            )
    return "utf-8-sig" if name == "utf-8" else encoding


def read_lines(source: str, file: Path, encoding: str, newline: str) -> Iterator[str]:
    """Yields the lines of a text file; raises a UserError that names the line where it is not text."""
    try:
        with file.open(encoding=encoding, newline=newline) as lines:
            for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE), ""), start=1):
                if "\0" in line:
                    raise UserError(
                        f"{source}, line {number}: expected a text file, found a NUL byte (if it is UTF-16, set "
                        "`encoding: utf-16-le` or `utf-16-be`, or save it as UTF-8)"
                    )
                if len(line) == LONGEST_LINE:
                    raise UserError(
                        f"{source}, line {number}: the line has {LONGEST_LINE:,} characters or more; expected one row "
                        "per line (is the file one long JSON list, or not text?)"
                    )
                yield line
    except UnicodeDecodeError:
        raise UserError(_undecodable(source, file, encoding)) from None
    except UnicodeError as error:  # a UTF-16 or UTF-32 file without a byte order mark
        raise UserError(f"{source}: {error}; set `encoding: {encoding}-le` or `{encoding}-be`") from None
    except OSError as error:
        raise UserError(f"{source}: cannot read the file ({error.strerror})") from error


def _undecodable(source: str, file: Path, encoding: str) -> str:
    """Says where the first undecodable byte is; the position in Python's own error counts from the last buffer."""
    decoder, done, lines = codecs.getincrementaldecoder(encoding)(), 0, 1
    with file.open("rb") as content:
        while True:
            chunk = content.read(2**16)
            try:
                lines += decoder.decode(chunk, final=not chunk).count("\n")
            except UnicodeDecodeError as error:
                start = done - (len(error.object) - len(chunk)) + error.start
                lines += error.object[: error.start].decode(encoding, "replace").count("\n")
                byte = f"0x{error.object[error.start]:02x}"
                break
            done += len(chunk)
            assert chunk, "called for a file that cannot be decoded"
    name = "utf-8" if encoding == "utf-8-sig" else encoding
    return (
        f"{source}, line {lines}, byte {start + 1} of the file: {byte} is not valid {name}; save the file as UTF-8, or "
        "set `encoding` to its encoding (such as cp1252, cp1250 or mac_roman)"
    )
