"""Findings about the characters of texts: broken encodings, markup, ids. Reads a file's first rows; knows no label.

Token ids cannot show these, because the tokenizer drops or replaces such characters.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice

from polytask.disk.atomic import write_atomically
from polytask.disk.json_files import read_json
from polytask.disk.records import convert
from polytask.tasks.finding import ROWS_NAMED, Finding, Severity, rows_that
from polytask.tasks.reading import encoding_of, open_for
from polytask.tasks.sources.encoding import WINDOWS
from polytask.tasks.task import Split
from polytask.types import UserError

CHECK_FORMAT = 1  # to be increased if something else is searched for
TEXTS_READ = 20_000  # a file is written by one program, so that its faults show in the first rows
CHARACTERS_READ = 2_000  # of one text, so that long documents take no longer
FEWEST_IDS = 20  # among fewer values, single words or numbers may be texts
ALMOST_ALL = 0.95  # a column of ids may have a gap, or a header in the middle
RARE = 0.005  # below this share of rows, single rows are odd and not the file
TAGS = "a|b|br|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|script|span|strong|style|table|tbody|td|th|tr|u|ul"


@dataclass(frozen=True)
class Oddity:
    """A pattern to search for in texts, and the finding about it."""

    what: str
    pattern: re.Pattern[str]
    severity: Severity
    sentence: str
    """Continues `12 of 400 rows`."""
    in_ascii: bool = False
    """Whether a text of plain ASCII can match."""


ODDITIES = (
    Oddity(
        "mojibake",
        re.compile(
            r"[ÂÃ][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]"
            "|â\u20ac|ï»¿|ï¿½"
        ),
        "warning",
        "have letters such as Ã© for é: UTF-8 that a program read as another encoding; export the file again",
    ),
    Oddity(
        "lost_characters",
        re.compile("\ufffd"),
        "warning",
        "have the replacement character U+FFFD where a program lost a letter; export the file again from its source",
    ),
    Oddity(
        "control_characters",
        re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
        "warning",
        "have control characters, which are dropped; the file may not be plain text",
        in_ascii=True,
    ),
    # Joiners (U+200C, U+200D) are left out: Persian and emoji are written with them.
    Oddity(
        "zero_width",
        re.compile("[\u00ad\u200b\u2060\ufeff]"),
        "note",
        "have zero-width characters (soft hyphen, zero-width space), which are dropped; words around them may join",
    ),
    Oddity(
        "markup",
        re.compile(rf"&(?:amp|lt|gt|quot|apos|nbsp|#\d+|#[xX][0-9a-fA-F]+);|</?(?:{TAGS})(?:\s[^<>]*)?/?>", re.I),
        "warning",
        "have HTML tags or entities such as <br> or &amp;, which take space and mean nothing to the encoder",
        in_ascii=True,
    ),
    Oddity(
        "special_tokens",
        re.compile(r"\[(?:CLS|SEP|MASK|PAD|UNK)\]"),
        "note",
        "have a special token such as [SEP] in their text, which is read as plain letters",
        in_ascii=True,
    ),
)
ID = re.compile(
    r"[0-9][0-9.,:/_-]*|[a-z]{0,12}[-_:#]?[0-9]+|[0-9a-f]{8,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I
)


def odd_texts(task: str, split: Split) -> list[Finding]:
    """Returns the findings about the texts in the first rows of the split's file; none if the file has changed.

    They are kept in the cache, beside the tokens, which depend on the same file and columns.
    """
    cached = split.store.folder / f"odd-texts-{CHECK_FORMAT}.json"
    try:
        kept = [convert(found, Finding, str(cached)) for found in read_json(cached)["findings"]]
    except (UserError, KeyError, TypeError):  # missing, or damaged
        try:
            kept = _find_odd_texts(task, split)
        except UserError:
            return []
        with suppress(OSError, UserError):  # a cache that cannot be written
            write_atomically(cached, json.dumps({"findings": [asdict(found) for found in kept]}))
    return [replace(found, task=task, split=split.name) for found in kept]


def _find_odd_texts(task: str, split: Split) -> list[Finding]:
    read, seen = 0, defaultdict[str, list[int]](list)
    columns = [_Column(name) for name in split.spec.text]
    for example in islice(split.examples(), TEXTS_READ):
        read += 1
        for text in example.texts:
            for oddity in _in(text[:CHARACTERS_READ]):
                if seen[oddity.what][-1:] != [example.row]:
                    seen[oddity.what].append(example.row)
        for column, text in zip(columns, example.texts, strict=False):  # options are not checked
            column.add(text)
    findings = _guessed_encoding(task, split)
    for oddity in ODDITIES:
        if rows := seen[oddity.what]:
            severity = "note" if len(rows) < RARE * read else oddity.severity
            sentence = rows_that(len(rows), read, oddity.sentence, first=read < len(split))
            findings.append(
                Finding(severity, task, split.name, oddity.what, sentence, tuple(rows[:ROWS_NAMED]), len(rows))
            )
    for column in columns:
        if column.is_ids(read):
            sentence = f"nearly every value of column {column.name!r} is a different id or number, such as "
            sentence += f"{column.example!r}; is this the text column?"
            findings.append(Finding("problem", task, split.name, "ids_as_text", sentence, (), column.ids))
    return findings


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
        f"the file is not UTF-8 and was read as Windows-1252, which is a guess; set `encoding: {WINDOWS}` in the task "
        "to keep it, or another encoding if letters look wrong"
    )
    return [Finding("note", task, split.name, "guessed_encoding", sentence, (), len(split))]


@dataclass
class _Column:
    """Counts the values of a column that look like ids."""

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
