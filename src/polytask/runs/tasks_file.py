"""tasks.json, the file of a model folder that describes the model and its tasks; it may come from a stranger."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from polytask.build import head_choice
from polytask.disk.json_files import read_json
from polytask.disk.records import convert
from polytask.kinds.table import KINDS
from polytask.plugins.register import FORMS
from polytask.recipe.records import check_task_name
from polytask.settings import (
    MOST_TEXTS,
    Bounds,
    MaxLength,
    MethodChoice,
    OpenKind,
    Share,
    TaskSpec,
    Truncate,
    Windows,
)
from polytask.text.tagging import TagVocabulary
from polytask.types import YES_NO, LabelKind, LabelSpace, TagScheme, UserError

FORMAT = 1
AGAIN = "train again, or restore it from a copy"
SEVERAL = range(1, MOST_TEXTS + 1)


@dataclass(frozen=True)
class Method:
    """A method in tasks.json."""

    name: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, choice: MethodChoice) -> "Method":
        return cls(choice.name, choice.options)

    def choice(self) -> MethodChoice:
        return MethodChoice(self.name, self.options)


@dataclass(frozen=True)
class TaskEntry:
    """A task in tasks.json."""

    kind: OpenKind
    text: tuple[str, ...]
    label: str | tuple[str, ...] | None
    classes: tuple[str, ...]
    range: tuple[float, float]
    metric: str | None
    head: Method
    encoding: str | None = None
    tags: tuple[str, ...] = ()
    standardized_by: tuple[float, float] | None = None
    """Mean and standard deviation of the training scores; None for other kinds, and in models of earlier versions."""
    thresholds: tuple[float, ...] = ()
    """For kind multilabel, the probability before calibration from which each class is predicted; empty: 0.5 for
    all."""
    separator: str = ""
    """For kind multilabel, what separates the classes in a column of text."""
    scheme: TagScheme | None = None
    """For kind tokens, how tags mark spans."""
    temperature: Annotated[float, Bounds(0, 1000, "(]")] = 1.0
    """What outputs are divided by before probabilities are computed; 1 in models of earlier versions."""
    abstain_below: Share | None = None
    windows: Windows | None = None
    options: str | tuple[str, ...] | None = None
    """For kind choice, the column with lists of options, or the columns with one option each."""
    form: LabelKind | None = None
    """For a kind of a plug-in: the built-in kind whose form its labels have."""
    bounded: bool = True
    """Whether `range` is the lowest and the highest score. If not, it is the mean of the training scores, and the mean
    plus their standard deviation."""

    @classmethod
    def of(cls, spec: TaskSpec, labels: LabelSpace, temperature: float = 1.0) -> "TaskEntry":
        return cls(
            kind=spec.kind,
            text=spec.text,
            label=spec.label,
            classes=tuple(labels.classes),
            range=(labels.low, labels.high),
            metric=spec.metric,
            head=Method.of(head_choice(spec)),
            encoding=spec.encoding,
            tags=spec.tags,
            standardized_by=labels.standardized_by,
            thresholds=labels.thresholds,
            separator=labels.separator,
            scheme=labels.scheme,
            temperature=temperature,
            abstain_below=spec.abstain_below,
            windows=spec.windows,
            options=spec.options,
            form=labels.kind if labels.own_kind else None,
            bounded=labels.bounded,
        )

    def check(self, where: str) -> None:
        """Refuses what no training run writes."""
        built_in = get_args(LabelKind)
        if self.form is not None and (self.form not in FORMS or self.kind in built_in):
            raise UserError(f"{where}.form: only the kind of a plug-in has one, found {self.form} for {self.kind}")
        if (self.form or self.kind) not in built_in:
            raise UserError(f"{where}.kind: must be one of {', '.join(built_in)}; found {self.kind!r}")
        (self if self.form is None else replace(self, kind=self.form, form=None))._check(where)

    def _check(self, where: str) -> None:
        self._check_columns(where)
        self._check_classes(where)
        self._check_thresholds(where)
        if self.temperature != 1 and not KINDS[self.kind].is_calibrated:
            raise UserError(f"{where}.temperature: must be 1 for kind {self.kind}, found {self.temperature}")
        if self.abstain_below is not None and not KINDS[self.kind].has_confidence:
            raise UserError(f"{where}.abstain_below: kind {self.kind} has none, found {self.abstain_below}")
        self._check_scores(where)

    def _check_columns(self, where: str) -> None:
        if len(self.text) not in {"text": (1,), "tokens": (1,), "choice": (1,), "match": (2,)}.get(self.kind, SEVERAL):
            raise UserError(f"{where}.text: must be one column, or up to {MOST_TEXTS}, found {len(self.text)}")
        if (self.options is None) != (self.kind != "choice") or self.options in ((), ""):
            raise UserError(f"{where}.options: only kind choice has options, found {self.options!r} for {self.kind}")
        if len(self.tags) not in (0, len(self.text)):
            raise UserError(f"{where}.tags: must be one column for each text, found {len(self.tags)}")
        if (self.label is None) == KINDS[self.kind].has_labels:
            raise UserError(
                f"{where}.label: every kind except text and match has a label, found {self.label!r} for {self.kind}"
            )
        if isinstance(self.label, tuple) and (self.kind != "multilabel" or self.label != self.classes):
            raise UserError(f"{where}.label: must be one column, found {self.label!r:.200} for {self.kind}")

    def _check_classes(self, where: str) -> None:
        fixed = YES_NO.classes if self.kind == "yes_no" else ()
        if (self.scheme is None) == (self.kind == "tokens"):
            raise UserError(f"{where}.scheme: must be given for kind tokens only, found {self.scheme!r}")
        if self.kind in ("classes", "multilabel", "tokens"):
            if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes) or not all(self.classes):
                raise UserError(f"{where}.classes: must be two or more different names, found {self.classes!r:.200}")
        elif self.classes != fixed:
            raise UserError(f"{where}.classes: must be {list(fixed)} for kind {self.kind}, found {self.classes!r:.200}")

    def _check_thresholds(self, where: str) -> None:
        several = self.kind == "multilabel"
        if len(self.thresholds) not in ((0, len(self.classes)) if several else (0,)):
            raise UserError(f"{where}.thresholds: must be one for each class, found {len(self.thresholds)}")
        if not all(0 <= threshold <= 1 for threshold in self.thresholds):
            raise UserError(f"{where}.thresholds: must be in [0, 1], found {list(self.thresholds)!r:.200}")
        if bool(self.separator) != several:
            raise UserError(f"{where}.separator: only kind multilabel has one, found {self.separator!r:.80}")

    def _check_scores(self, where: str) -> None:
        low, high = self.range
        if not low < high or not math.isfinite(high - low):
            raise UserError(f"{where}.range: must be the lowest score and a higher one, found {[low, high]}")
        if not self.bounded and self.kind != "score":
            raise UserError(f"{where}.bounded: only scores can be without a range, found kind {self.kind}")
        if self.standardized_by is not None:
            mean, deviation = self.standardized_by
            in_range = self.bounded and low <= mean <= high and 0 < deviation <= high - low
            if self.kind != "score" or not in_range:
                raise UserError(
                    f"{where}.standardized_by: must be the mean and the standard deviation of scores in the range, "
                    f"found {[mean, deviation]} for kind {self.kind}"
                )

    def labels(self, vocabulary: int = 0) -> LabelSpace:
        return LabelSpace(
            self.form or self.kind,
            self.classes,
            *self.range,
            vocabulary=vocabulary if self.kind == "text" else 0,
            standardized_by=self.standardized_by,
            thresholds=self.thresholds,
            separator=self.separator,
            bounded=self.bounded,
            scheme=self.scheme,
            own_kind=None if self.form is None else self.kind,
        )

    def spec(self, name: str) -> TaskSpec:
        return TaskSpec(
            name,
            self.kind,
            self.text,
            self.label,
            train="",
            dev="",
            range=self.range if self.bounded else None,
            metric=self.metric,
            head=self.head.choice(),
            encoding=self.encoding,
            tags=self.tags,
            scheme=self.scheme,
            abstain_below=self.abstain_below,
            windows=self.windows,
            options=self.options,
        )


@dataclass(frozen=True)
class TasksFile:
    """All of tasks.json."""

    format: int
    max_length: MaxLength
    adapter: Method
    tasks: Mapping[str, TaskEntry]
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the other files."""
    word_tags: TagVocabulary | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the files in plugins/, by name."""
    truncate: Truncate = "end"


def read_tasks(path: Path) -> TasksFile:
    """The record in tasks.json, checked."""
    try:
        content = read_json(path)
    except UserError as error:
        raise UserError(f"{path}: damaged: {error}; {AGAIN}") from None
    if not {"format", "max_length", "adapter", "tasks"} <= content.keys():
        raise UserError(f"{path}: damaged: not a description of a model's tasks")
    if content["format"] != FORMAT:
        raise UserError(f"{path}: format {content['format']!r} is unknown to this version, which reads {FORMAT}")
    tasks: TasksFile = convert(content, TasksFile, str(path))
    if not tasks.tasks:
        raise UserError(f"{path}: tasks: at least one task is needed")
    if tasks.word_tags is not None:
        tasks.word_tags.check(f"{path}: word_tags.names")
    for name, entry in tasks.tasks.items():
        check_task_name(name, f"{path}: tasks")
        entry.check(f"{path}: tasks.{name}")
    return tasks
