"""Parquet files as a source of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from polytask.tasks.source import BATCH, BrokenRow, Row, Unit, checked_columns, file_fingerprint, numbered
from polytask.types import UserError


@dataclass(frozen=True)
class ParquetSource:
    """A parquet file, read a few thousand rows at a time."""

    name: str
    file: Path
    unit: Unit = "row"

    def fingerprint(self) -> str:
        return file_fingerprint(self.file)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        with self._open() as parquet:
            return checked_columns(self.name, parquet.schema_arrow.names)

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        with self._open() as parquet:
            if parquet.metadata.num_rows == 0:
                raise UserError(f"{self.name}: a table without rows")
            batches = parquet.iter_batches(BATCH, columns=list(columns))
            yield from numbered([batch.column(name).to_pylist() for name in columns] for batch in batches)

    def _open(self) -> Any:
        try:
            return pq.ParquetFile(self.file)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self.name}: not a parquet file that can be read ({error})") from error
