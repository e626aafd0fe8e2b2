"""The plan of a bulk prediction: which model and options, which input files, which shards. It is written first.

A restart makes the same plan from the same command, or is refused: predictions of two models, or of two states of the
input, are never mixed in a folder.
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath

from polytask.bulk.shards import Shard, cut, format_of, measure
from polytask.bulk.storage import Storage
from polytask.disk.hashing import sha256
from polytask.disk.records import convert
from polytask.runs.folder import find_model
from polytask.serving.added import added_columns, check_names
from polytask.serving.files import encoding_of_tasks
from polytask.serving.predictor import Predictor
from polytask.serving.text_columns import text_columns
from polytask.types import UserError
from polytask.version import __version__

NAME = "_plan.json"
FORMAT = 1
ROWS_PER_SHARD = 16_384
"""By default. Texts are sorted by length and computed 4,096 at a time, so a shard is a few times that."""
READERS = 16
"""Files that are measured at once: most of the time, an object store is waited for."""
SHOWN = 5
HEAD_BYTES = 1000
"""The beginning of a plan, which has its id."""
AGAIN = "choose another output folder, or pass --force (force=True) to delete its shards and start again"


@dataclass(frozen=True)
class Options:
    """What changes the predictions or how they are written."""

    tasks: tuple[str, ...]
    columns: tuple[str, ...]
    """The text columns; empty: those of the training data."""
    probabilities: str
    precision: str
    abstain_below: float | None
    rows_per_shard: int


@dataclass(frozen=True)
class PlannedFile:
    """An input file, and what changes with its content."""

    url: str
    size: int
    stamp: str
    rows: int = 0


@dataclass(frozen=True)
class Plan:
    """All of _plan.json."""

    format: int
    id: str
    """A random one: a worker writes no shard into the folder of another plan."""
    version: str
    """Of polytask."""
    model: Mapping[str, str]
    """The SHA-256 of the model's files."""
    options: Options
    inputs: tuple[PlannedFile, ...]
    shards: tuple[Shard, ...]

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def write(self, output: Storage) -> None:
        (output / NAME).write_json(asdict(self))

    @classmethod
    def read(cls, output: Storage) -> "Plan":
        file = output / NAME
        plan: Plan = convert(file.read_json(), cls, file.url)
        if plan.format != FORMAT:
            raise UserError(f"{file.url}: written by another version of polytask (format {plan.format}); {AGAIN}")
        return plan


def plan_id(output: Storage) -> str | None:
    """The id of the plan in a folder; None if there is no plan, or one of another version.

    Reads only the beginning of the file: workers ask often, and a plan may have many shards.
    """
    try:
        beginning = (output / NAME).beginning(HEAD_BYTES).decode(errors="replace")
    except UserError:
        return None
    found = re.search(r'"id": "([0-9a-f]{32})"', beginning)
    return found[1] if found else None


def model_hashes(run: Path) -> dict[str, str]:
    """The SHA-256 of each file of a run's model."""
    model = find_model(run)
    if model is None:
        raise UserError(f"{run}: there is no model here")
    return {file.name: sha256(file) for file in model.files}


# --- a new plan -------------------------------------------------------------------------------------------------------
def find_inputs(patterns: Sequence[str], output: Storage) -> list[PlannedFile]:
    """The files of all patterns, folders and files, without those in the output folder, each once and in order."""
    files: dict[str, Storage] = {}
    inside = 0
    for pattern in patterns:
        place = Storage.of(pattern)
        found, in_folder = place.found(), place.is_folder()
        if not found:
            raise UserError(f"{pattern}: no such file, and no files match it; check the path, and quote patterns")
        known = [file for file in found if not _is_other(file, in_folder) or (len(found) == 1 and not in_folder)]
        if not known:
            raise UserError(f"{pattern}: none of its {len(found):,} files can be predicted: {_formats(found)}")
        kept = [file for file in known if not file.url.startswith(f"{output.url}/")]
        inside += len(known) - len(kept)
        files |= {file.url: file for file in kept}
    if not files:
        raise UserError(f"{output.url}: all {inside:,} input files are in the output folder; choose another folder")
    for url in files:
        format_of(url)
    return [PlannedFile(url, *found) for url, found in zip(files, _fingerprints(files.values()), strict=True)]


def _fingerprints(files: Iterable[Storage]) -> list[tuple[int, str]]:
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(Storage.fingerprint, files))


def changed_inputs(plan: Plan) -> list[str]:
    """The input files that are other ones than when the plan was made."""
    files = [Storage.of(file.url) for file in plan.inputs]
    for system in {id(file.system): file.system for file in files}.values():
        system.invalidate_cache()
    both = zip(plan.inputs, _fingerprints(files), strict=True)
    return [file.url for file, found in both if (file.size, file.stamp) != found]


def _is_other(file: Storage, in_folder: bool) -> bool:
    """Whether a file is no data. In a folder, .txt files are more likely to be notes than tab-separated rows."""
    if in_folder and PurePosixPath(file.path).suffix.lower() == ".txt":
        return True
    try:
        format_of(file.url)
    except UserError:
        return True
    return False


def _formats(files: Sequence[Storage]) -> str:
    endings = sorted({PurePosixPath(file.path).suffix or "no extension" for file in files})
    return f"found {', '.join(endings[:SHOWN])}; expected .parquet, .csv, .tsv or .jsonl"


def choose_tasks(
    predictor: Predictor, tasks: Sequence[str] | None, columns: Sequence[str] | None, inputs: Sequence[PlannedFile]
) -> list[str]:
    """The tasks to predict: the given ones, or all whose text columns the first file has that is not empty."""
    encoding = encoding_of_tasks(predictor, tasks)
    for file in inputs:
        if found := measure(Storage.of(file.url), encoding).columns:
            return list(text_columns(predictor, tasks, columns, found, file.url))
    raise _no_rows(inputs)


def make_plan(predictor: Predictor, model: Mapping[str, str], options: Options, inputs: Sequence[PlannedFile]) -> Plan:
    """Measures all files, checks that they have the columns, and divides them into shards."""
    encoding = encoding_of_tasks(predictor, options.tasks)
    with ThreadPoolExecutor(READERS) as readers:
        measured = list(readers.map(lambda file: measure(Storage.of(file.url), encoding), inputs))
    added = {task: added_columns(predictor, task, options.probabilities, lists=True) for task in options.tasks}
    ranges: list[tuple[str, int, int]] = []
    for file, found in zip(inputs, measured, strict=True):
        if not found.columns:
            continue
        needed = text_columns(predictor, options.tasks, options.columns, found.columns, file.url)
        missing = {name for names in needed.values() for name in names} - set(found.columns)
        if missing:
            raise UserError(
                f"{file.url}: no column {', '.join(map(repr, sorted(missing)))}; its columns are: "
                f"{', '.join(found.columns)}"
            )
        check_names(file.url, found.columns, added)
        whole = [(0, sum(found.row_groups))]
        parts = cut(found.row_groups, options.rows_per_shard) if format_of(file.url) == "parquet" else whole
        ranges += [(file.url, start, rows) for start, rows in parts if rows]
    if not ranges:
        raise _no_rows(inputs)
    width = max(5, len(str(len(ranges) - 1)))
    shards = tuple(
        Shard(f"part-{number:0{width}}{PurePosixPath(url).suffix.lower()}", url, start, rows)
        for number, (url, start, rows) in enumerate(ranges)
    )
    files = tuple(
        PlannedFile(file.url, file.size, file.stamp, sum(found.row_groups))
        for file, found in zip(inputs, measured, strict=True)
    )
    return Plan(FORMAT, uuid.uuid4().hex, __version__, model, options, files, shards)


def _no_rows(inputs: Sequence[PlannedFile]) -> UserError:
    return UserError(f"{inputs[0].url}: there are no rows to predict in the {len(inputs):,} input file(s)")


# --- an earlier plan --------------------------------------------------------------------------------------------------
def check_same(
    plan: Plan, output: Storage, model: Mapping[str, str], options: Options, inputs: Sequence[PlannedFile]
) -> None:
    """Raises a UserError that says what has changed since the plan was written."""
    changes = list(_changes(plan, model, options, inputs))
    if changes:
        more = f"\n  and {len(changes) - SHOWN:,} more" if len(changes) > SHOWN else ""
        listed = "".join(f"\n  {change}" for change in changes[:SHOWN])
        raise UserError(
            f"{output.url}: holds the predictions of another command, which are never mixed with new ones:"
            f"{listed}{more}\nTo continue, use the same model, input and options; otherwise {AGAIN}"
        )


def _changes(plan: Plan, model: Mapping[str, str], options: Options, inputs: Sequence[PlannedFile]) -> Iterator[str]:
    if plan.model != model:
        files = [name for name in sorted({*plan.model, *model}) if plan.model.get(name) != model.get(name)]
        yield f"the model is another one ({', '.join(files)} {'differs' if len(files) == 1 else 'differ'})"
    if plan.version != __version__:
        yield f"polytask was version {plan.version} and is now {__version__}"
    for field in fields(Options):
        before, now = getattr(plan.options, field.name), getattr(options, field.name)
        if before != now:
            yield f"{field.name} was {_shown(before)} and is now {_shown(now)}"
    earlier, current = {file.url: file for file in plan.inputs}, {file.url: file for file in inputs}
    for url in sorted({*earlier, *current}):
        if url not in current:
            yield f"the input file {url} is no longer there"
        elif url not in earlier:
            yield f"the input file {url} is new"
        elif (earlier[url].size, earlier[url].stamp) != (current[url].size, current[url].stamp):
            yield f"the input file {url} has changed ({earlier[url].size:,} bytes, now {current[url].size:,})"


def _shown(value: object) -> str:
    return ", ".join(value) or "the default" if isinstance(value, tuple) else str(value)
