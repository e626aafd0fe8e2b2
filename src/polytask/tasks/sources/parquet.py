"""Parquet files as a source of rows."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from polytask.disk.hashing import sha256
from polytask.tasks.sources.source import BATCH, BrokenRow, Row, Unit, checked_columns, numbered
from polytask.types import UserError


@dataclass(frozen=True)
class ParquetSource:
    """A parquet file, read a few thousand rows at a time."""

    name: str
    file: Path
    unit: Unit = "row"

    def fingerprint(self) -> str:
        return sha256(self.file)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        with self._open() as parquet:
            names: list[str] = parquet.schema_arrow.names
        return checked_columns(self.name, names)

    @property
    def types(self) -> list[pa.DataType]:
        """The Arrow type of each column."""
        with self._open() as parquet:
            types: list[pa.DataType] = parquet.schema_arrow.types
        return types

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        yield from numbered(self._batches(list(columns)))

    def _batches(self, columns: list[str]) -> Iterator[list[list[Any]]]:
        with self._open() as parquet:
            empty = parquet.metadata.num_rows == 0
            for batch in parquet.iter_batches(BATCH, columns=columns):
                yield [batch.column(name).to_pylist() for name in columns]
        if empty:
            raise UserError(f"{self.name}: the table has no rows")

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Opens the file. Damage may show when it is opened, when its pages are read, or as text that is not UTF-8."""
        try:
            with self._parquet() as parquet:
                yield parquet
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise UserError(f"{self.name}: cannot read it as a parquet file ({error})") from error

    def _parquet(self) -> AbstractContextManager[Any]:
        file: AbstractContextManager[Any] = pq.ParquetFile(self.file)
        return file
