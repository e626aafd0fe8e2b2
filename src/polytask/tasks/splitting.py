"""Splits one file into a training and a dev file. Knows rows and texts; knows no model."""

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polytask.disk.atomic import atomic_file
from polytask.kinds.names import LabelProblem, class_name, guess_separator, is_empty, split_names
from polytask.kinds.schemes import guess_scheme, is_span_list, span_classes, written_spans, written_tags
from polytask.settings import TaskSpec
from polytask.tasks.reading import open_for
from polytask.tasks.sources.source import BrokenRow
from polytask.types import UserError


class Parts(NamedTuple):
    """The two files that one file is split into."""

    train: Path
    dev: Path
    contents: tuple[bytes, bytes]
    kept_together: Literal["texts", "pairs"]
    """What is never in both files: a text or, if shared texts connect nearly all rows, a pair of texts."""
    dropped: int
    """Rows that could not be read and are in neither file."""


class Chosen(NamedTuple):
    """Which rows are dev rows."""

    in_dev: list[bool]
    groups: list[bytes]
    """For each row, the group of rows that stay together."""
    kept_together: Literal["texts", "pairs"]


def split_file(spec: TaskSpec, out_dir: Path, share: float = 0.2, seed: int = 0) -> Parts:
    """Plans a split and writes its files."""
    parts = plan_split(spec, out_dir, share, seed)
    write_parts(parts)
    return parts


def plan_split(
    spec: TaskSpec, out_dir: Path, share: float = 0.2, seed: int = 0, sharing: Sequence[TaskSpec] = ()
) -> Parts:
    """Plans `NAME-train.csv` and `NAME-dev.csv` from the task's one file, with `share` of the rows in dev.

    The split is the same every time. Rows with the same text stay together, otherwise the dev score would reward
    memorizing. If the label is known, a class that only dev would have moves to train; so does one of the tasks in
    `sharing`, which share the rows. Nothing is written; existing files with other content are an error.
    """
    assert spec.train is not None
    source = open_for(spec, spec.train)
    entries = list(source.rows(source.columns, needed=(*spec.text, *(() if spec.skips_blanks else spec.label_columns))))
    rows = [entry[1] for entry in entries if not isinstance(entry, BrokenRow)]
    texts = [source.columns.index(column) for column in spec.text]
    chosen = choose_dev([[row[i] for i in texts] for row in rows], share, seed)
    in_dev = chosen.in_dev
    for one in sharing or (spec,):
        if isinstance(one.label, str) and one.kind in ("classes", "multilabel", "tokens"):
            label = source.columns.index(one.label)
            classes = _classes_of_rows(one, [row[label] for row in rows])
            in_dev = without_new_classes(chosen.groups, classes, in_dev)
    if not any(in_dev) or all(in_dev):
        raise UserError(
            f"{spec.train}: {len(rows)} rows are too few, or too similar, to split into a training and a dev file"
        )
    ending, write = rows_writer(spec)
    files = [out_dir / f"{spec.name}-{part}.{ending}" for part in ("train", "dev")]
    contents = []
    for file, wanted in zip(files, (False, True), strict=True):
        contents.append(write(source.columns, [row for row, dev in zip(rows, in_dev, strict=True) if dev is wanted]))
        if file.exists() and file.read_bytes() != contents[-1]:
            raise UserError(f"{file}: already exists with other content; move it or choose another folder")
    return Parts(files[0], files[1], (contents[0], contents[1]), chosen.kept_together, len(entries) - len(rows))


def choose_dev(
    texts: Sequence[Sequence[object]], share: float, seed: int = 0, classes: Sequence[object] | None = None
) -> Chosen:
    """Chooses the rows of a dev set: `share` of all rows or, with classes, of the rows of each class.

    The choice depends on the texts and the seed only. Rows with the same text are either all chosen or not at all.
    """
    keys = [[text_key(text, seed) for text in row] for row in texts]
    groups = _groups(keys)
    in_dev = _choose_dev(groups, share, classes)
    if any(len(row) > 1 for row in keys) and sum(in_dev) < share * len(keys) / 2:
        groups = _groups([[b"".join(sorted(key))] for key in keys])
        return Chosen(_choose_dev(groups, share, classes), groups, "pairs")
    return Chosen(in_dev, groups, "texts")


def write_parts(parts: Parts) -> None:
    for file, content in zip((parts.train, parts.dev), parts.contents, strict=True):
        with atomic_file(file) as unfinished:
            unfinished.write_bytes(content)


def text_key(text: object, seed: int = 0) -> bytes:
    """Hashes a text; texts that differ only in case and spaces have the same hash."""
    plain = " ".join(str(text).casefold().split())
    return hashlib.blake2b(f"{seed}\x1f{plain}".encode("utf-8", "replace"), digest_size=16).digest()


def _groups(keys: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Returns, for each row, the smallest key of all rows that shared keys connect it with."""
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


def _choose_dev(groups: Sequence[bytes], share: float, classes: Sequence[object] | None = None) -> list[bool]:
    """Chooses whole groups in the order of their hashes, as long as they fit into the share of all their classes."""
    classes = [None] * len(groups) if classes is None else classes
    room = {name: round(share * count) for name, count in Counter(classes).items()}
    sizes: dict[bytes, Counter[object]] = {}
    for group, name in zip(groups, classes, strict=True):
        sizes.setdefault(group, Counter())[name] += 1
    chosen: set[bytes] = set()
    for group, counts in sorted(sizes.items(), key=lambda entry: entry[0]):
        if all(count <= room[name] for name, count in counts.items()):
            chosen.add(group)
            for name, count in counts.items():
                room[name] -= count
    return [group in chosen for group in groups]


def _classes_of_rows(spec: TaskSpec, values: Sequence[object]) -> list[list[str]]:
    if spec.kind == "classes":
        return [[] if is_empty(value) else [class_name(str(value))] for value in values]
    return [classes_of_words(value) for value in values] if spec.kind == "tokens" else sets_of(values, spec.separator)


def sets_of(values: Sequence[object], separator: str | None) -> list[list[str]]:
    """Returns the classes of each row of a task with several classes per row; none of a label that cannot be read."""
    mark = separator or guess_separator(values)

    def names(value: object) -> list[str]:
        try:
            return split_names(value, mark)
        except LabelProblem:
            return []

    return [names(value) for value in values]


def classes_of_words(value: object) -> list[str]:
    """Returns the classes of the spans of a row, or of its tags; none of a label that cannot be read."""
    if isinstance(value, list) and is_span_list(value):
        return [str(span.get("label")) for span in written_spans(value)]
    try:
        tags = written_tags(value)
    except LabelProblem:
        return []
    return list(span_classes(tags, guess_scheme(tags)))


def without_new_classes(
    groups: Sequence[bytes], classes: Sequence[Sequence[str]], in_dev: Sequence[bool]
) -> list[bool]:
    """Moves whole groups to train if they have a class that no training row has."""
    learned = {name for names, dev in zip(classes, in_dev, strict=True) if not dev for name in names}
    moved = {group for group, names in zip(groups, classes, strict=True) if not learned.issuperset(names)}
    return [dev and group not in moved for group, dev in zip(groups, in_dev, strict=True)]


def rows_writer(spec: TaskSpec) -> tuple[str, Callable[[Sequence[str], Sequence[Sequence[Any]]], bytes]]:
    """Returns the ending of files that can hold a task's rows, and the function that writes columns and rows."""
    has_lists = spec.kind == "tokens" or isinstance(spec.options, str)  # which cells of csv have not
    return ("jsonl", _json_lines) if has_lists else ("csv", _csv)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(column) for column in columns])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def _json_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    records = ({name: _no_nan(value) for name, value in zip(columns, row, strict=True)} for row in rows)
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records).encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    """Returns what a csv file holds of a value: a missing one is empty, and no text file has a NUL byte."""
    return value.replace("\0", "") if isinstance(value, str) else _no_nan(value)


def _no_nan(value: Any) -> Any:
    """Returns None for NaN, which would be written as the text nan."""
    return None if isinstance(value, float) and math.isnan(value) else value
