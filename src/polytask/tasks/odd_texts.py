"""What is odd about the letters of texts: broken encodings, markup, ids. Reads a file's first rows; knows no label.

Token ids do not show these: the tokenizer has dropped or replaced what they would show.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from polytask.tasks.encoding import WINDOWS
from polytask.tasks.finding import ROWS_NAMED, Finding, Severity, rows_that
from polytask.tasks.reading import encoding_of, open_for
from polytask.tasks.task import Split
from polytask.types import Example, UserError

TEXTS_READ = 20_000  # a file is written by one program: what is wrong with it shows in its first rows
CHARACTERS_READ = 2_000  # of one text, so that long documents take no longer
FEWEST_IDS = 20  # of fewer values, single words or numbers may well be texts
ALMOST_ALL = 0.95  # a column of ids may have a gap or a header in its midst
RARE = 0.005  # what fewer rows have is theirs alone: the file is sound
TAGS = "a|b|br|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|script|span|strong|style|table|tbody|td|th|tr|u|ul"


@dataclass(frozen=True)
class Oddity:
    """Something to look for in a text."""

    what: str
    pattern: re.Pattern[str]
    severity: Severity
    sentence: str
    """Follows `12 of 400 rows`."""
    in_ascii: bool = False
    """Whether a text of plain ASCII can have it."""


ODDITIES = (
    Oddity(
        "mojibake",
        re.compile(
            r"[ÂÃ][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]"
            "|â\u20ac|ï»¿|ï¿½"
        ),
        "warning",
        "have letters such as Ã© for é: UTF-8 that some program read as another encoding; export them anew",
    ),
    Oddity(
        "lost_characters",
        re.compile("\ufffd"),
        "warning",
        "have the replacement character U+FFFD where a program lost a letter; export them anew from the source",
    ),
    Oddity(
        "control_characters",
        re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
        "warning",
        "have control characters, which are no text and are dropped; the file may be no plain text",
        in_ascii=True,
    ),
    # Joiners (U+200C, U+200D) are left out: Persian and emoji are written with them.
    Oddity(
        "zero_width",
        re.compile("[\u00ad\u200b\u2060\ufeff]"),
        "note",
        "have characters without width (soft hyphen, zero-width space), which are dropped; words around them may join",
    ),
    Oddity(
        "markup",
        re.compile(rf"&(?:amp|lt|gt|quot|apos|nbsp|#\d+|#[xX][0-9a-fA-F]+);|</?(?:{TAGS})(?:\s[^<>]*)?/?>", re.I),
        "warning",
        "have HTML tags or entities such as <br> or &amp;: they take room and mean nothing to the encoder",
        in_ascii=True,
    ),
    Oddity(
        "special_tokens",
        re.compile(r"\[(?:CLS|SEP|MASK|PAD|UNK)\]"),
        "note",
        "have an encoder's special token such as [SEP] in their text: it is read as the letters that it is",
        in_ascii=True,
    ),
)
ID = re.compile(
    r"[0-9][0-9.,:/_-]*|[a-z]{0,12}[-_:#]?[0-9]+|[0-9a-f]{8,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I
)


def odd_texts(task: str, split: Split) -> list[Finding]:
    """What the first rows of the split's file have in their texts. A file that has changed since is passed over."""
    read, seen = 0, defaultdict[str, list[int]](list)
    columns = [_Column(name) for name in split.spec.text]
    for example in _read(split):
        read += 1
        for text in example.texts:
            for oddity in _in(text[:CHARACTERS_READ]):
                if seen[oddity.what][-1:] != [example.row]:
                    seen[oddity.what].append(example.row)
        for column, text in zip(columns, example.texts, strict=True):
            column.add(text)
    found = _guessed_encoding(task, split)
    for oddity in ODDITIES:
        if rows := seen[oddity.what]:
            severity = "note" if len(rows) < RARE * read else oddity.severity
            sentence = rows_that(len(rows), read, oddity.sentence, first=read < len(split))
            found.append(
                Finding(severity, task, split.name, oddity.what, sentence, tuple(rows[:ROWS_NAMED]), len(rows))
            )
    for column in columns:
        if column.is_ids(read):
            sentence = f"nearly every value of column {column.name!r} is a different id or number, such as "
            sentence += f"{column.example!r}: is this the text?"
            found.append(Finding("problem", task, split.name, "ids_as_text", sentence, (), column.ids))
    return found


def _guessed_encoding(task: str, split: Split) -> list[Finding]:
    if split.spec.encoding is not None:
        return []
    try:
        encoding = encoding_of(open_for(split.spec, split.source))
    except UserError:
        return []
    if encoding != WINDOWS:
        return []
    sentence = (
        f"is not UTF-8 and was read as Windows-1252, a guess: write `encoding: {WINDOWS}` into the task to keep it, or "
        "another encoding if letters look wrong"
    )
    return [Finding("note", task, split.name, "guessed_encoding", sentence, (), len(split))]


@dataclass
class _Column:
    """How many values of a column look like ids."""

    name: str
    ids: int = 0
    example: str = ""

    def __post_init__(self) -> None:
        self._different: set[str] = set()

    def add(self, text: str) -> None:
        text = text.strip()
        if len(text) <= 64 and ID.fullmatch(text):
            self.ids += 1
            self.example = self.example or text
            self._different.add(text)

    def is_ids(self, read: int) -> bool:
        return read >= FEWEST_IDS and len(self._different) >= ALMOST_ALL * read


def _in(text: str) -> Iterator[Oddity]:
    plain = text.isascii()
    for oddity in ODDITIES:
        if (oddity.in_ascii or not plain) and oddity.pattern.search(text):
            yield oddity


def _read(split: Split) -> Iterator[Example]:
    try:
        yield from islice(split.examples(), TEXTS_READ)
    except UserError:
        return
