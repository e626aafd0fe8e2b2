"""The summary of a finished run: scores, costs and descriptions. Written to summary.json and read from it.

Scores are kept in the form of the lines of metrics.jsonl. Knows no model and no data.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from polytask.disk.atomic import write_atomically
from polytask.disk.json_files import read_json
from polytask.disk.records import convert
from polytask.types import LabelKind, UserError

FORMAT = 1
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Best:
    """The evaluation whose weights were saved."""

    step: int | None
    select: str
    """What it was chosen by: `train.select`."""
    value: float | None
    start_value: float | None = None
    """The same number before the first step."""


@dataclass(frozen=True)
class Parameters:
    """The number of parameters of each part."""

    encoder: int
    adapter_shared: int
    per_task: Mapping[str, int]
    total: int
    trainable: int


@dataclass(frozen=True)
class TaskSummary:
    """A task and its data."""

    kind: LabelKind
    classes: tuple[str, ...]
    range: tuple[float, float] | None
    """The lowest and highest score; None for other kinds, and for scores without a range."""
    text: tuple[str, ...]
    label: str | tuple[str, ...] | None
    metric: str
    data: Mapping[str, Json]
    """By split: rows, label balance and lengths."""
    trained: bool = True
    """Whether it was trained, or only scored (`trained: false`)."""
    thresholds: tuple[float, ...] = ()
    """For kind multilabel: the calibrated probability from which each class is predicted; empty: 0.5 for all."""
    own_kind: str | None = None
    """The kind of a plug-in, whose labels have the form of `kind`."""


@dataclass(frozen=True)
class Added:
    """The old tasks of a run that added tasks to another one, before and after."""

    run: str
    tasks: tuple[str, ...]
    """The new tasks."""
    guarantee: Literal["frozen", "measured"]
    max_drop: float | None
    """The largest drop in points that is allowed; None where any drop is, and with `frozen` unless a class is added."""
    old: Mapping[str, Json]
    """By old task: metric, before, after, difference, identical."""
    new_class: str | None = None
    """The class that a task of the run has got (`polytask add-class`); `tasks` is then this task."""
    classes: Mapping[str, Json] = field(default_factory=dict)
    """By class of that task, on dev: precision, recall, f1 and support `before` and `after`; None before for the new
    class."""


@dataclass(frozen=True)
class Summary:
    """All of summary.json."""

    name: str
    encoder: str
    finished: bool
    steps: int
    epochs: float
    seconds: float
    examples_per_second: float
    peak_memory_bytes: int
    device: str
    best: Best
    parameters: Parameters
    tasks: Mapping[str, TaskSummary]
    evaluations: Mapping[str, Mapping[str, Json]]
    """By split and task: the scores of the saved weights."""
    baselines: Mapping[str, Json]
    """By task: the score of the best constant answer."""
    calibration: Mapping[str, Json] = field(default_factory=dict)
    """By task with classes: its temperature, log loss and calibration error before and after, and the coverage,
    which is None for kind multilabel."""
    training_rows: Mapping[str, Json] = field(default_factory=dict)
    """By task: the scores of the saved weights on some training rows (`train.evaluate_train`)."""
    format: int = FORMAT
    encoder_revision: str | None = None
    skipped_steps: int = 0
    task_bests: Mapping[str, Json] = field(default_factory=dict)
    """By task: metric, value and step of its best dev score, and the step after which it `left` the sampler, if it
    did. The saved weights are those of `best`. Empty in runs of earlier versions."""
    findings: tuple[Json, ...] | None = None
    """What the data check found; None in runs of versions that did not check."""
    start: Mapping[str, Json] | None = None
    """By task: the scores before the first step; None in runs of earlier versions."""
    untrained: Mapping[str, Json] = field(default_factory=dict)
    """By task: the score of a simple method that trains nothing."""
    remarks: tuple[str, ...] = ()
    """Sentences about what training did not improve."""
    interference: Json | None = None
    transfer: Json | None = None
    """Of a run that learned its tasks one after another: every task's score after each stage."""
    added: Added | None = None
    refused: str | None = None
    """Why no model was saved."""
    saved: bool = True
    word_tags: Json | None = None
    """The part-of-speech tags that the model knows (`names`), and their `tagger`; None without tags."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Where the time went: seconds by phase, up to the report; of a resumed run, those of the last process."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def write_summary(summary: Summary, path: Path) -> None:
    write_atomically(path, json.dumps(summary.to_json(), indent=1, ensure_ascii=False))


def read_summary(path: Path) -> Summary:
    """The summary in a file of this version or an earlier one; a UserError that names the file if it is damaged."""
    return summary_from(read_json(path), str(path))


def summary_from(content: dict[str, Any], where: str) -> Summary:
    """The summary of this JSON object; `where` names it in errors."""
    parameters = content.get("parameters")
    if isinstance(parameters, dict) and "trunk" in parameters:  # the name of this field in earlier versions
        parameters["encoder"] = parameters.pop("trunk")
    summary: Summary = convert(content, Summary, where)
    if summary.format != FORMAT:
        raise UserError(f"{where}: format {summary.format} is unknown to this version, which reads {FORMAT}")
    return summary
