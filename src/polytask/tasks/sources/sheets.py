"""Sheets of Excel workbooks (.xlsx) as a source of rows, read with the optional openpyxl library.

Rows are read a few thousand at a time; only the workbook's table of texts is held in memory.
"""

import datetime
import difflib
import hashlib
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from polytask.disk.hashing import sha256
from polytask.tasks.sources.cells import ERRORS, as_text, column_letters, explained_cells, is_empty
from polytask.tasks.sources.encoding import OLD_OFFICE
from polytask.tasks.sources.source import BATCH, BrokenRow, Row, Unit, checked_columns, shortened
from polytask.types import UserError

LARGEST_CONTENT = 2 * 2**30  # bytes of unpacked XML: several times a full sheet of long texts
MOST_ROWS = 1_048_576  # of a sheet, in Excel


@dataclass(frozen=True)
class _Start:
    """A sheet's header row, and the titles of its workbook."""

    title: str
    titles: tuple[str, ...]
    entry: str
    """The sheet's file name in the archive."""
    number: int
    """The row number of the header."""
    cells: tuple[Any, ...]


@dataclass(frozen=True)
class SheetSource:
    """One sheet of a workbook; its first non-empty row names the columns."""

    name: str
    file: Path
    sheet: str | None
    """None: the first one."""
    unit: Unit = "row"

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{sha256(self.file)}#{self.title}".encode()).hexdigest()

    @property
    def title(self) -> str:
        return self._start.title

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of all sheets of the workbook."""
        return self._start.titles

    @cached_property
    def columns(self) -> tuple[str, ...]:
        for i, cell in enumerate(self._start.cells):
            where = f"{self.name}, row {self._start.number}, column {column_letters(i)}"
            if cell is None and (problem := self._explained.get((self._start.number, i))):
                raise UserError(f"{where}: the header is {problem}")
            if isinstance(cell, bool | datetime.date | datetime.time) or (isinstance(cell, float) and cell % 1):
                raise UserError(
                    f"{where}: expected the name of a column, found {as_text(cell)}; the first row must be a header"
                )
        return checked_columns(self.name, [as_text(cell).strip() for cell in self._start.cells])

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        header, names = self._start.number, self.columns
        indices = {name: i for i, name in reversed(list(enumerate(names)))}
        picks = [indices[column] for column in columns]
        must = [indices[column] for column in (columns if needed is None else needed)]
        number = header
        with self._open() as workbook:
            for number, cells in self._filled_rows(workbook[self.title], header):
                broken = self._broken(number, cells, must)
                if broken is None:
                    yield number, [as_text(cells[pick]) if pick < len(cells) else "" for pick in picks]
                else:
                    yield broken
        if number == header:
            raise UserError(f"{self.name}: no rows below the header row ({', '.join(names)})")

    def _broken(self, number: int, cells: Sequence[Any], must: Sequence[int]) -> BrokenRow | None:
        if len(cells) > len(self.columns):
            problem = f"a value in column {column_letters(len(cells) - 1)}, which has no name in the header"
            return BrokenRow(self.name, self.unit, number, None, shortened(as_text(cells[-1])), problem)
        for i in must:
            cell = cells[i] if i < len(cells) else None
            problem = "an error of Excel; correct its formula" if isinstance(cell, str) and cell in ERRORS else ""
            if cell is None:
                problem = self._explained.get((number, i), "")
            if problem:
                return BrokenRow(self.name, self.unit, number, self.columns[i], as_text(cell), problem)
        return None

    @cached_property
    def _start(self) -> _Start:
        with self._open() as workbook:
            sheet = self._chosen(workbook.worksheets)
            titles = tuple(sheet.title for sheet in workbook.worksheets)
            for number, cells in self._filled_rows(sheet):
                return _Start(sheet.title, titles, sheet._worksheet_path, number, cells)
            raise UserError(f"{self.name}: sheet {sheet.title!r} is empty; expected a header row and rows")

    def _chosen(self, sheets: Sequence[Any]) -> Any:
        """Returns the named sheet, or the first visible one. Like Excel, this ignores the case of names."""
        if not sheets:
            raise UserError(f"{self.name}: the workbook has no sheets; expected one with a header row and rows")
        if self.sheet is None:
            return next((sheet for sheet in sheets if sheet.sheet_state == "visible"), sheets[0])
        known = {sheet.title.casefold(): sheet for sheet in sheets}
        if self.sheet.casefold() in known:
            return known[self.sheet.casefold()]
        near = difflib.get_close_matches(self.sheet.casefold(), known, 1)
        hint = f"; did you mean {known[near[0]].title!r}?" if near else ""
        titles = ", ".join(sheet.title for sheet in sheets)
        raise UserError(f"{self.name}: no sheet {self.sheet!r}; its sheets are: {titles}{hint}")

    def _filled_rows(self, sheet: Any, after: int = 0) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yields the non-empty rows below row `after`, without the empty cells at their ends."""
        sheet.reset_dimensions()  # some programs store a size that is too small
        values, number = sheet.iter_rows(values_only=True), 0
        while batch := self._next(values):
            for cells in batch:
                number += 1
                width = next((i for i in range(len(cells), 0, -1) if not is_empty(cells[i - 1])), 0)
                if width and number > after:
                    yield number, cells[:width]
            if number > MOST_ROWS:
                raise UserError(f"{self.name}: more than {MOST_ROWS:,} rows, the maximum of a sheet in Excel")

    def _next(self, rows: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        with self._damage_named(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(islice(rows, BATCH))

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            import openpyxl  # noqa: PLC0415  an optional extra
        except ImportError as error:
            raise UserError(f"{self.name}: needs the openpyxl library: pip install 'polytask[excel]'") from error
        self._check_archive()
        with self._damage_named(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about formats and extensions that are not needed here
            workbook = openpyxl.load_workbook(self.file, read_only=True, data_only=True, keep_links=False)
        try:
            yield workbook
        finally:
            workbook.close()

    def _check_archive(self) -> None:
        """Checks sizes before anything is unpacked; Python unpacks no more of a file than its entry's size."""
        with self._damage_named():
            with self.file.open("rb") as content:
                protected = content.read(8) == OLD_OFFICE
            unpacked = 0
            if not protected:
                with zipfile.ZipFile(self.file) as archive:
                    unpacked = sum(entry.file_size for entry in archive.infolist())
        if protected:
            raise UserError(
                f"{self.name}: protected with a password, or in the old Excel format; save it as an unprotected .xlsx"
            )
        if unpacked > LARGEST_CONTENT:
            raise UserError(
                f"{self.name}: must be at most {LARGEST_CONTENT / 2**30:.0f} GiB when unpacked, found "
                f"{unpacked / 2**30:,.0f} GiB; save it as csv"
            )

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Turns every exception into a UserError, because openpyxl's parser raises many kinds on damaged files."""
        try:
            yield
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise UserError(f"{self.name}: cannot read it as an Excel workbook ({reason})") from error

    @cached_property
    def _explained(self) -> dict[tuple[int, int], str]:
        with self._damage_named():
            return explained_cells(self._overlapping_chunks())

    def _overlapping_chunks(self) -> Iterator[bytes]:
        """Yields the sheet's XML; each chunk starts with the end of the previous one, so that no cell is split."""
        with zipfile.ZipFile(self.file) as archive, archive.open(self._start.entry) as content:
            rest = b""
            while chunk := content.read(2**20):
                yield rest + chunk
                rest = (rest + chunk)[-(2**16) :]
