"""Opening a source by the name the user wrote: a file by its format, a built-in sample, or a data set of the hub."""

import os
from importlib import resources
from pathlib import Path
from typing import Literal

from polytask.tasks.delimited import DelimitedSource
from polytask.tasks.dialect import Quoting
from polytask.tasks.hub import HubSource
from polytask.tasks.jsonl import JsonLinesSource
from polytask.tasks.lines import checked_encoding
from polytask.tasks.parquet import ParquetSource
from polytask.tasks.source import Source
from polytask.types import TaskSpec, UserError

Format = Literal["csv", "tsv", "jsonl", "parquet"]

ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


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
    file = Path(os.path.expanduser(source))
    if not os.path.isfile(file):
        raise UserError(f"{source}: {'is a folder, expected a file' if os.path.isdir(file) else 'no such file'}")
    kind = format or ENDINGS.get(file.suffix.lower())
    if kind is None:
        raise UserError(f"{source}: unknown ending {file.suffix!r}; expected {', '.join(ENDINGS)}, or set `format`")
    if kind == "parquet":
        return ParquetSource(source, file)
    encoding = checked_encoding(source, file, encoding)
    if kind == "jsonl":
        return JsonLinesSource(source, file, encoding)
    return DelimitedSource(source, file, delimiter, quoting, encoding, first_guess="," if kind == "csv" else "\t")


def open_for(spec: TaskSpec, source: str) -> Source:
    """One of a task's sources, opened as its recipe says."""
    return open_source(
        source, format=spec.format, delimiter=spec.delimiter, quoting=spec.quoting, encoding=spec.encoding
    )


def _sample(source: str) -> Path:
    folder = Path(str(resources.files("polytask.tasks"))) / "sample"
    names = sorted(file.stem for file in folder.glob("*.csv"))
    name = source.removeprefix("sample:")
    if name not in names:
        raise UserError(f"{source}: no such sample; there are: {', '.join(names)}")
    return folder / f"{name}.csv"
