"""Caches a source's usable rows, tokenized, on disk. Knows what a cache entry depends on; knows no split.

Building an entry is one streaming pass: rows -> batches -> tokenizer -> store.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from polytask.settings import TaskSpec
from polytask.tasks.labels import LabelReader
from polytask.tasks.reading import dialect_of
from polytask.tasks.rows import LabelledRow, labelled_rows
from polytask.tasks.sources.source import BrokenRow, Source
from polytask.text.store import DamagedStore, StoreWriter, TokenStore
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError

CACHE_FORMAT = 2  # to be increased if files are read or tokenized in another way
BATCH_ROWS = 2_000
BATCH_CHARACTERS = 4_000_000  # long documents fill a batch earlier, so that memory stays constant
BROKEN_KEPT = 1_000


def cached_store(
    spec: TaskSpec, source: Source, fingerprint: str, reader: LabelReader, tokenizer: TextTokenizer, cache: Path
) -> TokenStore:
    """Opens the source's store; builds it if it is missing or incomplete."""
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
    with _writing(folder):
        _build_store(folder, spec, source, reader, tokenizer)
    return TokenStore.open(folder)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{folder}: cannot write the cache ({error}); set POLYTASK_CACHE to another folder") from error


def cached_part(store: TokenStore, indices: npt.NDArray[np.int64], cache: Path) -> TokenStore:
    """Opens a store with some examples of another one; builds it if it is missing or incomplete."""
    key = hashlib.sha256(store.folder.name.encode() + indices.astype("<i8").tobytes()).hexdigest()[:40]
    folder = cache / "tokens" / key
    try:
        return TokenStore.open(folder)
    except DamagedStore:
        pass
    with _writing(folder):
        store.write_part(folder, indices)
    return TokenStore.open(folder)


def broken_rows(store: TokenStore, source: Source) -> tuple[BrokenRow, ...]:
    """Returns the rows that were left out of the store, at most the first thousand."""
    return tuple(BrokenRow(source.name, source.unit, *kept) for kept in store.meta["broken"])


def _build_store(folder: Path, spec: TaskSpec, source: Source, reader: LabelReader, tokenizer: TextTokenizer) -> None:
    label_type: Literal["int", "float"] = "float" if spec.kind == "score" else "int"
    width = len(spec.text)
    broken: list[BrokenRow] = []
    num_broken = 0
    batch: list[LabelledRow] = []
    characters = 0
    with StoreWriter(folder, width=width, vocabulary=tokenizer.vocabulary, label_type=label_type) as writer:

        def append() -> None:
            ids = tokenizer.encode([text for _, texts, _ in batch for text in texts])
            examples = [tuple(ids[i : i + width]) for i in range(0, len(ids), width)]
            writer.append(examples, [label for _, _, label in batch], [row for row, _, _ in batch])

        for entry in labelled_rows(spec, source, reader):
            if isinstance(entry, BrokenRow):
                num_broken += 1
                if num_broken <= BROKEN_KEPT:
                    broken.append(entry)
                continue
            batch.append(entry)
            characters += sum(map(len, entry[1]))
            if len(batch) == BATCH_ROWS or characters > BATCH_CHARACTERS:
                append()
                batch, characters = [], 0
        append()
        kept = [[row.row, row.column, row.value, row.problem] for row in broken]
        meta = {"names": reader.names, "broken": kept, "num_broken": num_broken, "dialect": dialect_of(source)}
        writer.close(meta)
