"""What the report of a run shows of a file of predictions: a table of classes, plots, and the worst mistakes.

The file is read line by line, so a split may be large.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polytask.disk.json_files import read_json_lines
from polytask.evaluation.label_sets import margins_of_sets
from polytask.evaluation.metrics import per_class
from polytask.kinds.schemes import find_spans, guess_scheme
from polytask.reports import plots
from polytask.types import TagScheme

Json = dict[str, Any]
Counts = NDArray[np.int64]
Pairs = Counter[tuple[str, str]]
WORST, CLASSES_SHOWN = 10, 30
RANK_EDGES = (1, 2, 4, 11, 31, 101, 1001)
"""The first rank of each bar in the histogram of ranks."""


@dataclass
class Tally:
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


def shown_predictions(path: Path, split: str, about: Json, anchor: str) -> Json:
    """The tables and plots of a file of predictions. `about` describes the task, `anchor` begins the plots' names."""
    tally = Tally(guess_scheme(about.get("classes", [])))
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
        index = {name: at for at, name in enumerate(dict.fromkeys([*about.get("classes", []), *found]))}
        margins = np.zeros((3, len(index)), np.int64)
        for (gold, predicted), count in tally.pairs.items():
            margins[0, index[gold]] += count * (gold == predicted)
            margins[1, index[predicted]] += count
            margins[2, index[gold]] += count
        shown["classes"] = _class_rows(index, margins)
        shown["plots"] = _matrices(f"{anchor}-matrix", tally.pairs, list(index), margins[2])
    if tally.spans and tally.scheme != "plain":
        names = sorted(tally.spans)
        shown["classes"] = _class_rows(names, np.stack([tally.spans[name] for name in names], axis=1))
    return shown


def _class_rows(names: Iterable[str], margins_3C: Counts) -> list[Json]:
    """The rows of the table of classes, from the numbers of right, of predicted and of true rows of each class."""
    columns = per_class(margins_3C)
    return [{"name": name} | {c: columns[c][at] for c in columns} for at, name in enumerate(names)]


def _rank_bars(anchor: str, ranks: Sequence[int]) -> str:
    """The number of rows by the rank of their right candidate."""
    highest = max(ranks)
    firsts = [first for first in RANK_EDGES if first <= highest]
    lasts = [first - 1 for first in firsts[1:]] + [highest]
    names = [str(a) if a == b else f"{a} to {b}" for a, b in zip(firsts, lasts, strict=True)]
    counts = np.histogram(ranks, bins=[*firsts, highest + 1])[0].tolist()
    return plots.bars(anchor, "Rows by the rank of their right candidate", names, counts)


def _show_sets(shown: Json, tally: Tally, about: Json, anchor: str) -> None:
    """Adds the table of classes and the matrix of co-occurrence, for several classes per row."""
    found = sorted({name for pair in tally.sets for names in pair for name in names})
    names = {name: at for at, name in enumerate(dict.fromkeys([*about.get("classes", []), *found]))}
    gold_NC, predicted_NC = (np.zeros((len(tally.sets), len(names)), np.int64) for _ in range(2))
    for row, (gold, predicted) in enumerate(tally.sets):
        gold_NC[row, [names[name] for name in gold]] = 1
        predicted_NC[row, [names[name] for name in predicted]] = 1
    shown["classes"] = _class_rows(names, margins_of_sets(gold_NC, predicted_NC))
    for row, threshold in zip(shown["classes"], about.get("thresholds") or [], strict=False):
        row["threshold"] = threshold
    kept, place = fold(list(names), gold_NC.sum(0))
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
    shown, place = fold(names, support)
    counts, at = np.zeros((len(shown), len(shown)), np.int64), dict(zip(names, place, strict=True))
    for (gold, predicted), count in pairs.items():
        counts[at[gold], at[predicted]] += count
    if len(shown) <= 10:
        title = "Confusion matrix: rows, and % of the true class"
        return [plots.confusion_matrix(name, title, counts, shown)]
    titles = {"count": "Confusion matrix: rows", "share": "Confusion matrix: % of the true class"}
    return [plots.confusion_matrix(f"{name}-{part}", title, counts, shown, part) for part, title in titles.items()]


def fold(names: Sequence[str], support: Counts) -> tuple[list[str], list[int]]:
    """The classes to show, and the place of every class among them; of very many classes the rarest share the last."""
    if len(names) <= CLASSES_SHOWN:
        return list(names), list(range(len(names)))
    kept = np.sort(np.argsort(-support, kind="stable")[: CLASSES_SHOWN - 1]).tolist()
    place = {at: number for number, at in enumerate(kept)}
    shown = [*(names[at] for at in kept), f"({len(names) - len(kept)} other classes)"]
    return shown, [place.get(at, CLASSES_SHOWN - 1) for at in range(len(names))]
