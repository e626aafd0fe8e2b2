"""The lines of a text file in any encoding; what is no text is an error that says where. Knows no format of rows."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from polytask.types import UserError


def checked_encoding(source: str, file: Path, encoding: str) -> str:
    """The encoding to open the file with: one that Python knows, and that its first bytes do not speak against."""
    try:
        name = codecs.lookup(encoding).name
        "".encode(encoding)  # refuses codecs that are no text encoding, such as base64
    except LookupError as error:
        raise UserError(
            f"{source}: unknown encoding {encoding!r}; expected a name such as utf-8, utf-16, cp1252"
        ) from error
    try:
        with file.open("rb") as content:
            start = content.read(2)
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror})") from error
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not name.startswith(("utf-16", "utf-32")):
        raise UserError(
            f"{source}: starts as UTF-16 does, and is read as {name}; set `encoding: utf-16` or save it as UTF-8"
        )
    return "utf-8-sig" if name == "utf-8" else encoding


def read_lines(source: str, file: Path, encoding: str, newline: str) -> Iterator[str]:
    """The lines of a text file; what is no text is an error that says where."""
    try:
        with file.open(encoding=encoding, newline=newline) as lines:
            for number, line in enumerate(lines, start=1):
                if "\0" in line:
                    raise UserError(
                        f"{source}, line {number}: a NUL byte; expected a text file (if it is UTF-16, set "
                        "`encoding: utf-16-le` or `utf-16-be`, or save it as UTF-8)"
                    )
                yield line
    except UnicodeDecodeError:
        raise UserError(_undecodable(source, file, encoding)) from None
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
        f"{source}, line {lines}, byte {start + 1} of the file: {found} is not {name} text; save the file as UTF-8 or "
        "set `encoding` (often cp1252 or latin-1)"
    )
