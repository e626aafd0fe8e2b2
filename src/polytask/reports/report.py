"""The report of a run as one self-contained HTML page. Knows the content of a run's files, and not where they are.

Any of the files may be missing or end early (a run that is still training, or was killed): the page then says what is
missing. Predictions are read line by line, so a split may be large.
"""

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from polytask.disk.json_files import read_json_lines
from polytask.evaluation.label_sets import margins_of_sets
from polytask.evaluation.metrics import per_class
from polytask.kinds.schemes import find_spans, guess_scheme
from polytask.reports import plots
from polytask.reports.interference import interference_section
from polytask.reports.remarks import compare_with
from polytask.text.controls import visible
from polytask.types import TagScheme, UserError

Json = dict[str, Any]
Counts = NDArray[np.int64]
Pairs = Counter[tuple[str, str]]
WORST, CLASSES_SHOWN = 10, 30
RANK_EDGES = (1, 2, 4, 11, 31, 101, 1001)
"""The first rank of each bar in the histogram of ranks."""


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


@dataclass
class _Tally:
    """What the page shows of one file of predictions, collected in one pass."""

    scheme: TagScheme = "plain"
    """For tags of words: how they mark spans."""
    rows: int = 0
    unlabelled: int = 0
    pairs: Pairs = field(default_factory=Counter)
    sets: list[tuple[frozenset[str], frozenset[str]]] = field(default_factory=list)
    """True and predicted classes of rows with several classes."""
    spans: dict[str, Counts] = field(default_factory=dict)
    """For tags of words, by class of spans: the numbers of right, of predicted and of true spans."""
    scores: list[tuple[float, float]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    """Of pairs that belong together: the rank of the right candidate."""
    heap: list[tuple[float, int, Json]] = field(default_factory=list)

    def add(self, line: Json) -> None:
        self.rows += 1
        gold, predicted = line.get("label"), line["prediction"]
        if "rank" in line:
            self.ranks.append(line["rank"])
            if line["rank"] > 1:
                self._keep(line["rank"], line)
        elif gold is None:
            self.unlabelled += 1
        elif "words" in line:
            self._add_words(line, gold, predicted)
        elif isinstance(predicted, list):
            self._add_sets(line, frozenset(gold), frozenset(predicted))
        elif isinstance(predicted, str):
            if "label_index" in line:  # of options, the places are compared
                self.pairs[f"option {line['label_index']}", f"option {line['index']}"] += 1
            else:
                self.pairs[str(gold), predicted] += 1
            if gold != predicted:
                line["probability"] = (line.get("probabilities") or {}).get(predicted)
                self._keep(line["probability"] or 0.0, line)
        elif math.isfinite(predicted):
            self.scores.append((gold, predicted))
            line["error"] = predicted - gold
            if line["error"]:
                self._keep(abs(line["error"]), line)

    def _add_sets(self, line: Json, gold: frozenset[str], predicted: frozenset[str]) -> None:
        self.sets.append((gold, predicted))
        probabilities = line.get("probabilities") or {}
        wrong = {name: abs((name in gold) - probabilities.get(name, 0.5)) for name in gold ^ predicted}
        if wrong:
            line["label"], line["prediction"] = (", ".join(line[key]) or "no class" for key in ("label", "prediction"))
            line["probability"] = max(wrong.values())
            self._keep(len(wrong) + max(wrong.values()), line)

    def _add_words(self, line: Json, gold: Sequence[str], predicted: Sequence[str]) -> None:
        self.pairs.update(zip(gold, predicted, strict=True))
        true, found = (set(find_spans(tags, self.scheme)) for tags in (gold, predicted))
        for number, spans in enumerate((true & found, found, true)):
            for span in spans:
                self.spans.setdefault(span.label, np.zeros(3, np.int64))[number] += 1
        if true == found:
            return
        text, words = line["text"][0], line["words"]
        shares = {(span["start"], span["end"], span["label"]): span["probability"] for span in line["spans"]}
        wrong = [shares.get((words[first][0], words[last - 1][1], name), 0.0) for first, last, name in found - true]
        for key, spans in (("label", true - found), ("prediction", found - true)):
            parts = [f"{text[words[a][0] : words[b - 1][1]]} ({name})" for a, b, name in sorted(spans)]
            line[key] = ", ".join(parts) or "no span"
        line["probability"] = max(wrong, default=None)
        self._keep(len(true ^ found) + max(wrong, default=0.0), line)

    def _keep(self, badness: float, line: Json) -> None:
        heapq.heappush(self.heap, (badness, -self.rows, line))
        if len(self.heap) > WORST:
            heapq.heappop(self.heap)

    @property
    def worst(self) -> list[Json]:
        return [line for _, _, line in sorted(self.heap, key=lambda entry: entry[:2], reverse=True)]


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
        "predictions": [_predictions(path, split, about, f"{anchor}-{split}") for split, path in files.items()],
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
        points, chosen = [(x, y) for x, y, _ in found["coverage"]["curve"]], found["coverage"]["chosen"]
        marked = None
        if chosen is not None and chosen["accuracy"] is not None:
            marked = chosen["coverage"], chosen["accuracy"]
        label = "" if chosen is None else f"abstain_below: {chosen['threshold']:g}"
        if points:
            drawn.append(plots.coverage_plot(f"coverage-{at}", f"{task}: coverage and accuracy", points, marked, label))
        per_word = run.summary["tasks"][task]["kind"] == "tokens"
        shown.append({"task": task, "plots": drawn, "per_word": per_word, **found})
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


def _predictions(path: Path, split: str, about: Json, anchor: str) -> Json:
    tally = _Tally(guess_scheme(about.get("classes", [])))
    for line in read_json_lines(path):
        tally.add(line)
    shown: Json = {"split": split, "tally": tally, "plots": [], "classes": []}
    if tally.scores:
        title = "True and predicted scores"
        shown["plots"] = [plots.score_scatter(f"{anchor}-scatter", title, *zip(*tally.scores, strict=True))]
    if tally.ranks:
        shown["plots"] = [_rank_bars(f"{anchor}-ranks", tally.ranks)]
    if tally.sets:
        _show_sets(shown, tally, about, anchor)
    if tally.pairs:
        found = sorted({name for pair in tally.pairs for name in pair})
        names = {name: at for at, name in enumerate(dict.fromkeys([*about.get("classes", []), *found]))}
        margins = np.zeros((3, len(names)), np.int64)
        for (gold, predicted), count in tally.pairs.items():
            margins[0, names[gold]] += count * (gold == predicted)
            margins[1, names[predicted]] += count
            margins[2, names[gold]] += count
        columns = per_class(margins)
        shown["classes"] = [{"name": name} | {c: columns[c][at] for c in columns} for name, at in names.items()]
        shown["plots"] = _matrices(f"{anchor}-matrix", tally.pairs, list(names), margins[2])
    if tally.spans and tally.scheme != "plain":
        columns = per_class(np.stack([tally.spans[name] for name in sorted(tally.spans)], axis=1))
        shown["classes"] = [
            {"name": name} | {c: columns[c][at] for c in columns} for at, name in enumerate(sorted(tally.spans))
        ]
    return shown


def _rank_bars(anchor: str, ranks: Sequence[int]) -> str:
    """The number of rows by the rank of their right candidate."""
    highest = max(ranks)
    firsts = [first for first in RANK_EDGES if first <= highest]
    lasts = [first - 1 for first in firsts[1:]] + [highest]
    names = [str(a) if a == b else f"{a} to {b}" for a, b in zip(firsts, lasts, strict=True)]
    counts = np.histogram(ranks, bins=[*firsts, highest + 1])[0].tolist()
    return plots.bars(anchor, "Rows by the rank of their right candidate", names, counts)


def _show_sets(shown: Json, tally: _Tally, about: Json, anchor: str) -> None:
    """Adds the table of classes and the matrix of co-occurrence, for several classes per row."""
    found = sorted({name for pair in tally.sets for names in pair for name in names})
    names = {name: at for at, name in enumerate(dict.fromkeys([*about.get("classes", []), *found]))}
    gold_NC, predicted_NC = (np.zeros((len(tally.sets), len(names)), np.int64) for _ in range(2))
    for row, (gold, predicted) in enumerate(tally.sets):
        gold_NC[row, [names[name] for name in gold]] = 1
        predicted_NC[row, [names[name] for name in predicted]] = 1
    columns = per_class(margins_of_sets(gold_NC, predicted_NC))
    shown["classes"] = [{"name": name} | {c: columns[c][at] for c in columns} for name, at in names.items()]
    for row, threshold in zip(shown["classes"], about.get("thresholds") or [], strict=False):
        row["threshold"] = threshold
    kept, place = _fold(list(names), gold_NC.sum(0))
    folded = np.eye(len(kept), dtype=np.int64)[place]  # [classes, shown]
    gold_NS, predicted_NS = ((classes @ folded > 0).astype(np.int64) for classes in (gold_NC, predicted_NC))
    title = "Co-occurrence: rows with a true and a predicted class, and % of the true class"
    parts = "count share" if len(kept) <= 10 else "count"
    totals = gold_NS.sum(0)
    shown["plots"] = [
        plots.confusion_matrix(f"{anchor}-matrix", title, gold_NS.T @ predicted_NS, kept, parts, totals=totals)
    ]


def _matrices(name: str, pairs: Pairs, names: Sequence[str], support: Counts) -> list[str]:
    """One matrix with counts and shares if the cells have room for both, otherwise two."""
    shown, place = _fold(names, support)
    counts, at = np.zeros((len(shown), len(shown)), np.int64), dict(zip(names, place, strict=True))
    for (gold, predicted), count in pairs.items():
        counts[at[gold], at[predicted]] += count
    if len(shown) <= 10:
        title = "Confusion matrix: rows, and % of the true class"
        return [plots.confusion_matrix(name, title, counts, shown)]
    titles = {"count": "Confusion matrix: rows", "share": "Confusion matrix: % of the true class"}
    return [plots.confusion_matrix(f"{name}-{part}", title, counts, shown, part) for part, title in titles.items()]


def _fold(names: Sequence[str], support: Counts) -> tuple[list[str], list[int]]:
    """The classes to show, and the place of every class among them; of very many classes the rarest share the last."""
    if len(names) <= CLASSES_SHOWN:
        return list(names), list(range(len(names)))
    kept = np.sort(np.argsort(-support, kind="stable")[: CLASSES_SHOWN - 1]).tolist()
    place = {at: number for number, at in enumerate(kept)}
    shown = [*(names[at] for at in kept), f"({len(names) - len(kept)} other classes)"]
    return shown, [place.get(at, CLASSES_SHOWN - 1) for at in range(len(names))]


def _data(split: str, data: Json, anchor: str, counted: str) -> Json:
    shown, labels, lengths = [], data.get("labels") or {}, data.get("lengths") or {}
    if "names" in labels:
        names, place = _fold(labels["names"], np.array(labels["counts"], np.int64))
        counts = np.bincount(place, labels["counts"]).tolist()
        shown.append(plots.bars(f"{anchor}-labels", f"{split}: {counted} of each label", names, counts))
    elif labels:
        title = f"{split}: rows by score"
        shown.append(plots.histogram(f"{anchor}-labels", title, labels["edges"], labels["counts"], "score"))
    if lengths:
        title = f"{split}: rows by length"
        shown.append(plots.histogram(f"{anchor}-lengths", title, lengths["edges"], lengths["counts"], "tokens"))
    return {"split": split, **data, "plots": shown}
