"""A task with its data: its label space, and its splits, which are read, checked and tokenized. Knows no model.

The faults in all rows of all tasks are collected and raised as one error, before anything is trained.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polytask import seeds
from polytask.kinds.names import EMPTY_LABEL
from polytask.kinds.table import KINDS, kind_of, label_space
from polytask.settings import RowSample, TaggerName, TaskSpec
from polytask.tasks.caching import broken_rows, cached_part, cached_store
from polytask.tasks.reading import open_for, warn_of_guess
from polytask.tasks.rows import label_values, row_texts, row_words
from polytask.tasks.sources.conll import ConllSource
from polytask.tasks.sources.source import BrokenRow
from polytask.text.store import TokenStore
from polytask.text.tagging import Tagger, TagIds, TagVocabulary
from polytask.text.texts import Texts
from polytask.text.tokenizer import TextTokenizer
from polytask.types import NO_LABEL, Example, LabelSpace, UserError

BROKEN_SHOWN = 20


@dataclass(frozen=True)
class Split:
    """The usable rows of one file of a task."""

    name: str
    """train, dev, test or unlabelled."""
    spec: TaskSpec
    source: str
    fingerprint: str
    store: TokenStore
    labels: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    """The labels as heads need them (`Kind.targets`); NO_LABEL in an unlabelled split."""
    broken: tuple[BrokenRow, ...]
    """Rows that were left out, at most the first thousand."""
    num_broken: int
    num_blank: int = 0
    """Rows that were left out because their label is empty (`TaskSpec.skips_blanks`)."""
    tags: TagIds | None = None
    """The id of each token's word tag, for all tokens of the store; None without tags."""

    @property
    def is_labelled(self) -> bool:
        """Whether its rows have labels in the file."""
        return self.spec.label is not None

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self) -> npt.NDArray[np.int64]:
        """Returns the number of tokens of each example's texts: [N, W]."""
        return self.store.lengths()

    def tokens(self, i: int) -> tuple[npt.NDArray[np.integer], ...]:
        """Returns the ids of example i's texts, without special tokens."""
        return self.store.texts(i)

    def gather(self, indices: npt.ArrayLike) -> Texts:
        """Returns the texts of several examples, faster than one by one."""
        return replace(self.store.gather(indices), tags=self.tags, words=self.store.words)

    def with_tags(self, vocabulary: TagVocabulary) -> "Split":
        """Returns the split with the tag ids of a model; without tags, unchanged."""
        if self.store.tags is None:
            return self
        return replace(self, tags=vocabulary.translated(self.store.meta["tags"], self.store.tags))

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The row number of each example in the source."""
        return self.store.rows

    def examples(self) -> Iterator[Example]:
        """Reads the texts and labels of this split's examples from the source again, in order."""
        kind, meta = KINDS[self.spec.kind], self.store.meta
        labels = self.store.word_labels() if kind.per_word else self.store.labels
        wanted = zip(self.store.rows.tolist(), labels.tolist(), strict=True)
        row, stored = next(wanted, (None, 0))
        # The store has the dialect, so that it is not detected again; those of earlier versions have none.
        spec = replace(self.spec, **self.store.meta.get("dialect", {}))
        columns = (*spec.text, *spec.label_columns) if kind.per_word else spec.input_columns
        for entry in open_for(spec, self.source).rows(columns, needed=None if kind.per_word else spec.text):
            if isinstance(entry, BrokenRow) or entry[0] != row:
                continue
            if kind.per_word:
                text, words = row_words(*entry[1])
                yield Example((text,), kind.label(meta, stored) if self.is_labelled else None, entry[0], words)
            else:
                texts = row_texts(spec, entry[1])
                yield Example(texts, kind.label_of(meta, stored, texts) if self.is_labelled else None, entry[0])
            row, stored = next(wanted, (None, 0))
        if row is not None:
            raise UserError(f"{self.source}: the file has changed since its rows were read; start again")


@dataclass(frozen=True)
class Task:
    """A task with its data."""

    spec: TaskSpec
    labels: LabelSpace
    splits: Mapping[str, Split]

    @property
    def fingerprint(self) -> str:
        """Identifies the task's data: the content of its files, and how they are read."""
        reading = replace(
            self.spec, weight=1.0, standardize=True, head=None, loss=None, metric=None, metrics=(), abstain_below=None
        )
        return repr((reading, self.labels, {name: split.fingerprint for name, split in self.splits.items()}))


@dataclass
class _Faults:
    """The faults in the data of all tasks, which are raised as one error."""

    messages: list[str] = field(default_factory=list)
    broken: list[BrokenRow] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def raise_if_any(self) -> None:
        lines = list(self.messages)
        total = self.counts.total()
        if total:
            rows = "1 broken row" if total == 1 else f"{total:,} broken rows"
            lines.append(f"{rows}; correct them, or set `broken_rows: skip` to leave them out:")
            lines += [f"  {row}" for row in self.broken[:BROKEN_SHOWN]]
            if total > BROKEN_SHOWN:
                counts = ", ".join(f"{count:,} in {source}" for source, count in self.counts.items())
                lines.append(f"  ... and {total - BROKEN_SHOWN:,} more (in all {counts})")
            if any(row.problem == EMPTY_LABEL for row in self.broken):
                lines.append("`blank_labels: skip` leaves out rows whose label is empty, and no others")
        if lines:
            raise UserError("\n".join(lines))


def read_tasks(
    specs: Sequence[TaskSpec], tokenizer: TextTokenizer, cache: Path, tagger: Tagger | None = None
) -> tuple[Task, ...]:
    """Reads all tasks with their splits; raises one UserError about all faults in their data."""
    faults = _Faults()
    tasks = [_read_task(spec, _Reader(tokenizer, cache, faults, tagger)) for spec in specs]
    faults.raise_if_any()
    return tuple(task for task in tasks if task is not None)


def tag_vocabulary(tasks: Iterable[Task], tagger: TaggerName | None) -> TagVocabulary | None:
    """Returns the tags of the training files of all trained tasks; None if they have no tags."""
    stores = [task.splits["train"].store for task in tasks if task.spec.trained]
    tagged = [store.meta["tags"] for store in stores if store.tags is not None]
    return TagVocabulary.of([name for names in tagged for name in names], tagger) if tagged else None


def with_tags(task: Task, vocabulary: TagVocabulary | None) -> Task:
    """Returns the task with the tag ids of a model."""
    if vocabulary is None:
        return task
    return replace(task, splits={name: split.with_tags(vocabulary) for name, split in task.splits.items()})


def read_split(
    spec: TaskSpec,
    labels: LabelSpace,
    source: str,
    tokenizer: TextTokenizer,
    cache: Path,
    name: str,
    tagger: Tagger | None = None,
) -> Split:
    """Reads one source of a task whose label space is known, such as that of a trained model.

    Of the training data, only the chosen rows are returned (`rows`).
    """
    faults = _Faults()
    warn_of_guess(open_for(spec, source), spec.encoding)
    read = _read_source(spec, source, labels, _Reader(tokenizer, cache, faults, tagger))
    faults.raise_if_any()
    return (read.with_chosen_rows(cache) if name == "train" and source == spec.train else read).as_split(name, labels)


@dataclass(frozen=True)
class _Reader:
    """What all sources are read with."""

    tokenizer: TextTokenizer
    cache: Path
    faults: _Faults
    tagger: Tagger | None


def _read_task(spec: TaskSpec, reading: _Reader) -> Task | None:
    labels: LabelSpace | None = None
    splits: dict[str, Split] = {}
    first = "dev" if spec.train is None else "train"
    for name in ("train", "dev", "test", "unlabelled"):
        source: str | None = getattr(spec, name)
        if source is None:
            continue
        try:
            read = _read_source(spec if name != "unlabelled" else replace(spec, label=None), source, labels, reading)
            if name == "train":
                read = read.with_chosen_rows(reading.cache)
            if name == first:
                vocabulary, stored = reading.tokenizer.vocabulary, read.store.labels
                labels = label_space(spec, read.store.meta, vocabulary, stored)
            if labels is not None:
                splits[name] = read.as_split(name, labels)
        except UserError as error:
            if str(error) not in reading.faults.messages:
                reading.faults.messages.append(str(error))
    return Task(spec, labels, splits) if labels is not None else None


@dataclass(frozen=True)
class _Read:
    """A source that was read; its class numbers have no meaning before the task's label space is known."""

    spec: TaskSpec
    source: str
    fingerprint: str
    store: TokenStore
    broken: tuple[BrokenRow, ...]

    @property
    def num_broken(self) -> int:
        count: int = self.store.meta["num_broken"]
        return count

    @property
    def num_blank(self) -> int:
        count: int = self.store.meta.get("num_blank", 0)
        return count

    def with_chosen_rows(self, cache: Path) -> "_Read":
        """Keeps the rows that the task is trained on (`rows`), in their order."""
        chosen, usable = self.spec.rows, len(self.store)
        if chosen is None:
            return self
        count = chosen.sample if isinstance(chosen, RowSample) else chosen
        if count > usable:
            field = f"tasks.{self.spec.name}.rows{'.sample' if isinstance(chosen, RowSample) else ''}"
            raise UserError(
                f"recipe: {field}: must be at most {usable:,}, the number of usable rows of {self.source}; found "
                f"{count:,}"
            )
        indices = np.arange(count)
        if isinstance(chosen, RowSample):
            rng = seeds.generator(chosen.seed, "rows")
            indices = np.sort(rng.choice(usable, count, replace=False))
        return replace(self, store=cached_part(self.store, indices, cache))

    def as_split(self, name: str, labels: LabelSpace) -> Split:
        kind = kind_of(labels)
        stored = self.store.word_labels() if kind.per_word else self.store.labels
        targets = kind.targets(labels, self.store.meta, stored)
        if name == "unlabelled":
            targets = np.full_like(targets, NO_LABEL)
        left_out = self.broken, self.num_broken, self.num_blank
        return Split(name, self.spec, self.source, self.fingerprint, self.store, targets, *left_out)


def _read_source(spec: TaskSpec, source: str, labels: LabelSpace | None, reading: _Reader) -> _Read:
    """Reads a source; with a label space only its classes are allowed. Broken rows are added to the faults.

    A dev file is read without a label space if the training file could not be used, to report its faults too.
    """
    opened = open_for(spec, source)
    if isinstance(opened, ConllSource) and not KINDS[spec.kind].per_word:
        raise UserError(
            f"{source}: CoNLL files have words with tags, for kind tokens; task {spec.name!r} is of kind {spec.kind}"
        )
    reader = KINDS[spec.kind].reader(spec, labels, label_values(spec, opened))
    fingerprint = opened.fingerprint()
    store = cached_store(spec, opened, fingerprint, reader, reading.tokenizer, reading.cache, reading.tagger)
    read = _Read(spec, source, fingerprint, store, broken_rows(store, opened))
    if read.num_broken and spec.broken_rows == "stop":
        # Tasks that share rows find the same texts broken.
        known = set(reading.faults.broken) if spec.share_rows is not None else set()
        reading.faults.broken += [row for row in read.broken if row not in known]
        reading.faults.counts[source] += read.num_broken - sum(row in known for row in read.broken)
    elif not len(store):
        blank = f"{read.num_blank:,} rows have an empty label" if read.num_blank else ""
        first = f"the first broken row: {read.broken[0]}" if read.broken else ""
        raise UserError(f"{source}: no usable row for task {spec.name!r}; {blank or first}")
    return read
