"""Opens a source by the name that the user wrote: a file, a built-in sample, or a data set of the hub."""

import logging
import os
from importlib import resources
from pathlib import Path
from typing import Literal

from polytask.settings import TaskSpec
from polytask.tasks.sources.conll import ConllSource, begins_as_conll
from polytask.tasks.sources.delimited import DelimitedSource
from polytask.tasks.sources.dialect import NO_DELIMITER, Quoting, delimiter_name
from polytask.tasks.sources.encoding import WINDOWS
from polytask.tasks.sources.hub import HubSource
from polytask.tasks.sources.jsonl import JsonLinesSource
from polytask.tasks.sources.lines import checked_encoding
from polytask.tasks.sources.sheets import SheetSource
from polytask.tasks.sources.source import Source
from polytask.types import UserError

log = logging.getLogger(__name__)

Format = Literal["csv", "tsv", "jsonl", "parquet", "xlsx", "conll"]

ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".conll": "conll",
    ".conllu": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".iob2": "conll",
}


def open_source(
    source: str,
    *,
    format: Format | None = None,
    delimiter: str | None = None,
    quoting: Quoting | None = None,
    encoding: str | None = None,
    fallback: str | None = None,
) -> Source:
    """Opens a file's path, `WORKBOOK.xlsx#SHEET`, `sample:NAME` or `hub:DATASET[/CONFIG]#SPLIT`.

    Format, delimiter, quoting and encoding are detected unless given; `fallback` is the encoding of a file that is
    neither UTF-8 nor UTF-16 (default: Windows-1252, if that gives sensible text).
    """
    if source.startswith("hub:"):
        return HubSource(source)
    if source.startswith("sample:"):
        file = _sample(source)
        if file.suffix == ".jsonl":
            return JsonLinesSource(source, file, "utf-8")
        return DelimitedSource(source, file, ",", "minimal", "utf-8")
    path, sheet = split_sheet(os.path.expanduser(source))
    file = Path(path)
    if not os.path.isfile(file):
        raise UserError(f"{source}: {'expected a file, found a folder' if os.path.isdir(file) else 'no such file'}")
    kind = format or ENDINGS.get(file.suffix.lower())
    if format is None and kind in (None, ENDINGS[".txt"]) and begins_as_conll(file):
        kind = "conll"
    if kind is None and file.suffix.lower() == ".xls":
        raise UserError(f"{source}: the old Excel format is not supported; open it in Excel and save it as .xlsx")
    if kind is None:
        raise UserError(f"{source}: unknown extension {file.suffix!r}; expected {', '.join(ENDINGS)}, or set `format`")
    if kind == "parquet":
        from polytask.tasks.sources.parquet import ParquetSource  # imports pyarrow  # noqa: PLC0415

        return ParquetSource(source, file)
    if kind == "xlsx":
        return SheetSource(source, file, sheet)
    encoding = checked_encoding(source, file, encoding, fallback)
    if kind == "conll":
        return ConllSource(source, file, encoding)
    if kind == "jsonl":
        return JsonLinesSource(source, file, encoding)
    return DelimitedSource(source, file, delimiter, quoting, encoding, first_guess="," if kind == "csv" else "\t")


def open_for(spec: TaskSpec, source: str) -> Source:
    """Opens one of a task's sources with the task's format, delimiter, quoting and encoding."""
    return open_source(
        source, format=spec.format, delimiter=spec.delimiter, quoting=spec.quoting, encoding=spec.encoding
    )


def split_sheet(source: str) -> tuple[str, str | None]:
    """Splits `book.xlsx#Sheet2` into the file and the sheet; any other source is a file without a sheet."""
    file, mark, sheet = source.rpartition("#")
    if mark and ENDINGS.get(Path(file).suffix.lower()) == "xlsx" and not os.path.exists(source):
        return file, sheet
    return source, None


def encoding_of(source: Source) -> str | None:
    """Returns the encoding that a text file is read with; None for sources that are not text files."""
    if not isinstance(source, DelimitedSource | JsonLinesSource | ConllSource):
        return None
    return "utf-8" if source.encoding == "utf-8-sig" else source.encoding


def warn_of_guess(source: Source, given: str | None) -> None:
    """Logs a warning if a file's encoding is a guess, for commands that show no findings."""
    if given is None and encoding_of(source) == WINDOWS:
        log.warning(
            "%s: not UTF-8; read as Windows-1252, a guess. If letters look wrong, save the file as UTF-8", source.name
        )


def delimiter_of(source: Source) -> str | None:
    """Returns the delimiter of a csv or tsv file; None for a file of one column and for other sources."""
    if not isinstance(source, DelimitedSource) or source.dialect[0] == NO_DELIMITER:
        return None
    return source.dialect[0]


def dialect_of(source: Source) -> dict[str, str]:
    """Returns the delimiter and the quoting of a csv or tsv file as fields of a task; empty for other sources."""
    if not isinstance(source, DelimitedSource):
        return {}
    delimiter, quoting = source.dialect
    return {"delimiter": delimiter, "quoting": quoting}


def detected_fields(source: Source) -> dict[str, str]:
    """Returns the detected encoding and delimiter as recipe fields, if they differ from the defaults."""
    fields: dict[str, str] = {}
    encoding, delimiter = encoding_of(source), delimiter_of(source)
    if encoding not in (None, "utf-8"):
        fields["encoding"] = str(encoding)
    if delimiter is not None and isinstance(source, DelimitedSource) and delimiter != source.first_guess:
        fields["delimiter"] = delimiter_name(delimiter)
    return fields


def _sample(source: str) -> Path:
    folder = Path(str(resources.files("polytask.tasks"))) / "sample"
    files = {file.stem: file for file in sorted(folder.iterdir()) if file.suffix in (".csv", ".jsonl")}
    name = source.removeprefix("sample:")
    if name not in files:
        raise UserError(f"{source}: no such sample; expected one of {', '.join(f'sample:{name}' for name in files)}")
    return files[name]
