"""Detects the delimiter and the quoting of a delimited file from its lines. Knows no file."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal

Quoting = Literal["minimal", "none"]

DELIMITERS = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
NO_DELIMITER = "\x1f"  # a file of one column, where every line is one text
DECLARED = re.compile(r'"?sep=([^"\r\n])"?[\r\n]*', re.IGNORECASE)
"""The line before the header with which Excel declares a file's delimiter."""
SAMPLE_LINES, SAMPLE_CHARACTERS = 1_000, 2_000_000
LARGEST_FIELD = 16 * 2**20  # the csv module's default of 128 KiB is less than a long document

csv.field_size_limit(max(csv.field_size_limit(), LARGEST_FIELD))


def parse(lines: Iterable[str], delimiter: str, quoting: Quoting) -> Iterator[tuple[int, list[str] | str]]:
    """Yields the first line of each record, and its fields or what is wrong with its quotes. Skips empty lines."""
    no_quotes = quoting == "none"
    reader = csv.reader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_NONE if no_quotes else csv.QUOTE_MINIMAL, strict=True
    )
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield start, _quote_problem(str(error))
            continue
        if record:
            yield start, record


def find_dialect(
    lines: Callable[[], Iterator[str]], first_guess: str, delimiter: str | None, quoting: Quoting | None
) -> tuple[str, Quoting]:
    """Returns the delimiter with the most regular first lines, and the quoting with the fewest broken rows."""
    if delimiter and quoting:
        return delimiter, quoting
    sample = _first(lines())
    others = [mark for mark in DELIMITERS.values() if mark != first_guess]
    marks = [delimiter] if delimiter else [first_guess, *others]
    styles: list[Quoting] = [quoting] if quoting else ["minimal", "none"]
    best: tuple[tuple[float, int], str, Quoting] | None = None
    single: tuple[str, Quoting] | None = None
    for mark in marks:
        for style in styles:
            width, share = _regularity(sample, mark, style)
            # Of equally regular ones, the one with more columns: `amount, net;label` is a file with semicolons.
            if width > 1 and (best is None or (share, width) > best[0]):
                best = (share, width), mark, style
            if width == 1 and share == 1 and single is None:
                single = mark, style
    if best is None:
        return single or (delimiter or NO_DELIMITER, quoting or "none")
    return best[1], quoting or _find_quoting(lines, best[1])


def delimiter_name(delimiter: str) -> str:
    """Returns the delimiter's name in a recipe: comma, semicolon, tab, pipe, or the character itself."""
    names = {mark: name for name, mark in DELIMITERS.items()}
    return names.get(delimiter, delimiter)


def describe_dialect(delimiter: str, quoting: Quoting) -> str:
    """Says how a file is read, for the message about a broken row."""
    name = delimiter_name(delimiter) if delimiter in DELIMITERS.values() else repr(delimiter)
    return f"read with delimiter {name} and quoting {quoting}"


def _first(lines: Iterator[str]) -> list[str]:
    """Returns the first lines, fewer if they are long, so that memory stays constant."""
    sample, characters = [], 0
    for line in islice(lines, SAMPLE_LINES):
        sample.append(line)
        characters += len(line)
        if characters > SAMPLE_CHARACTERS:
            break
    return sample


def _regularity(sample: list[str], delimiter: str, quoting: Quoting) -> tuple[int, float]:
    """Returns the number of fields in the first record, and the share of records with as many."""
    records = [record for _, record in parse(sample, delimiter, quoting)]
    if len(records) > 2 and isinstance(records[-1], str):
        records.pop()  # the sample may end inside quotes
    if not records or isinstance(records[0], str):
        return 0, 0.0
    width = len(records[0])
    return width, sum(len(record) == width and not isinstance(record, str) for record in records) / len(records)


def _find_quoting(lines: Callable[[], Iterator[str]], delimiter: str) -> Quoting:
    if not any('"' in line for line in lines()):
        return "minimal"
    counts: Counter[str] = Counter()

    def counted() -> Iterator[str]:
        for line in lines():
            counts["doubled"] += '""' in line
            yield line

    broken_if_minimal = _num_broken(counted(), delimiter, "minimal")
    # Doubled quotes are written by programs that do quote; a few bad rows do not change that.
    if broken_if_minimal == 0 or counts["doubled"] > 10 * broken_if_minimal:
        return "minimal"
    return "none" if _num_broken(lines(), delimiter, "none") < broken_if_minimal else "minimal"


def _num_broken(lines: Iterable[str], delimiter: str, quoting: Quoting) -> int:
    width, broken = 0, 0
    for _, record in parse(lines, delimiter, quoting):
        width = width or len(record)
        broken += isinstance(record, str) or len(record) != width
    return broken


def _quote_problem(error: str) -> str:
    if "unexpected end of data" in error or "field larger" in error:
        return 'a quote is opened here and never closed (write " inside a field as "", or set `quoting: none`)'
    return f"invalid quotes: {error} (set `quoting: none` if quotes are plain text)"
