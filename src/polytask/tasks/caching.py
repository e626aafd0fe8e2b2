"""Caches a source's usable rows, tokenized, on disk. Knows what a cache entry depends on; knows no split.

Building an entry is one streaming pass: rows -> batches -> tokenizer -> store.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polytask.kinds.base import LabelReader
from polytask.kinds.table import KINDS
from polytask.settings import TaskSpec
from polytask.tasks.reading import dialect_of
from polytask.tasks.rows import BlankRow, LabelledRow, labelled_rows, num_texts
from polytask.tasks.sources.source import BrokenRow, Source
from polytask.text.options import mark_dropped, widened
from polytask.text.store import FIRST_LABEL, NO_WORD, DamagedStore, StoreWriter, TokenStore
from polytask.text.tagging import MOST_TAGS, TaggedWord, Tagger, TagIds, column_words, encode_tagged, tags_of
from polytask.text.tokenizer import TextTokenizer
from polytask.text.words import encode_words
from polytask.types import UserError

CACHE_FORMAT = 3  # to be increased if files are read or tokenized in another way
BATCH_ROWS = 2_000
BATCH_CHARACTERS = 4_000_000  # long documents fill a batch earlier, so that memory stays constant
BROKEN_KEPT = 1_000


def cached_store(
    spec: TaskSpec,
    source: Source,
    fingerprint: str,
    reader: LabelReader,
    tokenizer: TextTokenizer,
    cache: Path,
    tagger: Tagger | None = None,
) -> TokenStore:
    """Opens the source's store; builds it if it is missing or incomplete. `tagger` tags all words."""
    key: list[object] = [
        CACHE_FORMAT,
        [fingerprint, Path(source.name).suffix, spec.format, spec.delimiter, spec.quoting, spec.encoding],
        [spec.text, spec.label, spec.kind, spec.range, spec.classes, reader.names],
        [tokenizer.fingerprint, tokenizer.max_tokens],
    ]
    if version := KINDS[spec.kind].version:
        key.append(["kind", version])
    if reader.options:
        key.append(reader.options)
    if spec.has_options:
        key.append({"options": spec.options})
    if spec.skips_blanks and spec.label is not None:
        key.append("without blanks")
    if tokenizer.cut_start:
        key.append("start")
    if spec.tags or tagger is not None:
        key.append([spec.tags, None if tagger is None else tagger.fingerprint])
    folder = cache / "tokens" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:40]
    try:
        return TokenStore.open(folder)
    except DamagedStore:
        pass
    with _writing(folder):
        encoder = _Encoder(spec, tokenizer, tagger, num_texts(spec, source))
        _build_store(folder, spec, source, reader, encoder)
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


class _Encoder:
    """Tokenizes rows, and tags their words; numbers the tags in the order in which they appear, from 1.

    Rows with fewer than `width` texts and options get empty ones.
    """

    def __init__(self, spec: TaskSpec, tokenizer: TextTokenizer, tagger: Tagger | None, width: int) -> None:
        self.tokenizer, self.tagger, self.width = tokenizer, tagger, width
        self.tagged = bool(spec.tags) or tagger is not None
        self.has_options = spec.has_options
        self.tag_numbers: dict[str, int] = {}

    def append(self, rows: Sequence[LabelledRow], writer: StoreWriter) -> None:
        if rows and rows[0].words is not None:
            self._append_words([row for row in rows if row.words is not None], writer)
            return
        rows = [row._replace(texts=widened(row.texts, self.width)) for row in rows]
        texts, tags = [text for row in rows for text in row.texts], list[TagIds]()
        if self.tagged:
            words = self._words(rows)
            self._number(words)
            encoded = encode_tagged(self.tokenizer, texts, words, self.tag_numbers)
            ids, tags = [one.ids for one in encoded], [one.tags for one in encoded]
        else:
            ids = self.tokenizer.encode(texts)
        if self.has_options:
            mark_dropped(texts, ids, tags, self.tokenizer.unk_id)
        examples = [tuple(ids[i : i + self.width]) for i in range(0, len(ids), self.width)]
        writer.append(examples, [row.label for row in rows], [row.row for row in rows], tags)

    def _append_words(self, rows: Sequence[LabelledRow], writer: StoreWriter) -> None:
        """Appends rows whose words have labels."""
        labelled = [row.words for row in rows if row.words is not None]
        encoded = encode_words(self.tokenizer, [one.text for one in labelled])
        words = []
        for tokens, (_, labels) in zip(encoded, labelled, strict=True):
            numbers = np.full(len(tokens.ids), NO_WORD)
            numbers[tokens.is_first] = np.array(labels) + FIRST_LABEL  # NO_LABEL becomes UNLABELLED
            words.append(numbers)
        tags: list[npt.NDArray[np.uint16]] = []
        if self.tagger is not None:
            tagged = self._words(rows)
            self._number(tagged)
            tags = [tags_of(*one, self.tag_numbers) for one in zip((e.starts for e in encoded), tagged, strict=True)]
        labels_of_rows, numbers_of_rows = [row.label for row in rows], [row.row for row in rows]
        writer.append([(one.ids,) for one in encoded], labels_of_rows, numbers_of_rows, tags, words)

    def _number(self, words: Sequence[Sequence[TaggedWord]]) -> None:
        for tag in {word.tag: None for tagged in words for word in tagged}:
            self.tag_numbers.setdefault(tag, len(self.tag_numbers) + 1)

    def _words(self, rows: Sequence[LabelledRow]) -> list[list[TaggedWord]]:
        if self.tagger is not None:
            return [self.tagger.words(text) for row in rows for text in row.texts]
        return [column_words(*one) for row in rows for one in zip(row.texts, row.tags, strict=True)]

    def check(self, source: Source) -> None:
        if len(self.tag_numbers) > MOST_TAGS:
            raise UserError(
                f"{source.name}: has {len(self.tag_numbers):,} different tags ({', '.join(list(self.tag_numbers)[:5])} "
                f"...), but at most {MOST_TAGS} are allowed; is `tags` the right column?"
            )


def _build_store(folder: Path, spec: TaskSpec, source: Source, reader: LabelReader, encoder: _Encoder) -> None:
    kind = KINDS[spec.kind]
    broken: list[BrokenRow] = []
    num_broken = num_blank = 0
    batch: list[LabelledRow] = []
    characters = 0
    width, vocabulary = encoder.width, encoder.tokenizer.vocabulary
    numbers = {"tagged": encoder.tagged, "words": kind.per_word}
    with StoreWriter(folder, width=width, vocabulary=vocabulary, label_type=kind.stored_type, **numbers) as writer:
        for entry in labelled_rows(spec, source, reader):
            if isinstance(entry, BrokenRow):
                num_broken += 1
                if num_broken <= BROKEN_KEPT:
                    broken.append(entry)
                continue
            if isinstance(entry, BlankRow):
                num_blank += 1
                continue
            batch.append(entry)
            characters += sum(map(len, entry.texts))
            if len(batch) == BATCH_ROWS or characters > BATCH_CHARACTERS:
                encoder.append(batch, writer)
                encoder.check(source)
                batch, characters = [], 0
        encoder.append(batch, writer)
        encoder.check(source)
        kept = [[row.row, row.column, row.value, row.problem] for row in broken]
        meta = {**reader.meta, "broken": kept, "num_broken": num_broken, "dialect": dialect_of(source)}
        meta |= {"num_blank": num_blank} if num_blank else {}
        writer.close(meta | ({"tags": list(encoder.tag_numbers)} if encoder.tagged else {}))
