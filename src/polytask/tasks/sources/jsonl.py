"""JSON lines as a source of rows."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from polytask.disk.hashing import sha256
from polytask.tasks.sources.lines import read_lines
from polytask.tasks.sources.source import BrokenRow, NoRows, Row, Unit, shortened
from polytask.text.tokenizer import without_lone_surrogates
from polytask.types import UserError


@dataclass(frozen=True)
class JsonLinesSource:
    """A file with one JSON object per line; the keys of the first one are the columns."""

    name: str
    file: Path
    encoding: str
    unit: Unit = "line"

    def fingerprint(self) -> str:
        return sha256(self.file)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        for row in self.objects():
            if isinstance(row, BrokenRow):
                raise UserError(f"{row}; the first line must name the columns")
            return tuple(row[1])
        raise NoRows(f"{self.name}: the file is empty; expected one JSON object per line")

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        must = columns if needed is None else needed
        for row in self.objects():
            if isinstance(row, BrokenRow):
                yield row
                continue
            line, content = row
            missing = next((column for column in must if column not in content), None)
            if missing is None:
                yield line, [content.get(column) for column in columns]
            else:
                yield BrokenRow(self.name, self.unit, line, missing, "", "the line has no such key")

    def objects(self) -> Iterator[tuple[int, dict[str, Any]] | BrokenRow]:
        """Yields each line's number and its whole object, which may have other keys than the first line."""
        for line, text in enumerate(read_lines(self.name, self.file, self.encoding, newline="\n"), start=1):
            if not text.strip():
                continue
            problem = "not a JSON object"
            try:
                content = json.loads(text)
                if "\\u" in text:  # only such an escape can be half of a surrogate pair, which is not valid text
                    content = _without_lone_surrogates(content)
            except json.JSONDecodeError as error:  # its own message counts lines of the text, which is one line
                content, problem = None, f"not valid JSON: {error.msg} at character {error.pos + 1}"
            except (ValueError, RecursionError) as error:
                content, problem = None, f"not valid JSON: {error}"
            if isinstance(content, dict):
                yield line, content
            else:
                yield BrokenRow(self.name, self.unit, line, None, shortened(text.strip()), problem)


def _without_lone_surrogates(value: Any) -> Any:
    """Replaces lone surrogates, which can be neither written to a file nor shown in a terminal."""
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if isinstance(value, list):
        return [_without_lone_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_lone_surrogates(key): _without_lone_surrogates(item) for key, item in value.items()}
    return value
