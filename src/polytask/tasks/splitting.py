"""Splits one file into a training and a dev file. Knows rows and texts; knows no model."""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polytask.disk.atomic import atomic_file
from polytask.settings import TaskSpec
from polytask.tasks.labels import class_name
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


def plan_split(spec: TaskSpec, out_dir: Path, share: float = 0.2, seed: int = 0) -> Parts:
    """Plans `NAME-train.csv` and `NAME-dev.csv` from the task's one file, with `share` of the rows in dev.

    The split is the same every time. Rows with the same text stay together, otherwise the dev score would reward
    memorizing. If the label is known, a class that only dev would have moves to train. Nothing is written; existing
    files with other content are an error.
    """
    assert spec.train is not None
    source = open_for(spec, spec.train)
    labels = () if spec.label is None else (spec.label,)
    entries = list(source.rows(source.columns, needed=(*spec.text, *labels)))
    rows = [entry[1] for entry in entries if not isinstance(entry, BrokenRow)]
    texts = [source.columns.index(column) for column in spec.text]
    chosen = choose_dev([[row[i] for i in texts] for row in rows], share, seed)
    in_dev = chosen.in_dev
    if spec.kind == "classes" and spec.label is not None:
        label = source.columns.index(spec.label)
        in_dev = _without_new_classes(chosen.groups, [class_name(str(row[label])) for row in rows], in_dev)
    if not any(in_dev) or all(in_dev):
        raise UserError(
            f"{spec.train}: {len(rows)} rows are too few, or too similar, to split into a training and a dev file"
        )
    files = [out_dir / f"{spec.name}-{part}.csv" for part in ("train", "dev")]
    contents = []
    for file, wanted in zip(files, (False, True), strict=True):
        contents.append(_csv(source.columns, [row for row, dev in zip(rows, in_dev, strict=True) if dev is wanted]))
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


def _without_new_classes(groups: Sequence[bytes], classes: Sequence[str], in_dev: Sequence[bool]) -> list[bool]:
    """Moves whole groups to train if they have a class that no training row has."""
    learned = {name for name, dev in zip(classes, in_dev, strict=True) if not dev}
    moved = {group for group, name in zip(groups, classes, strict=True) if name not in learned}
    return [dev and group not in moved for group, dev in zip(groups, in_dev, strict=True)]


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "replace")
