"""Shards: the parts of the input that are predicted and written one by one.

A shard is a range of rows of a Parquet file, or a whole file of another format. Ranges end where a row group ends; a
row group is divided only if it has more rows than a shard may have.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.parquet as pq

from polytask.bulk.storage import Storage
from polytask.serving.input import InputFile
from polytask.tasks.reading import ENDINGS, Format, open_source, warn_of_guess
from polytask.tasks.sources.parquet import ParquetSource
from polytask.tasks.sources.source import BATCH, BrokenRow, NoRows, Row, checked_columns
from polytask.types import UserError

FORMATS: dict[str, Format] = {
    ending: form for ending, form in ENDINGS.items() if form in ("csv", "tsv", "jsonl", "parquet")
}
"""The files that can be predicted in bulk. The output has the same format."""


@dataclass(frozen=True)
class Shard:
    """Some rows of an input file, and the name of the file with their predictions."""

    output: str
    input: str
    """The URL of the file."""
    start: int
    """The first row, counted from 0."""
    rows: int

    def __str__(self) -> str:
        return f"{self.output} ({self.input}, rows {self.start + 1:,} to {self.start + self.rows:,})"


def format_of(url: str) -> Format:
    """The format of a file, by its extension."""
    ending = PurePosixPath(url).suffix.lower()
    if ending not in FORMATS:
        raise UserError(f"{url}: the extension must be one of {', '.join(FORMATS)}")
    return FORMATS[ending]


@dataclass(frozen=True)
class Measured:
    """What planning needs to know about a file."""

    columns: tuple[str, ...]
    row_groups: tuple[int, ...]
    """The number of rows of each row group; of a file without row groups, that of the file."""


def measure(file: Storage, encoding: str | None = None) -> Measured:
    """Reads the columns and the numbers of rows: of Parquet from its footer, of other formats by reading the file.

    `encoding` is that of text files that are not Unicode. A file that is empty has no rows and no columns.
    """
    if format_of(file.url) == "parquet":
        return ParquetRange(file.url, Path(file.path), storage=file).measured()
    columns: tuple[str, ...] = ()
    with file.local_copy() as copy:
        opened = InputFile(replace(open_source(str(copy), fallback=encoding), name=file.url))  # type: ignore[type-var]
        try:
            columns = opened.columns
            return Measured(columns, (sum(1 for _ in opened.records()),))
        except NoRows:
            return Measured(columns, (0,))


def cut(row_groups: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Divides rows into ranges (first row, number of rows) of at most `most` rows, at row groups' ends if possible."""
    borders, end, room = [0], 0, most
    for rows in row_groups:
        if rows > room and end > borders[-1]:
            borders.append(end)
        pieces = -(-rows // most)
        borders += [end + rows * piece // pieces for piece in range(1, pieces)]
        end += rows
        room = most - (end - borders[-1])
    return [(start, stop - start) for start, stop in pairwise([*borders, end]) if stop > start]


@dataclass(frozen=True)
class ParquetRange(ParquetSource):
    """Some rows of a Parquet file in any file system."""

    start: int = 0
    count: int | None = None
    storage: Storage | None = None

    def measured(self) -> Measured:
        """Reads the footer of the whole file."""
        with self._open() as parquet:
            names, groups = parquet.schema_arrow.names, range(parquet.num_row_groups)
            rows = tuple(parquet.metadata.row_group(group).num_rows for group in groups)
        return Measured(checked_columns(self.name, names), rows)

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        for row in super().rows(columns, needed):
            assert isinstance(row, tuple)
            yield row[0] + self.start, row[1]

    def _batches(self, columns: list[str]) -> Iterator[list[list[Any]]]:
        assert self.count is not None
        with self._open() as parquet:
            groups, skip = self._overlapping(parquet.metadata)
            left = self.count
            for batch in parquet.iter_batches(BATCH, row_groups=groups, columns=columns):
                part = batch.slice(skip, left)
                skip = max(0, skip - len(batch))
                left -= len(part)
                if len(part):
                    yield [part.column(name).to_pylist() for name in columns]
                if left == 0:
                    break

    def _overlapping(self, metadata: Any) -> tuple[list[int], int]:
        """The row groups that the range overlaps, and the number of rows in them that are before the range."""
        assert self.count is not None
        groups, skip, begin = list[int](), 0, 0
        for group in range(metadata.num_row_groups):
            end = begin + metadata.row_group(group).num_rows
            if begin < self.start + self.count and end > self.start:
                skip = skip if groups else self.start - begin
                groups.append(group)
            begin = end
        return groups, max(0, skip)

    @contextmanager
    def _parquet(self) -> Iterator[Any]:
        if self.storage is None or self.storage.is_local:
            with pq.ParquetFile(self.file) as parquet:
                yield parquet
            return
        with self.storage.opened() as file, pq.ParquetFile(file, pre_buffer=True) as parquet:
            yield parquet


@contextmanager
def open_shard(shard: Shard, encoding: str | None) -> Iterator[InputFile]:
    """The rows of a shard. `encoding` is that of text files that are not Unicode."""
    file = Storage.of(shard.input)
    if format_of(shard.input) == "parquet":
        yield InputFile(ParquetRange(file.url, Path(file.path), "row", shard.start, shard.rows, file))
        return
    with file.local_copy() as copy:
        source = replace(open_source(str(copy), fallback=encoding), name=file.url)  # type: ignore[type-var]
        warn_of_guess(source, encoding)
        yield InputFile(source)


def num_rows(output: Storage) -> int:
    """The number of rows of a shard that was written; -1 if it cannot be read."""
    try:
        return sum(measure(output).row_groups)
    except UserError:
        return -1
