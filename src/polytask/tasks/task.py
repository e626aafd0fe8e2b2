"""A task's rows, checked, tokenized once and kept in a cache on disk. Knows columns and labels; knows no model.

Every split is one streaming pass: rows -> batches -> tokenizer -> store. What is wrong with any row of any task is
collected and told at once, before anything is trained.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from polytask.tasks.labels import LabelProblem, LabelReader, as_targets, label_space, shown
from polytask.tasks.reading import BrokenRow, Format, Quoting, Source, no_column, open_source, shortened
from polytask.text.store import DamagedStore, StoreWriter, TokenStore
from polytask.text.tokenizer import TextTokenizer
from polytask.types import Example, LabelSpace, TaskSpec, UserError

__all__ = ["BrokenRow", "Split", "Task", "default_cache", "read_tasks", "read_texts"]

CACHE_FORMAT = 1
BATCH_ROWS = 2_000
BATCH_CHARACTERS = 4_000_000  # long documents fill a batch earlier, so that memory stays flat
BROKEN_KEPT = 1_000
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
    """As heads need them: the class's place, 0.0 or 1.0, or the score scaled to 0..1."""
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
        for entry in _open(self.spec, self.source).rows(self.spec.text):
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

    def error(self) -> UserError | None:
        lines = list(self.messages)
        total = self.counts.total()
        if total:
            rows = "1 broken row" if total == 1 else f"{total:,} broken rows"
            lines.append(f"{rows}; put them right, or set `broken_rows: skip` to leave them out:")
            lines += [f"  {row}" for row in self.broken[:BROKEN_SHOWN]]
            if total > BROKEN_SHOWN:
                counts = ", ".join(f"{count:,} in {source}" for source, count in self.counts.items())
                lines.append(f"  ... and {total - BROKEN_SHOWN:,} more ({counts})")
        return UserError("\n".join(lines)) if lines else None


def read_tasks(specs: Sequence[TaskSpec], tokenizer: TextTokenizer, cache: Path) -> tuple[Task, ...]:
    """All tasks with their splits; a UserError tells everything that is wrong with the data of any of them."""
    faults = _Faults()
    tasks = [_read_task(spec, tokenizer, cache, faults) for spec in specs]
    error = faults.error()
    if error is not None:
        raise error
    return tuple(task for task in tasks if task is not None)


def read_texts(
    source: str,
    columns: Sequence[str],
    *,
    format: Format | None = None,
    delimiter: str | None = None,
    quoting: Quoting | None = None,
    encoding: str = "utf-8",
) -> Iterator[tuple[int, dict[str, Any], tuple[str, ...]]]:
    """Rows to predict: the row's number, all its columns, and its text or two texts. A row without text is an error."""
    opened = open_source(source, format=format, delimiter=delimiter, quoting=quoting, encoding=encoding)
    _check_columns(opened, columns)
    return _texts(opened, columns)


def default_cache() -> Path:
    """$POLYTASK_CACHE, else $XDG_CACHE_HOME/polytask, else ~/.cache/polytask."""
    if own := os.environ.get("POLYTASK_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "polytask"


def _read_task(spec: TaskSpec, tokenizer: TextTokenizer, cache: Path, faults: _Faults) -> Task | None:
    space: LabelSpace | None = None
    splits: dict[str, Split] = {}
    for name, path in (("train", spec.train), ("dev", spec.dev), ("test", spec.test)):
        if path is None:
            continue
        try:
            reader = LabelReader(spec, space.classes if space and space.kind == "classes" else None)
            source = _open(spec, path)
            fingerprint = source.fingerprint()
            store = _cached_store(spec, source, fingerprint, reader, tokenizer, cache)
            broken = tuple(BrokenRow(path, source.unit, *kept) for kept in store.meta["broken"])
            num_broken: int = store.meta["num_broken"]
            if num_broken and spec.broken_rows == "stop":
                faults.broken += broken
                faults.counts[path] += num_broken
            elif not len(store):
                raise UserError(f"{path}: not one usable row for task {spec.name!r}; the first: {broken[0]}")
            if name == "train":
                space = label_space(spec, store.meta["names"])
            if space is not None:
                labels = as_targets(space, store.meta["names"], store.labels)
                splits[name] = Split(name, spec, path, fingerprint, store, labels, broken, num_broken)
        except UserError as error:
            if str(error) not in faults.messages:
                faults.messages.append(str(error))
    return Task(spec, space, splits) if space is not None else None


def _cached_store(
    spec: TaskSpec, source: Source, fingerprint: str, reader: LabelReader, tokenizer: TextTokenizer, cache: Path
) -> TokenStore:
    """The split's store; built when it is not there, or not whole."""
    key = [
        CACHE_FORMAT,
        [fingerprint, Path(source.name).suffix, spec.format, spec.delimiter, spec.quoting, spec.encoding],
        [spec.text, spec.label, spec.kind, spec.range, spec.classes, reader.names],
        [tokenizer.fingerprint, tokenizer.max_tokens],
    ]
    folder = cache / "tokens" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:40]
    try:
        return TokenStore.open(folder)
    except DamagedStore:
        pass
    try:
        _build_store(folder, spec, source, reader, tokenizer)
    except OSError as error:
        raise UserError(
            f"{folder}: the cache cannot be written ({error}); set POLYTASK_CACHE to another folder"
        ) from error
    return TokenStore.open(folder)


def _build_store(folder: Path, spec: TaskSpec, source: Source, reader: LabelReader, tokenizer: TextTokenizer) -> None:
    label_type: Literal["int", "float"] = "float" if spec.kind == "score" else "int"
    width = len(spec.text)
    broken: list[BrokenRow] = []
    num_broken = 0
    batch: list[tuple[int, tuple[str, ...], int | float]] = []
    characters = 0
    with StoreWriter(folder, width=width, vocabulary=tokenizer.vocabulary, label_type=label_type) as writer:

        def flush() -> None:
            ids = tokenizer.encode([text for _, texts, _ in batch for text in texts])
            examples = [tuple(ids[i : i + width]) for i in range(0, len(ids), width)]
            writer.append(examples, [label for _, _, label in batch], [row for row, _, _ in batch])

        for entry in _checked_rows(spec, source, reader):
            if isinstance(entry, BrokenRow):
                num_broken += 1
                if num_broken <= BROKEN_KEPT:
                    broken.append(entry)
                continue
            batch.append(entry)
            characters += sum(map(len, entry[1]))
            if len(batch) == BATCH_ROWS or characters > BATCH_CHARACTERS:
                flush()
                batch, characters = [], 0
        flush()
        kept = [[row.row, row.column, row.value, row.problem] for row in broken]
        writer.close({"names": reader.names, "broken": kept, "num_broken": num_broken})


def _checked_rows(
    spec: TaskSpec, source: Source, reader: LabelReader
) -> Iterator[tuple[int, tuple[str, ...], int | float] | BrokenRow]:
    """Each row's number, texts and stored label, or what is wrong with it."""
    columns = (*spec.text, spec.label)
    _check_columns(source, columns)
    for entry in source.rows(columns):
        if isinstance(entry, BrokenRow):
            yield entry
            continue
        row, values = entry
        faulty = next((i for i, value in enumerate(values[:-1]) if _text_problem(value)), None)
        if faulty is not None:
            value, problem = values[faulty], _text_problem(values[faulty])
            yield BrokenRow(source.name, source.unit, row, columns[faulty], shortened(value), problem)
            continue
        try:
            yield row, tuple(map(str, values[:-1])), reader.read(values[-1])
        except LabelProblem as problem:
            yield BrokenRow(source.name, source.unit, row, spec.label, shortened(values[-1]), str(problem))
        except UserError as error:
            raise UserError(f"{source.name}, {source.unit} {row}, column {spec.label!r}: {error}") from error


def _texts(source: Source, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any], tuple[str, ...]]]:
    for entry in source.rows(source.columns, needed=columns):
        if isinstance(entry, BrokenRow):
            raise UserError(str(entry))
        row, values = entry[0], dict(zip(source.columns, entry[1], strict=True))
        for column in columns:
            if problem := _text_problem(values[column]):
                raise UserError(
                    str(BrokenRow(source.name, source.unit, row, column, shortened(values[column]), problem))
                )
        yield row, values, tuple(str(values[column]) for column in columns)


def _text_problem(value: object) -> str:
    if isinstance(value, str):
        return "" if value.strip() else "the text is empty"
    if value is None or value != value:  # a number that is not itself is a table's missing value
        return "the text is empty"
    return "" if isinstance(value, int | float) else "a list or table; expected text"


def _check_columns(source: Source, columns: Sequence[str]) -> None:
    missing = [str(no_column(source, column)) for column in columns if column not in source.columns]
    if missing:
        raise UserError("\n".join(missing))


def _open(spec: TaskSpec, source: str) -> Source:
    return open_source(
        source, format=spec.format, delimiter=spec.delimiter, quoting=spec.quoting, encoding=spec.encoding
    )
