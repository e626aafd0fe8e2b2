"""The report of a run as one self-contained HTML page. Knows the content of a run's files, and not where they are.

Any of the files may be missing or end early (a run that is still training, or was killed): the page then says what is
missing. Predictions are read line by line, so a split may be large.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from polytask.kinds.schemes import guess_scheme
from polytask.reports import plots
from polytask.reports.interference import interference_section
from polytask.reports.predictions import fold, shown_predictions
from polytask.reports.remarks import compare_with
from polytask.text.controls import visible
from polytask.types import UserError

Json = dict[str, Any]
COUNTED = {"tokens": " words", "multilabel": ", each class of a row"}
"""What the number of dev rows counts, by kind."""


@dataclass(frozen=True)
class RunRecord:
    """What the files of a run contain; empty where a file is missing."""

    folder: Path
    recipe: str | None
    environment: Json
    summary: Json
    steps: list[Json]
    """The lines of metrics.jsonl by kind, in order."""
    evaluations: list[Json]
    probes: list[Json]
    predictions: Mapping[str, Mapping[str, Path]]
    """By task and split: the files with predictions."""
    attention: str | None = None
    """The page with the heat maps of one text, if there is one."""

    @property
    def tasks(self) -> list[str]:
        seen = dict.fromkeys(task for line in self.steps for task in line["losses"])
        return list(dict.fromkeys([*self.summary.get("tasks", {}), *self.environment.get("data", {}), *seen]))

    @property
    def best(self) -> Json | None:
        """The evaluation of the best model so far."""
        return next((line for line in reversed(self.evaluations) if line.get("best")), None)

    @property
    def start(self) -> Json:
        """The evaluation before the first step; empty in runs of earlier versions."""
        return next((line for line in self.evaluations if line["step"] == 0), {})

    @property
    def scores(self) -> dict[str, Json]:
        """{split: {task: score}} of the best model."""
        best = [self.best] if self.best else [line for line in self.evaluations if line["step"] > 0][-1:]
        return self.summary.get("evaluations") or {line["split"]: line["tasks"] for line in best}

    @property
    def training_rows(self) -> Json:
        """{task: score} of the best model on training rows (`train.evaluate_train`)."""
        found: Json = self.summary.get("training_rows") or (self.best or {}).get("train", {})
        return found

    @property
    def not_trained(self) -> list[str]:
        """The tasks that were only scored (`trained: false`)."""
        return list(self.evaluations[-1].get("not_trained", ())) if self.evaluations else []

    def baseline(self, task: str, metric: str) -> Json:
        """The score of the best constant answer, if it is known for this metric."""
        entry: Json = self.summary.get("baselines", {}).get(task, {})
        return entry if entry.get("metric") == metric else {}

    def references(self, task: str, metric: str, score: Json) -> Json:
        """The references of a metric, each with the verdict: guessing, step 0 and a method without training."""
        value = score["metrics"][metric]
        greater = value.get("greater_is_better", score.get("greater_is_better", True))
        start = self.start.get("tasks", {}).get(task, {}).get("metrics", {}).get(metric, {})
        simple = self.start.get("baselines", {}).get(task, {})
        references = {
            "guessing": self.baseline(task, metric),
            "step 0": {"value": start["value"], "what": "the model before training"} if start else {},
            "no training": simple if simple.get("metric") == metric else {},
        }
        return {
            name: {**entry, "verdict": compare_with(value, entry["value"], greater)}
            for name, entry in references.items()
            if entry
        }


def report_page(run: RunRecord) -> str:
    """The page as HTML."""
    try:
        page = _template().render(
            run=run,
            name=run.folder.resolve().name,
            recipe_name=run.summary.get("name"),
            overview=_overview(run),
            transfer=_transfer(run),
            training=_training(run),
            interference=interference_section(run.probes),
            probabilities=_probabilities(run),
            tasks=[_task(run, task, f"task-{at}") for at, task in enumerate(run.tasks, 1)],
        )
    except (KeyError, IndexError, TypeError, AttributeError, jinja2.TemplateError) as error:
        # The files are valid JSON, but not what a run writes.
        raise UserError(
            f"{run.folder}: metrics.jsonl, environment.json or a file of predictions is damaged: a field is missing or "
            f"has another type ({type(error).__name__}: {error})"
        ) from error
    return visible(page)


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    pages = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, optimized=False)
    return pages.get_template("report.html.jinja")


def _interval(score: Json) -> tuple[float, float, float]:
    metric = score["metrics"][score["primary"]]
    return metric["value"], metric["low"], metric["high"]


def _overview(run: RunRecord) -> list[str]:
    rows = []
    for task in run.tasks:
        scores = {split: tasks[task] for split, tasks in run.scores.items() if task in tasks}
        if not all(score.get("greater_is_better", True) for score in scores.values()):
            continue  # a perplexity has another scale
        for primary in {score["primary"] for score in scores.values()}:
            found = {split: _interval(score) for split, score in scores.items()}
            known = run.references(task, primary, next(iter(scores.values())))
            ticks: dict[str, float] = {name: known[name]["value"] for name in ("guessing", "step 0") if name in known}
            rows.append((f"{task} ({primary})", found, ticks))
    return [plots.score_overview("overview", "Every task's score", rows)] if rows else []


def _transfer(run: RunRecord) -> list[str]:
    """Every task's score after every stage, for a run that learned its tasks one after another."""
    found = run.summary.get("transfer")
    if not found:
        return []
    learned, tasks = [stage["task"] for stage in found["stages"]], list(found["metrics"])
    title = "Every task's score after each stage"
    return [plots.score_matrix("transfer", title, np.array(found["scores"]), learned, tasks)]


def _training(run: RunRecord) -> list[str]:
    curves: dict[str, list[tuple[int, float]]] = {}
    curves["Gradient norm, before clipping"] = [
        (line["step"], line["gradient_norm"]) for line in run.steps if line["gradient_norm"] is not None
    ]
    for line in run.steps:
        for name, value in line["penalties"].items():
            curves.setdefault(f"Penalty of {name}", []).append((line["step"], value))
    rates: dict[str, list[tuple[int, float]]] = {}
    for line in run.steps:
        for part, rate in (line.get("learning_rates") or {"": line["learning_rate"]}).items():
            rates.setdefault(part, []).append((line["step"], rate))
    drawn = [plots.rate_curves("training-rates", "Learning rate", rates)] if rates else []
    return drawn + [plots.small_curve(f"training-{at}", *curve) for at, curve in enumerate(curves.items()) if curve[1]]


def _task(run: RunRecord, task: str, anchor: str) -> Json:
    about = run.summary.get("tasks", {}).get(task, {})
    files = run.predictions.get(task, {})
    counted = "rows"
    if about.get("kind") == "tokens":
        counted = "words" if guess_scheme(about.get("classes", [])) == "plain" else "spans"
    return {
        "name": task,
        "anchor": anchor,
        "about": about,
        "curves": _curves(run, task, anchor),
        "predictions": [shown_predictions(path, split, about, f"{anchor}-{split}") for split, path in files.items()],
        "data": [_data(split, data, f"{anchor}-{split}", counted) for split, data in about.get("data", {}).items()],
    }


def _probabilities(run: RunRecord) -> list[Json]:
    """The calibration of each task with classes, with its plots."""
    shown = []
    for at, (task, found) in enumerate(run.summary.get("calibration", {}).items(), 1):
        halves = {"before calibration": found["before"], "after, cross-fitted": found["after"]}
        curves = {
            label: [(point["confidence"], point["accuracy"]) for point in half["reliability"]]
            for label, half in halves.items()
            if half is not None
        }
        drawn = [plots.reliability_plot(f"reliability-{at}", f"{task}: reliability on dev", curves)]
        coverage = found["coverage"] or {"curve": [], "chosen": None}
        points, chosen = [(x, y) for x, y, _ in coverage["curve"]], coverage["chosen"]
        marked = None
        if chosen is not None and chosen["accuracy"] is not None:
            marked = chosen["coverage"], chosen["accuracy"]
        label = "" if chosen is None else f"abstain_below: {chosen['threshold']:g}"
        if points:
            drawn.append(plots.coverage_plot(f"coverage-{at}", f"{task}: coverage and accuracy", points, marked, label))
        unit = COUNTED.get(run.summary["tasks"][task]["kind"], "")
        shown.append({"task": task, "plots": drawn, "unit": unit, **found})
    return shown


def _curves(run: RunRecord, task: str, anchor: str) -> list[str]:
    train = [(line["step"], line["losses"][task]) for line in run.steps if task in line["losses"]]
    scored = [(line["step"], line["tasks"][task]) for line in run.evaluations if task in line["tasks"]]
    rows = [(line["step"], line["train"][task]) for line in run.evaluations if task in line.get("train", {})]
    best = run.best["step"] if run.best else None
    dev, seen = ([(step, score["loss"]) for step, score in scores] for scores in (scored, rows))
    curves = [plots.loss_curve(f"{anchor}-loss", f"{task}: loss", train, dev, best, seen)] if train or dev else []
    if scored:
        primary = scored[-1][1]["primary"]
        points = [(step, *_interval(score)) for step, score in scored]
        baseline = run.baseline(task, primary).get("value")
        title, seen = f"{task}: {primary} on dev", [(step, _interval(score)[0]) for step, score in rows]
        if rows:
            title += " and on training rows"
        curves.append(plots.metric_curve(f"{anchor}-metric", title, points, best, baseline, seen))
    return curves


def _data(split: str, data: Json, anchor: str, counted: str) -> Json:
    shown, labels, lengths = [], data.get("labels") or {}, data.get("lengths") or {}
    if "names" in labels:
        names, place = fold(labels["names"], np.array(labels["counts"], np.int64))
        counts = np.bincount(place, labels["counts"]).tolist()
        shown.append(plots.bars(f"{anchor}-labels", f"{split}: {counted} of each label", names, counts))
    elif labels:
        title = f"{split}: rows by score"
        shown.append(plots.histogram(f"{anchor}-labels", title, labels["edges"], labels["counts"], "score"))
    if lengths:
        title = f"{split}: rows by length"
        shown.append(plots.histogram(f"{anchor}-lengths", title, lengths["edges"], lengths["counts"], "tokens"))
    return {"split": split, **data, "plots": shown}
