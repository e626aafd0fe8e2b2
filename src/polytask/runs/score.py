"""Scores and predictions of a run's model on whole splits, during training and afterwards."""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from polytask import seeds
from polytask.evaluation.baselines import untrained_baseline
from polytask.evaluation.calibration import before_and_after
from polytask.evaluation.evaluate import evaluate, split_outputs, with_places, write_predictions
from polytask.evaluation.packed_splits import PackedSplits
from polytask.kinds.table import KINDS
from polytask.machine import pick_device
from polytask.processes import ALONE, Processes
from polytask.recipe.in_memory import file_of
from polytask.recipe.reading import read_recipe
from polytask.recipe.task_classes import Data, is_in_memory
from polytask.runs.bundle import Bundle, load_run, read_split_for
from polytask.runs.folder import RunFolder
from polytask.runs.prepare import Prepared, use_code
from polytask.settings import TaskSpec
from polytask.tasks.lengths import check_lengths, count_truncated, text_lengths
from polytask.tasks.shared_rows import shared_rows
from polytask.tasks.task import Split
from polytask.text.texts import Texts
from polytask.types import EvalReport, Prediction, TaskScore, UserError, unknown

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class SplitScores:
    """The scores of a model on a split of every task, and the outputs that they were computed from."""

    report: EvalReport
    outputs: Mapping[str, torch.Tensor]
    """By task: the head's outputs for every example, in order."""


def score_split(
    prepared: Prepared,
    split: str,
    step: int,
    tasks: Collection[str] | None = None,
    processes: Processes = ALONE,
) -> SplitScores:
    """Scores the model on a split of some tasks; left out: of all tasks that have it.

    Several processes divide the work, and each returns the same scores.
    """
    splits = {name: data for name, data in prepared.splits(split).items() if tasks is None or name in tasks}
    shared = prepared.shared_rows(split).values()
    model, packer = prepared.model, prepared.packer
    outputs = split_outputs(model, splits, packer, prepared.bf16, prepared.packed, shared, processes)
    report = evaluate(model, outputs, splits, prepared.recipe.tasks, split, step)
    not_trained = tuple(name for name in report.tasks if not prepared.recipe.tasks[name].trained)
    return SplitScores(replace(report, not_trained=not_trained), outputs)


def choose_on_dev(prepared: Prepared, scores: SplitScores) -> SplitScores:
    """Sets what is chosen on dev after training, such as thresholds, and returns the dev scores with it."""
    model, specs, splits = prepared.model, prepared.recipe.tasks, prepared.splits("dev")
    changed = False
    for name in prepared.drawn:
        head = model.head(name)
        labels = head.kind.tuned(specs[name], head.labels, scores.outputs[name], splits[name].labels)
        changed, head.labels = changed or labels != head.labels, labels
    if not changed:
        return scores
    report = evaluate(model, scores.outputs, splits, specs, "dev", scores.report.step)
    return SplitScores(replace(report, not_trained=scores.report.not_trained), scores.outputs)


@dataclass(frozen=True)
class SomeRows:
    """Some of a split's examples, by index."""

    split: Split
    indices: npt.NDArray[np.int64]

    @property
    def labels(self) -> npt.NDArray[Any]:
        return self.split.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        return self.split.tokens(int(self.indices[index]))

    def gather(self, indices: npt.NDArray[np.int64]) -> Texts:
        """Returns the texts of several examples, with their tags."""
        return self.split.gather(self.indices[indices])


def sample_of_training_rows(prepared: Prepared) -> dict[str, SomeRows]:
    """`train.evaluate_train` training rows of each trained task; the choice does not depend on the run's seed."""
    chosen = {}
    for name in prepared.drawn if prepared.recipe.train.evaluate_train else ():
        split = prepared.tasks[name].splits["train"]
        order = seeds.generator(0, "evaluate_train", name).permutation(len(split))
        chosen[name] = SomeRows(split, np.sort(order[: prepared.recipe.train.evaluate_train]))
    return chosen


@dataclass
class DevScorer:
    """Scores dev during training, and keeps the last result: the end of a run needs that of the best step again.

    With `train.evaluate_train` it scores some training rows too.
    """

    prepared: Prepared
    processes: Processes = ALONE
    last: SplitScores | None = None
    seconds: float = 0.0
    """The time that all evaluations took."""

    training_rows: Mapping[str, SomeRows] = field(init=False)
    """By task: the training rows that are scored too."""
    _packed: PackedSplits = field(default_factory=PackedSplits)
    """Their batches. Those of dev are kept elsewhere, because only one split of a task is kept."""

    def __post_init__(self) -> None:
        self.training_rows = sample_of_training_rows(self.prepared)

    def __call__(self, step: int) -> EvalReport:
        """The scores that choose the best checkpoint; at step 0 together with the scores of untrained methods."""
        started = time.perf_counter()
        scores = score_split(self.prepared, "dev", step, self.prepared.evaluated, self.processes)
        report = replace(scores.report, train=self.score_training_rows(step, self.processes))
        self.last = replace(scores, report=report)
        if step == 0 and self.processes.is_main:
            report = replace(report, baselines=untrained_baselines(self.prepared))
        self.seconds += time.perf_counter() - started
        return report

    def score_training_rows(self, step: int, processes: Processes = ALONE) -> Mapping[str, TaskScore]:
        """By task: the scores on the chosen training rows; empty without `train.evaluate_train`."""
        prepared, rows = self.prepared, self.training_rows
        model, packer = prepared.model, prepared.packer
        outputs = split_outputs(model, rows, packer, prepared.bf16, self._packed, processes=processes)
        return evaluate(prepared.model, outputs, rows, prepared.recipe.tasks, "train", step).tasks

    def kept(self, step: int) -> SplitScores | None:
        """The scores of this step, if it was the last that was evaluated and all tasks were."""
        tasks = self.prepared.splits("dev").keys()
        last = self.last
        return last if last is not None and last.report.step == step and last.outputs.keys() == tasks else None


def untrained_baselines(prepared: Prepared) -> dict[str, dict[str, Any]]:
    """By task: the dev score of a method that trains nothing (`untrained_baseline`). Plain text and words have none."""
    return {
        name: untrained_baseline(prepared.model, task.spec, task.labels, task.splits, prepared.packer, prepared.bf16)
        for name, task in prepared.tasks.items()
        if name in prepared.evaluated
        and (kind := KINDS[task.spec.kind]).has_predictions
        and not kind.per_word
        and {"train", "dev"} <= set(task.splits)
    }


def predict_split(prepared: Prepared, split: str, scores: SplitScores, folder: RunFolder) -> None:
    """Writes the predictions of every task."""
    for name, data in prepared.splits(split).items():
        _write_predictions(folder.predictions(name, split), prepared.bundle, name, scores.outputs[name], data)


def _write_predictions(path: Path, bundle: Bundle, task: str, outputs: torch.Tensor, data: Split) -> Path | None:
    """Returns the path; None for plain text, which has no predictions.

    Every row has a label, also where the model abstains: the file shows what the model would have predicted.
    """
    labels = bundle.labels[task]
    kind = KINDS[labels.kind]
    if not kind.has_predictions:
        return None
    lengths_NW, scheme = text_lengths(data, bundle.tokenizer), labels.scheme
    predictions: Iterable[Prediction] = bundle.predictions(task, outputs, lengths_NW, keep_labels=True)
    if scheme is not None:
        predictions = with_places(data.examples(), predictions, scheme)
    if kind.compared_field == "rank":
        _, ranks_N = kind.compared(data.labels, kind.predicted(outputs, labels), labels)
        predictions = [replace(one, rank=rank) for one, rank in zip(predictions, ranks_N.tolist(), strict=True)]
    write_predictions(path, data.examples(), predictions)
    return path


@dataclass(frozen=True)
class Evaluated(EvalReport):
    """Scores of a finished run, with the rows that were left out and the files that were written."""

    skipped: Mapping[str, int] = field(default_factory=dict)
    """By task: the number of broken rows that were left out (`broken_rows: skip`)."""
    blank: Mapping[str, int] = field(default_factory=dict)
    """By task: the number of rows without a label that were left out (`blank_labels: skip` or `share_rows`)."""
    predictions: Mapping[str, Path] = field(default_factory=dict)
    """By task: the file with its predictions."""
    truncated: Mapping[str, int] = field(default_factory=dict)
    """By task: the number of rows that are longer than `max_length`."""
    calibration: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By task with a temperature other than 1: log loss and calibration error without it (before) and with it (after).
    The scores are those without it."""


def evaluate_run(
    folder: str | Path, split: str = "dev", on: Mapping[str, Data] | None = None, trust_plugins: bool = False
) -> Evaluated:
    """Scores a finished run on its own files of a split, or on other data by task, and writes the predictions.

    Other data is a file, or in memory. Predictions on it are written to predictions/TASK-on-FILE.jsonl. `trust_plugins`
    remembers that the run's plug-ins, which are Python programs, may run.
    """
    run = RunFolder(Path(folder))
    if not run.recipe.is_file():
        raise UserError(f"{folder}: not a run: it has no {run.recipe.name}")
    recipe = read_recipe(run.recipe)
    use_code(recipe, trust_plugins)
    bundle = load_run(run.path)
    bundle.model.to(pick_device(recipe.train.device))
    own = {} if on else {name: _file_of(spec, split, run.path) for name, spec in recipe.tasks.items()}
    files: dict[str, Any] = dict(on or {}) or {name: file for name, file in own.items() if file is not None}
    if not files:
        raise UserError(f"{folder}: no task of its recipe has a {split} file")
    for name in files:
        for known, where in ((bundle.specs, run.path), (recipe.tasks, f"{run.recipe}: tasks")):
            if name not in known:
                raise UserError(unknown(str(where), name, known, "task"))
    splits = {}
    for name, data in files.items():
        spec, files[name] = _with_file(recipe.tasks[name], data)
        splits[name] = read_split_for(bundle, spec, files[name], split)
    forms = {name: bundle.model.input_format(name) for name in splits}
    check_lengths([(data, forms[name]) for name, data in splits.items()], bundle.packer, bundle.tokenizer)
    shared = [rows for _, rows in shared_rows(splits)]
    outputs = split_outputs(bundle.model, splits, bundle.packer, recipe.train.precision == "bf16", shared=shared)
    report = evaluate(bundle.model, outputs, splits, recipe.tasks, split, 0)
    written: dict[str, Path] = {}
    for name, data in splits.items():
        target = run.predictions(name, f"on-{Path(files[name]).stem}" if on else split)
        path = _write_predictions(target, bundle, name, outputs[name], data)
        written |= {} if path is None else {name: path}
    return Evaluated(
        report.step,
        split,
        report.tasks,
        not_trained=tuple(name for name in splits if not recipe.tasks[name].trained),
        skipped={name: data.num_broken for name, data in splits.items()},
        blank={name: data.num_blank for name, data in splits.items()},
        predictions=written,
        calibration={
            name: before_and_after(outputs[name], data.labels, bundle.labels[name], temperature)
            for name, data in splits.items()
            if (temperature := bundle.temperatures.get(name, 1.0)) != 1 and outputs[name].isfinite().all()
        },
        truncated={name: count_truncated(data, bundle.packer, forms[name]) for name, data in splits.items()},
    )


def _with_file(spec: TaskSpec, data: Any) -> tuple[TaskSpec, str]:
    """The file that holds the data, and the task's description for reading it."""
    if not is_in_memory(data):
        return spec, data
    columns = [*spec.input_columns, *spec.tags, *spec.label_columns]
    return replace(spec, format=None, encoding=None), file_of(data, columns, spec.name, f"evaluate: on[{spec.name!r}]")


def _file_of(spec: TaskSpec, split: str, folder: Path) -> str | None:
    if split not in SPLITS:
        raise UserError(f"{folder}: the split must be one of {', '.join(SPLITS)}, found {split!r}")
    file: str | None = getattr(spec, split)
    return file
