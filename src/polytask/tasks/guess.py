"""What task a file seems to hold: its text and label columns, its kind, and why. Knows columns; knows no model.

A guess looks at the first thousand rows and at the columns' names. `split_file` makes a training and a dev file out of
one file, for those who have only one.
"""

import csv
import hashlib
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polytask.tasks.labels import NO, NUMBER, YES, class_name, sorted_classes
from polytask.tasks.reading import BrokenRow, Source, open_source
from polytask.types import LabelKind, TaskSpec, UserError

ROWS = 1_000
MOST_GUESSED_CLASSES = 100
LABEL_NAMES = """
    label labels gold_label target class category sentiment opinion is_duplicate duplicate is_paraphrase paraphrase
    similarity relatedness score rating stars entailment acceptability acceptable quality polarity emotion intent topic
    kind type toxic spam grade y
"""
TEXT_NAMES = """
    text sentence question phrase review comment document content body message tweet post utterance query passage
    premise hypothesis context answer description headline title abstract summary string input
"""
PAIR_NAMES = [{"premise", "hypothesis"}, {"question", "sentence"}, {"question", "answer"}, {"query", "passage"}]
PAIR_NAMES += [{"query", "document"}, {"context", "question"}, {"source", "target"}]
ID_NAMES = re.compile(
    r"(?i:(.*[_ -])?(id|idx|index|guid|uuid)\d?|[a-z]?id\d?|no|nr|row|unnamed: \d+)|.*[a-z](Id|ID)\d?"
)
DEV_NAMES = ("dev", "validation", "valid", "val", "test")


@dataclass(frozen=True)
class Guess:
    """A task as a file seems to hold it."""

    spec: TaskSpec
    """Its `dev` is empty when no file with dev rows was found."""
    reasons: list[str]
    """Why, in plain words."""

    @property
    def has_dev(self) -> bool:
        return bool(self.spec.dev)


@dataclass(frozen=True)
class _Column:
    """What the first rows have in one column."""

    name: str
    values: list[str]
    """Those that are not empty, as text."""

    @property
    def different(self) -> int:
        return len({class_name(value) for value in self.values})

    @property
    def mean_length(self) -> float:
        return sum(map(len, self.values)) / max(len(self.values), 1)

    @property
    def numbers(self) -> list[float]:
        """All values as numbers, or nothing if one of them is no number."""
        try:
            found = [float(value) for value in self.values]
        except ValueError:
            return []
        return found if all(map(math.isfinite, found)) else []

    @property
    def is_id(self) -> bool:
        """Nameless, named as an id, or a different whole number or a different single word in every row."""
        if not self.name or ID_NAMES.fullmatch(self.name):
            return True
        if self.different < max(len(self.values), 20):
            return False
        whole = all(number.is_integer() for number in self.numbers) and bool(self.numbers)
        return whole or not (self.numbers or any(" " in value.strip() for value in self.values))

    @property
    def is_text(self) -> bool:
        """Words, and more than a few different ones."""
        letters = sum(any(map(str.isalpha, value)) for value in self.values)
        return not self.is_id and letters > 0.8 * len(self.values) > 0 and self.different > 1

    @property
    def could_be_label(self) -> bool:
        if self.is_id or not self.values or self.mean_length > 40:
            return False
        return bool(self.numbers) or self.different <= max(2, min(MOST_GUESSED_CLASSES, len(self.values) // 2))


def guess_task(name: str, train: str) -> Guess:
    """The task that the file `train` seems to hold; its reasons say what was seen."""
    source = open_source(train)
    columns = _columns(source)
    label, label_reason = _guess_label(source, columns)
    texts, text_reason = _guess_texts(source, [column for column in columns if column is not label])
    kind, kind_reason = _guess_kind(label)
    text_names = tuple(column.name for column in texts)
    spec = TaskSpec(name, kind, text_names, label.name, train, dev="")
    dev = _sibling(train, (*text_names, label.name))
    spec = replace(spec, dev=dev or "")
    if kind == "score":
        spec = replace(spec, range=_whole_range(spec))
        assert spec.range is not None
        kind_reason += f", range {spec.range[0]:g} to {spec.range[1]:g}"
    dev_reason = (
        f"dev: {dev}, found beside it" if dev else "dev: no dev, validation or test file with these columns beside it"
    )
    return Guess(spec, [text_reason, f"{label_reason}; {kind_reason}", dev_reason])


def _columns(source: Source) -> list[_Column]:
    names = source.columns
    rows = [row[1] for row in islice(source.rows(names, needed=()), ROWS) if not isinstance(row, BrokenRow)]
    if not rows:
        raise UserError(
            f"{source.name}: none of the first {ROWS:,} rows can be read; expected rows below a header line"
        )
    columns = []
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        plain = [value for value in values if isinstance(value, str | int | float) and value == value]
        columns.append(_Column(name, [text for text in map(str, plain) if text.strip()]))
    return columns


def _guess_label(source: Source, columns: Sequence[_Column]) -> tuple[_Column, str]:
    possible = [column for column in columns if column.could_be_label]
    named = [column for column in columns if _rank(column.name, LABEL_NAMES) is not None and _is_short(column)]
    named.sort(key=lambda column: _rank(column.name, LABEL_NAMES) or 0)
    if named:
        others = [repr(column.name) for column in possible if column not in named[:1]]
        could = f" ({', '.join(others)} could be another task's)" if others else ""
        return named[0], f"label: column {named[0].name!r}, by its name{could}"
    if possible:
        best = min(reversed(possible), key=lambda column: column.different)
        return best, f"label: column {best.name!r}, because its values are few and short"
    raise UserError(
        f"{source.name}: no column looks like a label (a few different names, or numbers); its columns are: "
        f"{', '.join(filter(None, source.columns))}; write the task's `label` yourself"
    )


def _is_short(column: _Column) -> bool:
    return bool(column.values) and column.mean_length <= 40 and not (column.is_text and not column.could_be_label)


def _guess_texts(source: Source, columns: Sequence[_Column]) -> tuple[list[_Column], str]:
    words = [column for column in columns if column.is_text]
    texts = [column for column in words if column.different * 10 > len(column.values)] or words  # few: a category
    if not texts:
        raise UserError(
            f"{source.name}: no column looks like text; its columns are: {', '.join(filter(None, source.columns))}; "
            "write the task's `text` yourself"
        )
    for pair in combinations(texts, 2):
        if _pair_by_name(*(column.name for column in pair)):
            return list(pair), f"text: columns {pair[0].name!r} and {pair[1].name!r}, a pair by their names"
    by_length = sorted(texts, key=lambda column: -column.mean_length)
    long = [column for column in texts if column.mean_length * 2 > by_length[0].mean_length]
    named = [column for column in by_length if _rank(column.name, TEXT_NAMES) is not None]
    if len(long) == 2 and not (len(named) == 1 and named[0] in long):
        means = " and ".join(f"{column.mean_length:.0f}" for column in long)
        return (
            long,
            f"text: columns {long[0].name!r} and {long[1].name!r}, a pair of similar length ({means} characters)",
        )
    best = named[0] if named and named[0].mean_length * 4 > by_length[0].mean_length else by_length[0]
    return [best], f"text: column {best.name!r}, {best.mean_length:.0f} characters on average"


def _guess_kind(label: _Column) -> tuple[LabelKind, str]:
    names = sorted_classes(tuple({class_name(value) for value in label.values}))
    rows = f"in {len(label.values):,} rows"
    if {name.lower() for name in names} <= YES | NO:
        return "yes_no", f"{' and '.join(names)} {rows}: yes_no"
    numbers = label.numbers
    if numbers and (any(not number.is_integer() for number in numbers) or len(names) > 20):
        return "score", f"numbers from {min(numbers):g} to {max(numbers):g}, {len(names)} different {rows}: score"
    what = "whole numbers" if all(NUMBER.fullmatch(name) for name in names) else "names"
    few = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    return "classes", f"{len(names)} different {what} {rows} ({few}): classes"


def _whole_range(spec: TaskSpec) -> tuple[float, float]:
    """The whole numbers around all scores of the files, not of the first rows only."""
    low, high = math.inf, -math.inf
    for path in filter(None, (spec.train, spec.dev)):
        for row in open_source(path).rows([spec.label]):
            try:
                score = math.nan if isinstance(row, BrokenRow) else float(row[1][0])
            except (TypeError, ValueError):
                continue
            if math.isfinite(score):
                low, high = min(low, score), max(high, score)
    return float(math.floor(low)), float(math.ceil(high))


def _rank(name: str, names: str) -> int | None:
    """How early a column's name stands in the list: exactly, without its number or letter, or with a word around it."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    stem = re.sub(r"_?(\d+|_[ab])$", "", plain)
    for rank, candidate in enumerate(names.split()):
        if candidate in (plain, stem) or (len(candidate) > 3 and candidate in plain.split("_")):
            return rank
    return None


def _pair_by_name(a: str, b: str) -> bool:
    stems = [re.sub(r"[ _-]?([12]|[aAbB])$|^(first|second)[ _-]?", "", name) for name in (a, b)]
    return (stems[0] == stems[1] != "" and a != b) or {a.lower(), b.lower()} in PAIR_NAMES


def _sibling(train: str, columns: Sequence[str]) -> str | None:
    """The dev source whose name differs from the training source's in that one word, and that has the columns."""
    for candidate in _sibling_names(train):
        try:
            if set(columns) <= set(open_source(candidate).columns):
                return candidate
        except UserError:
            continue
    return None


def _sibling_names(train: str) -> Iterator[str]:
    head, mark, name = train.rpartition("#") if train.startswith("hub:") else train.rpartition("/")
    stem, dot, ending = name.rpartition(".") if not train.startswith(("hub:", "sample:")) else (name, "", "")
    found = list(re.finditer("train(ing)?", stem, re.IGNORECASE))
    for dev in DEV_NAMES:
        if found:
            yield f"{head}{mark}{stem[: found[-1].start()]}{dev}{stem[found[-1].end() :]}{dot}{ending}"
        elif dot:
            yield f"{head}{mark}{stem}-{dev}{dot}{ending}"


# --- one file into two ------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """The two files made from one."""

    train: Path
    dev: Path
    kept_together: Literal["texts", "pairs"]
    """What is never in both: any text; or, when nearly all rows hang together by shared texts, any pair of texts."""
    dropped: int
    """Rows that could not be read, and are in neither."""


def split_file(spec: TaskSpec, out_dir: Path, share: float = 0.2, seed: int = 0) -> Parts:
    """`NAME-train.csv` and `NAME-dev.csv` from the task's one file, `share` of the rows in dev, always the same ones.

    Rows with the same text stay on the same side, or the dev score would praise a good memory. A class that dev alone
    would have moves to train.
    """
    source = open_source(
        spec.train, format=spec.format, delimiter=spec.delimiter, quoting=spec.quoting, encoding=spec.encoding
    )
    entries = list(source.rows(source.columns, needed=(*spec.text, spec.label)))
    rows = [entry[1] for entry in entries if not isinstance(entry, BrokenRow)]
    texts = [source.columns.index(column) for column in spec.text]
    keys = [[_text_key(row[i], seed) for i in texts] for row in rows]
    kept_together: Literal["texts", "pairs"] = "texts"
    groups = _groups(keys)
    in_dev = _choose_dev(groups, share)
    if spec.is_pair and sum(in_dev) < share * len(rows) / 2:
        kept_together = "pairs"
        groups = _groups([[b"".join(sorted(key))] for key in keys])
        in_dev = _choose_dev(groups, share)
    if spec.kind == "classes":
        label = source.columns.index(spec.label)
        in_dev = _without_new_classes(groups, [class_name(str(row[label])) for row in rows], in_dev)
    if not any(in_dev) or all(in_dev):
        raise UserError(
            f"{spec.train}: {len(rows)} rows are too few, or too much alike, to make a training and a dev file"
        )
    files = [out_dir / f"{spec.name}-{part}.csv" for part in ("train", "dev")]
    for file, wanted in zip(files, (False, True), strict=True):
        _write_new(file, source.columns, [row for row, dev in zip(rows, in_dev, strict=True) if dev is wanted])
    return Parts(files[0], files[1], kept_together, len(entries) - len(rows))


def _text_key(text: object, seed: int) -> bytes:
    """A hash that is the same for texts that differ in case and spaces only."""
    plain = " ".join(str(text).casefold().split())
    return hashlib.blake2b(f"{seed}\x1f{plain}".encode("utf-8", "replace"), digest_size=16).digest()


def _groups(keys: Sequence[Sequence[bytes]]) -> list[bytes]:
    """For each row the least key of all rows that hang together with it by a shared key."""
    parent: dict[bytes, bytes] = {}

    def root(key: bytes) -> bytes:
        parent.setdefault(key, key)
        while parent[key] != key:
            parent[key] = key = parent[parent[key]]
        return key

    for row in keys:
        roots = sorted(root(key) for key in row)
        for other in roots[1:]:
            parent[other] = roots[0]
    return [root(row[0]) for row in keys]


def _choose_dev(groups: Sequence[bytes], share: float) -> list[bool]:
    """Whole groups, in the order of their hashes, as long as they fit into the share."""
    chosen: set[bytes] = set()
    room = round(share * len(groups))
    for group, size in sorted(Counter(groups).items()):
        if size <= room:
            chosen.add(group)
            room -= size
    return [group in chosen for group in groups]


def _without_new_classes(groups: Sequence[bytes], classes: Sequence[str], in_dev: Sequence[bool]) -> list[bool]:
    """Groups with a class that no training row has go to train, whole."""
    learned = {name for name, dev in zip(classes, in_dev, strict=True) if not dev}
    moved = {group for group, name in zip(groups, classes, strict=True) if name not in learned}
    return [dev and group not in moved for group, dev in zip(groups, in_dev, strict=True)]


def _write_new(file: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A csv file; one with other content that is there already stays, and is an error."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    content = text.getvalue().encode("utf-8", "replace")
    if file.exists() and file.read_bytes() != content:
        raise UserError(f"{file}: is there already, with other content; move it away or choose another folder")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
