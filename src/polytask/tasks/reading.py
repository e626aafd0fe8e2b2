"""Rows of a source, one after another: delimited files, JSON lines, parquet, the hub, built-in samples.

Knows file formats; knows no task, no label and no tokenizer. Memory stays flat whatever the size of a file. A row that
cannot be read is a BrokenRow in the stream; a file that cannot be read is a UserError.
"""

import codecs
import csv
import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from polytask.types import UserError

Format = Literal["csv", "tsv", "jsonl", "parquet"]
Quoting = Literal["minimal", "none"]
Row = tuple[int, list[Any]]

ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
DELIMITERS = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
NO_DELIMITER = "\x1f"  # a file of one column, where every line is one text
LARGEST_FIELD = 16 * 2**20  # the csv module's own 128 KiB is less than a long document
LONE_RETURN = re.compile(r"\r(?!\n)")
BATCH = 2000

csv.field_size_limit(max(csv.field_size_limit(), LARGEST_FIELD))


@dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be used, and why."""

    source: str
    unit: str
    """What `row` counts: line or row."""
    row: int
    column: str | None
    value: str
    problem: str

    def __str__(self) -> str:
        column = f", column {self.column!r}" if self.column is not None else ""
        value = f"{self.value!r}: " if self.value else ""
        return f"{self.source}, {self.unit} {self.row}{column}: {value}{self.problem}"


class Source(Protocol):
    """Rows with named columns."""

    @property
    def name(self) -> str:
        """As the user wrote it."""
        ...

    @property
    def unit(self) -> Literal["line", "row"]:
        """What a row's number counts, from 1; a header line counts."""
        ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        """Each row's number and its values of these columns; None for one that is not there and not needed."""
        ...

    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        ...


def open_source(
    source: str,
    *,
    format: Format | None = None,
    delimiter: str | None = None,
    quoting: Quoting | None = None,
    encoding: str = "utf-8",
) -> Source:
    """A file's path, `sample:NAME` or `hub:DATASET[/CONFIG]#SPLIT`, ready to be read."""
    if source.startswith("hub:"):
        return HubSource(source)
    if source.startswith("sample:"):
        return DelimitedSource(source, _sample(source), ",", "minimal", "utf-8")
    file = Path(source).expanduser()
    if not file.is_file():
        raise UserError(f"{source}: {'is a folder, expected a file' if file.is_dir() else 'no such file'}")
    kind = format or ENDINGS.get(file.suffix.lower())
    if kind is None:
        raise UserError(f"{source}: unknown ending {file.suffix!r}; expected {', '.join(ENDINGS)}, or set `format`")
    if kind == "parquet":
        return ParquetSource(source, file)
    encoding = _checked_encoding(source, file, encoding)
    if kind == "jsonl":
        return JsonLinesSource(source, file, encoding)
    return DelimitedSource(source, file, delimiter, quoting, encoding, first_guess="," if kind == "csv" else "\t")


def no_column(source: Source, column: str) -> UserError:
    """The error that says which columns there are."""
    names = [name for name in source.columns if name]
    near = difflib.get_close_matches(column, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UserError(
        f"{source.name}: no column {column!r}; its columns are: {', '.join(names) or '(none named)'}{hint}"
    )


def shortened(value: object) -> str:
    """A value as an error shows it."""
    text = "" if value is None else str(value)
    return text if len(text) <= 80 else text[:79] + "…"


# --- delimited files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DelimitedSource:
    """A csv or tsv file with a header; what is not told about it is found out from it."""

    name: str
    file: Path
    delimiter: str | None
    quoting: Quoting | None
    encoding: str
    first_guess: str = ","
    unit: Literal["line", "row"] = "line"

    def fingerprint(self) -> str:
        return _file_fingerprint(self.file)

    @cached_property
    def dialect(self) -> tuple[str, Quoting]:
        return find_dialect(self._lines, self.first_guess, _delimiter(self.name, self.delimiter), self.quoting)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        first = next(parse(self._lines(), *self.dialect), None)
        if first is None:
            raise UserError(f"{self.name}: the file is empty; expected a header line and rows")
        line, header = first
        if isinstance(header, str):
            raise UserError(f"{self.name}, line {line}: the header cannot be read: {header}")
        return _checked_columns(self.name, [name.strip() for name in header])

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        picks, width = [self.columns.index(column) for column in columns], len(self.columns)
        records = parse(self._lines(), *self.dialect)
        next(records)
        line = 0
        for line, record in records:
            if isinstance(record, str):
                yield BrokenRow(self.name, self.unit, line, None, "", record)
            elif len(record) != width:
                problem = f"{len(record)} fields, expected {width} as in the header ({_says(*self.dialect)})"
                yield BrokenRow(self.name, self.unit, line, None, "", problem)
            else:
                yield line, [record[pick] for pick in picks]
        if not line:
            raise UserError(f"{self.name}: only a header line ({', '.join(self.columns)}); expected rows below it")

    def _lines(self) -> Iterator[str]:
        """Only a file without any other line end has its lines end at carriage returns.

        Elsewhere one that stands alone is part of a text, and Python's csv module, which would end the row there,
        does not put it in quotes when it writes: it becomes the space that it is to a reader.
        """
        if self._has_line_feeds:
            for line in read_lines(self.name, self.file, self.encoding, newline="\n"):
                yield LONE_RETURN.sub(" ", line) if "\r" in line else line
        else:
            yield from read_lines(self.name, self.file, self.encoding, newline="")

    @cached_property
    def _has_line_feeds(self) -> bool:
        return any("\n" in line for line in islice(read_lines(self.name, self.file, self.encoding, newline=""), 1000))


def parse(lines: Iterable[str], delimiter: str, quoting: Quoting) -> Iterator[tuple[int, list[str] | str]]:
    """The line each record starts at, and its fields, or what is wrong with its quotes. Empty lines are passed over."""
    no_quotes = quoting == "none"
    reader = csv.reader(
        lines, delimiter=delimiter, quoting=csv.QUOTE_NONE if no_quotes else csv.QUOTE_MINIMAL, strict=True
    )
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield start, _quote_problem(str(error))
            continue
        if record:
            yield start, record


def find_dialect(
    lines: Callable[[], Iterator[str]], first_guess: str, delimiter: str | None, quoting: Quoting | None
) -> tuple[str, Quoting]:
    """The delimiter that makes the first lines most regular, and the quoting that breaks fewer rows of them all."""
    sample = list(islice(lines(), 1000))
    others = [mark for mark in DELIMITERS.values() if mark != first_guess]
    marks = [delimiter] if delimiter else [first_guess, *others]
    styles: list[Quoting] = [quoting] if quoting else ["minimal", "none"]
    best: tuple[float, str, Quoting] | None = None
    single: tuple[str, Quoting] | None = None
    for mark in marks:
        for style in styles:
            width, share = _regularity(sample, mark, style)
            if width > 1 and (best is None or share > best[0]):
                best = share, mark, style
            if width == 1 and share == 1 and single is None:
                single = mark, style
    if best is None:
        return single or (delimiter or NO_DELIMITER, quoting or "none")
    return best[1], quoting or _find_quoting(lines, best[1])


def _regularity(sample: list[str], delimiter: str, quoting: Quoting) -> tuple[int, float]:
    """Fields in the first record, and the share of records with as many."""
    records = [record for _, record in parse(sample, delimiter, quoting)]
    if len(records) > 2 and isinstance(records[-1], str):
        records.pop()  # the sample may end inside quotes
    if not records or isinstance(records[0], str):
        return 0, 0.0
    width = len(records[0])
    return width, sum(len(record) == width and not isinstance(record, str) for record in records) / len(records)


def _find_quoting(lines: Callable[[], Iterator[str]], delimiter: str) -> Quoting:
    counts: Counter[str] = Counter()

    def counted() -> Iterator[str]:
        for line in lines():
            counts["doubled"] += '""' in line
            yield line

    broken_if_minimal = _num_broken(counted(), delimiter, "minimal")
    # Doubled quotes are what a program writes that does quote: a few bad rows do not speak against that.
    if broken_if_minimal == 0 or counts["doubled"] > 10 * broken_if_minimal:
        return "minimal"
    return "none" if _num_broken(lines(), delimiter, "none") < broken_if_minimal else "minimal"


def _num_broken(lines: Iterable[str], delimiter: str, quoting: Quoting) -> int:
    width, broken = 0, 0
    for _, record in parse(lines, delimiter, quoting):
        width = width or len(record)
        broken += isinstance(record, str) or len(record) != width
    return broken


def _quote_problem(error: str) -> str:
    if "unexpected end of data" in error or "field larger" in error:
        return 'a quote is opened here and never closed (write " inside a field as "", or set `quoting: none`)'
    return f"quotes are not as a csv has them: {error} (set `quoting: none` if quotes are plain text)"


def _says(delimiter: str, quoting: Quoting) -> str:
    names = {mark: name for name, mark in DELIMITERS.items()}
    return f"read with delimiter {names.get(delimiter, repr(delimiter))} and quoting {quoting}"


def _delimiter(source: str, given: str | None) -> str | None:
    mark = DELIMITERS.get(given, given) if given is not None else None
    if mark is not None and (len(mark) != 1 or mark in '\r\n"'):
        raise UserError(f"{source}: delimiter {given!r}; expected one character, or {', '.join(DELIMITERS)}")
    return mark


# --- JSON lines, parquet, the hub -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JsonLinesSource:
    """One JSON object a line; the first one's keys are the columns."""

    name: str
    file: Path
    encoding: str
    unit: Literal["line", "row"] = "line"

    def fingerprint(self) -> str:
        return _file_fingerprint(self.file)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        for row in self._objects():
            if isinstance(row, BrokenRow):
                raise UserError(f"{row}; the first line says which columns there are")
            return tuple(row[1])
        raise UserError(f"{self.name}: the file is empty; expected one JSON object a line")

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        must = columns if needed is None else needed
        for row in self._objects():
            if isinstance(row, BrokenRow):
                yield row
                continue
            line, content = row
            missing = next((column for column in must if column not in content), None)
            if missing is None:
                yield line, [content.get(column) for column in columns]
            else:
                yield BrokenRow(self.name, self.unit, line, missing, "", "the line has no such key")

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]] | BrokenRow]:
        for line, text in enumerate(read_lines(self.name, self.file, self.encoding, newline="\n"), start=1):
            if not text.strip():
                continue
            problem = "not a JSON object"
            try:
                content = json.loads(text)
            except (ValueError, RecursionError) as error:
                content, problem = None, f"not valid JSON: {error}"
            if isinstance(content, dict):
                yield line, content
            else:
                yield BrokenRow(self.name, self.unit, line, None, shortened(text.strip()), problem)


@dataclass(frozen=True)
class ParquetSource:
    """A parquet file, read a few thousand rows at a time."""

    name: str
    file: Path
    unit: Literal["line", "row"] = "row"

    def fingerprint(self) -> str:
        return _file_fingerprint(self.file)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        with self._open() as parquet:
            return _checked_columns(self.name, parquet.schema_arrow.names)

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        with self._open() as parquet:
            if parquet.metadata.num_rows == 0:
                raise UserError(f"{self.name}: a table without rows")
            batches = parquet.iter_batches(BATCH, columns=list(columns))
            yield from _numbered([batch.column(name).to_pylist() for name in columns] for batch in batches)

    def _open(self) -> Any:
        try:
            return pq.ParquetFile(self.file)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self.name}: not a parquet file that can be read ({error})") from error


@dataclass(frozen=True)
class HubSource:
    """A split of a data set of the Hugging Face hub, or of a local folder, with the `datasets` library.

    Class labels stay the numbers they are stored as.
    """

    name: str
    unit: Literal["line", "row"] = "row"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self.columns).encode())
        for table in self._data.with_format("arrow").iter(BATCH):
            for batch in table.to_batches():
                digest.update(batch.serialize())
        return digest.hexdigest()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._data.column_names)

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        batches = self._data.select_columns(list(columns)).iter(BATCH)
        yield from _numbered([batch[name] for name in columns] for batch in batches)

    @cached_property
    def _data(self) -> Any:
        try:
            import datasets  # noqa: PLC0415  an optional extra
        except ImportError as error:
            raise UserError(f"{self.name}: needs the datasets library: pip install 'polytask[hub]'") from error
        path, _, split = self.name.removeprefix("hub:").rpartition("#")
        if not path or not split:
            raise UserError(f"{self.name}: expected hub:DATASET#SPLIT or hub:DATASET/CONFIG#SPLIT, for example #train")
        problems = []
        for dataset, config in hub_names(path):
            try:
                data = datasets.load_dataset(dataset, config, split=split)
            except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
                problems.append(f"{dataset}{f' ({config})' if config else ''}: {error}")
                continue
            if len(data) == 0:
                raise UserError(f"{self.name}: a split without rows")
            return data
        raise UserError(
            f"{self.name}: cannot be loaded; " + "; ".join(problems or ["expected OWNER/NAME/CONFIG at most"])
        )


def hub_names(path: str) -> list[tuple[str, str | None]]:
    """The data sets and configurations that a name can mean, the likeliest first.

    A local folder, or one with a configuration's name behind it; NAME; OWNER/NAME; NAME/CONFIG; OWNER/NAME/CONFIG.
    """
    local = Path(path).expanduser()
    if local.is_dir():
        return [(str(local), None)]
    if local.parent.is_dir() and "/" in path:
        return [(str(local.parent), local.name)]
    parts = path.split("/")
    if len(parts) == 1:
        return [(path, None)]
    if len(parts) == 2:
        return [(path, None), (parts[0], parts[1])]
    return [("/".join(parts[:2]), parts[2])] if len(parts) == 3 else []


# --- shared by the above ----------------------------------------------------------------------------------------------


def read_lines(source: str, file: Path, encoding: str, newline: str) -> Iterator[str]:
    """The lines of a text file; what is no text is an error that says where."""
    try:
        with file.open(encoding=encoding, newline=newline) as lines:
            for number, line in enumerate(lines, start=1):
                if "\0" in line:
                    raise UserError(
                        f"{source}, line {number}: a NUL byte; expected a text file (if it is UTF-16, set "
                        "`encoding: utf-16-le` or `utf-16-be`, or save it as UTF-8)"
                    )
                yield line
    except UnicodeDecodeError:
        raise UserError(_undecodable(source, file, encoding)) from None
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror})") from error


def _undecodable(source: str, file: Path, encoding: str) -> str:
    """Where the first byte stands that is not of the encoding: Python's own error counts from the last buffer."""
    decoder, done, lines = codecs.getincrementaldecoder(encoding)(), 0, 1
    with file.open("rb") as content:
        while True:
            chunk = content.read(2**16)
            try:
                lines += decoder.decode(chunk, final=not chunk).count("\n")
            except UnicodeDecodeError as error:
                start = done - (len(error.object) - len(chunk)) + error.start
                lines += error.object[: error.start].decode(encoding, "replace").count("\n")
                found = f"0x{error.object[error.start]:02x}"
                break
            done += len(chunk)
            assert chunk, "called for a file that cannot be decoded"
    name = "utf-8" if encoding == "utf-8-sig" else encoding
    return (
        f"{source}, line {lines}, byte {start + 1} of the file: {found} is not {name} text; save the file as UTF-8 or "
        "set `encoding` (often cp1252 or latin-1)"
    )


def _checked_encoding(source: str, file: Path, encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
        "".encode(encoding)  # refuses codecs that are no text encoding, such as base64
    except LookupError as error:
        raise UserError(
            f"{source}: unknown encoding {encoding!r}; expected a name such as utf-8, utf-16, cp1252"
        ) from error
    try:
        with file.open("rb") as content:
            start = content.read(2)
    except OSError as error:
        raise UserError(f"{source}: cannot be read ({error.strerror})") from error
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not name.startswith(("utf-16", "utf-32")):
        raise UserError(
            f"{source}: starts as UTF-16 does, and is read as {name}; set `encoding: utf-16` or save it as UTF-8"
        )
    return "utf-8-sig" if name == "utf-8" else encoding


def _checked_columns(source: str, names: Sequence[str]) -> tuple[str, ...]:
    """A nameless column is allowed, because pandas writes its index so."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise UserError(f"{source}: the header has column {twice[0]!r} more than once; expected different names")
    return tuple(names)


def _file_fingerprint(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _numbered(batches: Iterable[list[list[Any]]]) -> Iterator[Row]:
    """Columns of values, batch after batch, as rows with their numbers."""
    number = 0
    for batch in batches:
        for values in zip(*batch, strict=True):
            number += 1
            yield number, list(values)


def _sample(source: str) -> Path:
    folder = Path(str(resources.files("polytask.tasks"))) / "sample"
    names = sorted(file.stem for file in folder.glob("*.csv"))
    name = source.removeprefix("sample:")
    if name not in names:
        raise UserError(f"{source}: no such sample; there are: {', '.join(names)}")
    return folder / f"{name}.csv"
