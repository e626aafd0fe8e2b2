"""CoNLL files as a source of rows: one word per line, with its columns, and a blank line between sentences."""

import re
from codecs import BOM_UTF8
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
SPACES = re.compile(" +")
KEY = re.compile(r"# +\w+( \w+)? = ")
"""The beginning of a comment of CoNLL-U, which may have as many fields as the words: `# sent_id = 5`."""


def begins_as_conll(file: Path) -> bool:
    """Whether the first line is the mark of a document, as in the files of CoNLL-2003 (train.txt, eng.testa)."""
    with file.open("rb") as content:
        return content.read(100).removeprefix(BOM_UTF8).lstrip().startswith(DOCUMENT.encode())


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
        """Every name that a column can be asked for by, so that a column with a name is here twice."""
        numbers = tuple(map(str, range(self._width)))
        return (*self.names, *numbers) if len(self.names) == self._width else numbers

    @property
    def different_columns(self) -> tuple[str, ...]:
        """Each column once, by its name if it has one."""
        return self.columns[: self._width]

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
        # Other spaces, such as the one in "10\xa0000", belong to the word.
        return [field.strip() for field in text.split("\t")] if "\t" in text else SPACES.split(text.strip(" "))

    def _is_left_out(self, text: str, fields: Sequence[str]) -> bool:
        return self._is_comment(text, fields) or (self.names[:1] == ("ID",) and not fields[0].isdecimal())

    def _is_comment(self, text: str, fields: Sequence[str]) -> bool:
        """The word # has as many columns as every other word, between the same marks."""
        if not text.startswith("#"):
            return False
        return len(fields) != self._width or ("\t" in text) != ("\t" in self._first) or bool(KEY.match(text))

    @cached_property
    def _first(self) -> str:
        """The line of the first word."""
        for text in self._lines():
            fields = self._fields(text)
            if fields and not text.startswith("#") and fields[0] != DOCUMENT:
                return text
        raise UserError(f"{self.name}: the file has no words; expected one word per line with its columns")

    @cached_property
    def _width(self) -> int:
        return len(self._fields(self._first))
