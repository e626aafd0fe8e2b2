"""A task with its data: its label space, and its splits read, checked and tokenized. Knows no model.

What is wrong with any row of any task is collected and told at once, before anything is trained.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polytask.tasks.caching import broken_rows, cached_store
from polytask.tasks.labels import LabelReader, as_targets, label_space, shown
from polytask.tasks.reading import open_for, warn_of_guess
from polytask.tasks.source import BrokenRow
from polytask.text.store import TokenStore
from polytask.text.tokenizer import TextTokenizer
from polytask.types import Example, LabelSpace, TaskSpec, UserError

BROKEN_SHOWN = 20


@dataclass(frozen=True)
class Split:
    """The usable rows of one file of a task."""

    name: str
    """train, dev or test."""
    spec: TaskSpec
    source: str
    fingerprint: str
    store: TokenStore
    labels: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    """As heads need them: the class's place, 0.0 or 1.0, or the score scaled to 0..1; 0 for plain text."""
    broken: tuple[BrokenRow, ...]
    """Rows that were left out, the first thousand of them."""
    num_broken: int

    def __len__(self) -> int:
        return len(self.store)

    def tokens(self, i: int) -> tuple[npt.NDArray[np.integer], ...]:
        """The ids of example i's text, or of its two texts, without special tokens."""
        return self.store.texts(i)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Where each example stands in the source."""
        return self.store.rows

    def examples(self) -> Iterator[Example]:
        """The source's texts and labels once more, for exactly the examples of this split, in their order."""
        names, rows, i = self.store.meta["names"], self.store.rows, 0
        for entry in open_for(self.spec, self.source).rows(self.spec.text):
            if i < len(rows) and not isinstance(entry, BrokenRow) and entry[0] == rows[i]:
                label = shown(self.spec.kind, names, self.store.labels[i].item())
                yield Example(tuple(map(str, entry[1])), label, entry[0])
                i += 1
        if i < len(rows):
            raise UserError(f"{self.source}: changed since its rows were read; start again")


@dataclass(frozen=True)
class Task:
    """A task with its data."""

    spec: TaskSpec
    labels: LabelSpace
    splits: Mapping[str, Split]


@dataclass
class _Faults:
    """What is wrong with the data of all tasks, told together."""

    messages: list[str] = field(default_factory=list)
    broken: list[BrokenRow] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def raise_if_any(self) -> None:
        lines = list(self.messages)
        total = self.counts.total()
        if total:
            rows = "1 broken row" if total == 1 else f"{total:,} broken rows"
            lines.append(f"{rows}; put them right, or set `broken_rows: skip` to leave them out:")
            lines += [f"  {row}" for row in self.broken[:BROKEN_SHOWN]]
            if total > BROKEN_SHOWN:
                counts = ", ".join(f"{count:,} in {source}" for source, count in self.counts.items())
                lines.append(f"  ... and {total - BROKEN_SHOWN:,} more ({counts})")
        if lines:
            raise UserError("\n".join(lines))


def read_tasks(specs: Sequence[TaskSpec], tokenizer: TextTokenizer, cache: Path) -> tuple[Task, ...]:
    """All tasks with their splits; a UserError tells everything that is wrong with the data of any of them."""
    faults = _Faults()
    tasks = [_read_task(spec, tokenizer, cache, faults) for spec in specs]
    faults.raise_if_any()
    return tuple(task for task in tasks if task is not None)


def read_split(
    spec: TaskSpec, labels: LabelSpace, source: str, tokenizer: TextTokenizer, cache: Path, name: str
) -> Split:
    """One source of a task whose labels are known already, as those of a trained model are."""
    faults = _Faults()
    warn_of_guess(open_for(spec, source), spec.encoding)
    split = _read_source(spec, source, labels, tokenizer, cache, faults).as_split(name, labels)
    faults.raise_if_any()
    return split


def _read_task(spec: TaskSpec, tokenizer: TextTokenizer, cache: Path, faults: _Faults) -> Task | None:
    labels: LabelSpace | None = None
    splits: dict[str, Split] = {}
    for name, source in (("train", spec.train), ("dev", spec.dev), ("test", spec.test)):
        if source is None:
            continue
        try:
            read = _read_source(spec, source, labels, tokenizer, cache, faults)
            if name == "train":
                labels = label_space(spec, read.store.meta["names"], tokenizer.vocabulary)
            if labels is not None:
                splits[name] = read.as_split(name, labels)
        except UserError as error:
            if str(error) not in faults.messages:
                faults.messages.append(str(error))
    return Task(spec, labels, splits) if labels is not None else None


@dataclass(frozen=True)
class _Read:
    """A source that was read; its class numbers mean nothing before the task's label space is known."""

    spec: TaskSpec
    source: str
    fingerprint: str
    store: TokenStore
    broken: tuple[BrokenRow, ...]

    @property
    def num_broken(self) -> int:
        count: int = self.store.meta["num_broken"]
        return count

    def as_split(self, name: str, labels: LabelSpace) -> Split:
        targets = as_targets(labels, self.store.meta["names"], self.store.labels)
        return Split(name, self.spec, self.source, self.fingerprint, self.store, targets, self.broken, self.num_broken)


def _read_source(
    spec: TaskSpec, source: str, labels: LabelSpace | None, tokenizer: TextTokenizer, cache: Path, faults: _Faults
) -> _Read:
    """With a label space only its classes are allowed; without one, any. Broken rows that count are put to the faults.

    A dev file is read without one where the training file was of no use: its own faults are told all the same.
    """
    reader = LabelReader(spec, labels.classes if labels is not None and spec.kind == "classes" else None)
    opened = open_for(spec, source)
    fingerprint = opened.fingerprint()
    store = cached_store(spec, opened, fingerprint, reader, tokenizer, cache)
    read = _Read(spec, source, fingerprint, store, broken_rows(store, opened))
    if read.num_broken and spec.broken_rows == "stop":
        faults.broken += read.broken
        faults.counts[source] += read.num_broken
    elif not len(store):
        raise UserError(f"{source}: not one usable row for task {spec.name!r}; the first: {read.broken[0]}")
    return read
