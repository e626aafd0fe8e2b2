"""The lines of a text file in any encoding; what is no text is an error that says where. Knows no format of rows."""

import codecs
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from polytask.tasks.encoding import MARKS, find_encoding
from polytask.types import UserError

LONGEST_LINE = 16 * 2**20  # characters: longer than any document, and still little memory
NOT_OF_FILES = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"}
"""Python's codecs from text to text, or for single names: no file is written in them."""


def checked_encoding(source: str, file: Path, encoding: str | None, fallback: str | None = None) -> str:
    """The encoding to open the file with: the one given, if Python knows it and the first bytes do not contradict it.

    None is given: the encoding is found out from the file, with `fallback` for one that is neither UTF-8 nor UTF-16.
    """
    if encoding is None:
        try:
            encoding = find_encoding(source, file, fallback)
        except OSError as error:
            raise UserError(f"{source}: cannot be read ({error.strerror})") from error
    try:
        name = codecs.lookup(encoding).name
        if name.replace("_", "-") in NOT_OF_FILES:
            raise LookupError
        "".encode(encoding)  # refuses codecs that are no text encoding, such as base64
    except (LookupError, ValueError) as error:
        raise UserError(
            f"{source}: unknown encoding {encoding!r}; expected a name such as utf-8, utf-16, cp1252"
        ) from error
    try:
        with file.open("rb") as content:
            start = content.read(4)
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror})") from error
    for found, marks in MARKS.items():
        if start.startswith(marks) and not name.startswith(("utf-16", "utf-32")):
            raise UserError(
                f"{source}: starts as {found.upper()} does, and is read as {name}; set `encoding: {found}` or save it "
                "as UTF-8"
            )
    return "utf-8-sig" if name == "utf-8" else encoding


def read_lines(source: str, file: Path, encoding: str, newline: str) -> Iterator[str]:
    """The lines of a text file; what is no text is an error that says where."""
    try:
        with file.open(encoding=encoding, newline=newline) as lines:
            for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE), ""), start=1):
                if "\0" in line:
                    raise UserError(
                        f"{source}, line {number}: a NUL byte; expected a text file (if it is UTF-16, set "
                        "`encoding: utf-16-le` or `utf-16-be`, or save it as UTF-8)"
                    )
                if len(line) == LONGEST_LINE:
                    raise UserError(
                        f"{source}, line {number}: a line of {LONGEST_LINE:,} characters or more; expected one row "
                        "in each (is it one long list of JSON, or no text at all?)"
                    )
                yield line
    except UnicodeDecodeError:
        raise UserError(_undecodable(source, file, encoding)) from None
    except UnicodeError as error:  # a UTF-16 or UTF-32 file that does not say the order of its bytes
        raise UserError(f"{source}: {error}; set `encoding: {encoding}-le` or `{encoding}-be`") from None
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror})") from error


def _undecodable(source: str, file: Path, encoding: str) -> str:
    """Where the first byte stands that is not of the encoding: Python's own error counts from the last buffer."""
    decoder, done, lines = codecs.getincrementaldecoder(encoding)(), 0, 1
    with file.open("rb") as content:
        while True:
            chunk = content.read(2**16)
            try:
                lines += decoder.decode(chunk, final=not chunk).count("\n")
            except UnicodeDecodeError as error:
                start = done - (len(error.object) - len(chunk)) + error.start
                lines += error.object[: error.start].decode(encoding, "replace").count("\n")
                found = f"0x{error.object[error.start]:02x}"
                break
            done += len(chunk)
            assert chunk, "called for a file that cannot be decoded"
    name = "utf-8" if encoding == "utf-8-sig" else encoding
    return (
        f"{source}, line {lines}, byte {start + 1} of the file: {found} is not {name} text; save the file as UTF-8, or "
        "set `encoding` to the one it was written in (such as cp1252, cp1250 or mac_roman)"
    )
