"""CoNLL files as a source of rows: one word per line, with its columns, and a blank line between sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from polytask.disk.hashing import sha256
from polytask.tasks.sources.lines import read_lines
from polytask.tasks.sources.source import BrokenRow, Row, Unit, shortened
from polytask.types import UserError

DOCUMENT = "-DOCSTART-"
NAMED = "# global.columns ="
UNIVERSAL = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
"""The columns of CoNLL-U, the format of Universal Dependencies."""


@dataclass(frozen=True)
class ConllSource:
    """A file in which a row is a sentence, and each of its values a list with one entry per word.

    Columns are separated by tabs or spaces and numbered from 0. They also have names in CoNLL-U, and where a comment
    names them (`# global.columns = FORM NER`). Comments and -DOCSTART- lines are left out, as are the lines of CoNLL-U
    for words that consist of several words (1-2) or are not written (1.1).
    """

    name: str
    file: Path
    encoding: str
    unit: Unit = "line"

    def fingerprint(self) -> str:
        return sha256(self.file)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns; empty if they have only numbers."""
        if self.file.suffix.lower() == ".conllu" and self._width == len(UNIVERSAL):
            return UNIVERSAL
        for text in self._lines():
            if text.startswith(NAMED):
                return tuple(text.removeprefix(NAMED).split())
            if text.strip() and not text.startswith("#"):
                break
        return ()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        numbers = tuple(map(str, range(self._width)))
        return (*self.names, *numbers) if len(self.names) == self._width else numbers

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        places = [self.columns.index(column) % self._width for column in columns]
        sentence: list[list[str]] = []
        first, broken = 0, None
        for line, text in enumerate(chain(self._lines(), [""]), start=1):
            fields = self._fields(text)
            if not fields or fields[0] == DOCUMENT:
                if broken is not None or sentence:
                    yield broken or (first, [[word[place] for word in sentence] for place in places])
                sentence, broken = [], None
            elif not self._is_left_out(text, fields):
                first = first if sentence else line
                sentence.append(fields)
                if len(fields) != self._width and broken is None:
                    problem = f"{len(fields)} column(s), expected {self._width} as in the first line"
                    broken = BrokenRow(self.name, self.unit, line, None, shortened(text.strip()), problem)

    def _lines(self) -> Iterator[str]:
        for text in read_lines(self.name, self.file, self.encoding, newline="\n"):
            yield text.rstrip("\r\n")

    def _fields(self, text: str) -> list[str]:
        if not text.strip():
            return []
        return [field.strip() for field in text.split("\t")] if "\t" in text else text.split()

    def _is_left_out(self, text: str, fields: Sequence[str]) -> bool:
        if text.startswith("#") and len(fields) != self._width:
            return True  # a comment; the word # has as many columns as every other word
        return self.names[:1] == ("ID",) and not fields[0].isdecimal()

    @cached_property
    def _width(self) -> int:
        for text in self._lines():
            fields = self._fields(text)
            if fields and not text.startswith("#") and fields[0] != DOCUMENT:
                return len(fields)
        raise UserError(f"{self.name}: the file has no words; expected one word per line with its columns")
