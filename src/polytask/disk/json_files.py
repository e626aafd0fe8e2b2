"""Reads small text files, JSON files and JSON Lines files up to a size limit; errors name the file and the line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polytask.types import UserError

MAX_TEXT_BYTES = 2**20  # a recipe: PyYAML needs seconds for a megabyte
MAX_JSON_BYTES = 2**26  # a JSON file, or one line of a JSON Lines file


def read_bytes(path: Path, what: str, max_bytes: int) -> bytes:
    """The content of a small file. Stops at a limit, so that /dev/zero cannot fill the memory."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"{path}: the {what} cannot be read: {error.strerror}") from None
    if len(content) > max_bytes:
        raise UserError(f"{path}: the {what} is larger than {max_bytes:,} bytes, which is the limit")
    return content


def read_text(path: Path, what: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """The content of a small UTF-8 text file."""
    try:
        return read_bytes(path, what, max_bytes).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the {what} is not UTF-8 text (byte {error.start})") from None


def parse_json(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except ValueError as error:  # includes bytes that are not UTF-8
        raise UserError(f"{where} is not valid JSON: {error}") from None
    except RecursionError:
        raise UserError(f"{where} is not valid JSON: its brackets are nested too deeply") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    content = parse_json(read_text(path, "file", MAX_JSON_BYTES), str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path} must contain a JSON object, found {type(content).__name__}")
    return content


def read_json_lines(path: Path, containing: bytes = b"") -> Iterator[dict[str, Any]]:
    """The JSON object in each line of a file; only lines that contain these bytes are parsed.

    A last line without a line end is still being written, and is ignored.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while (line := file.readline(MAX_JSON_BYTES)).endswith(b"\n"):
                number += 1
                if containing not in line:
                    continue
                content = parse_json(line, f"{path}, line {number}")
                if not isinstance(content, dict):
                    raise UserError(f"{path}, line {number} is not a JSON object, found {type(content).__name__}")
                yield content
            if len(line) == MAX_JSON_BYTES:
                raise UserError(f"{path}, line {number + 1} is longer than {MAX_JSON_BYTES:,} bytes")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
