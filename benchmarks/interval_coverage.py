"""Measures how often the 95 % intervals of scores cover the truth: `python benchmarks/interval_coverage.py`.

Splits are drawn from known distributions, so that the truth is known: confusion matrices with an accuracy of `rate`;
probabilities whose AUC is `rate`; scores whose correlation with the truth is `rate`. Also prints the coverage of the
percentiles of a plain bootstrap of the rows. Takes under two minutes on one core with the default number of splits.
"""

import argparse
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from polytask.evaluation.metrics import all_metrics_for
from polytask.evaluation.scoring import Predictions, score
from polytask.types import YES_NO, LabelKind, LabelSpace

ROWS = (20, 50, 200, 1000)
RATES = (0.5, 0.8, 0.95, 0.99, 1.0)
MOODS = LabelSpace("classes", ("a", "b", "c", "d"))
SHARES = np.array([0.5, 0.25, 0.15, 0.1])
SCORES = LabelSpace("score", low=-4.0, high=4.0)
MANY = 300_000
Array = NDArray[Any]
Drawn = tuple[Array, Array, Array | None]
Draw = Callable[[np.random.Generator, int, float], Drawn]


def draw_answers(rng: np.random.Generator, rows: int, rate: float) -> Drawn:
    """Draw yes and no with probabilities: logits 2.5 times too large (overconfident), with an AUC of `rate`."""
    gold = (rng.random(rows) < 0.35).astype(np.int64)
    distance = 9.0 if rate == 1.0 else np.sqrt(2) * stats.norm.ppf(rate)
    logits = 2.5 * (rng.normal(size=rows) + distance * (gold - 0.5))
    yes = 1 / (1 + np.exp(-logits))
    return gold, (yes > 0.5).astype(np.int64), np.stack([1 - yes, yes], axis=1)


def draw_classes(rng: np.random.Generator, rows: int, rate: float) -> Drawn:
    """Draw four classes of different sizes: a share `rate` of the rows is right, the others are any other class."""
    gold = rng.choice(4, rows, p=SHARES)
    other = (gold + rng.integers(1, 4, rows)) % 4
    return gold, np.where(rng.random(rows) < rate, gold, other), None


def draw_scores(rng: np.random.Generator, rows: int, rate: float) -> Drawn:
    """Draw normal scores with a correlation of `rate`."""
    gold = rng.normal(size=rows)
    return gold, rate * gold + np.sqrt(1 - rate**2) * rng.normal(size=rows), None


FAMILIES: dict[str, tuple[LabelSpace, Draw, tuple[str, ...]]] = {
    "4 classes": (MOODS, draw_classes, ("accuracy", "f1", "f1_weighted", "matthews")),
    "yes or no": (YES_NO, draw_answers, ("f1", "matthews", "auc", "log_loss", "calibration_error")),
    "scores": (SCORES, draw_scores, ("pearson", "spearman", "mae", "rmse", "r2")),
}


@cache
def truths(family: str, rate: float) -> dict[str, float]:
    """Return the metrics over so many rows that their noise does not matter."""
    labels, draw, _ = FAMILIES[family]
    gold, predicted, probabilities = draw(np.random.default_rng(99), MANY, rate)
    values = {}
    for metric in all_metrics_for(labels.kind):
        if metric.columns is None:
            values[metric.name] = float(metric.function(gold, predicted))
        elif probabilities is not None:
            values[metric.name] = float(metric.function(*metric.columns(gold, probabilities)))
    if labels.kind == "classes":
        values["accuracy"] = rate
    return values


def plain_bootstrap(kind: LabelKind, name: str, gold: Array, predicted: Array, rng: np.random.Generator) -> Array:
    metric = next(m for m in all_metrics_for(kind) if m.name == name)
    rows = rng.integers(0, len(gold), (200, len(gold)))
    ends: Array = np.quantile(metric.function(gold[rows], predicted[rows]), [0.025, 0.975])
    return ends


def coverage(family: str, rows: int, rate: float, splits: int) -> dict[str, tuple[float, float, float | None]]:
    """Return, for each metric, the share of splits whose interval covers the truth, its mean width, and the share for
    the plain bootstrap."""
    labels, draw, names = FAMILIES[family]
    truth = truths(family, rate)
    rng = np.random.default_rng([rows, round(1000 * rate)])
    covered, width, plain = (dict.fromkeys(names, 0.0) for _ in range(3))
    for split in range(splits):
        gold, predicted, probabilities = draw(rng, rows, rate)
        metrics = score(Predictions(gold, predicted, probabilities), labels, 0.0, seed=split).metrics
        for name in names:
            low, high = metrics[name].low, metrics[name].high
            covered[name] += low - 1e-9 <= truth[name] <= high + 1e-9
            width[name] += high - low
            if name in ("accuracy", "f1", "matthews", "pearson") and rows < 1000:
                ends = plain_bootstrap(labels.kind, name, gold, predicted, rng)
                plain[name] += ends[0] - 1e-9 <= truth[name] <= ends[1] + 1e-9
    known = ("accuracy", "f1", "matthews", "pearson") if rows < 1000 else ()
    return {n: (covered[n] / splits, width[n] / splits, plain[n] / splits if n in known else None) for n in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=200, help="splits drawn for each cell")
    splits = parser.parse_args().splits
    started = time.process_time()
    print(f"Coverage in % of 95 % intervals over {splits} splits (mean width) [plain bootstrap].\n")
    for family, (_, _, names) in FAMILIES.items():
        print(f"| {family}: metric | rows | " + " | ".join(f"rate {rate:g}" for rate in RATES) + " |")
        print("|---|---|" + "---|" * len(RATES))
        results = {(rows, rate): coverage(family, rows, rate, splits) for rows in ROWS for rate in RATES}
        for name in names:
            for rows in ROWS:
                cells = []
                for rate in RATES:
                    share, width, plain = results[rows, rate][name]
                    bootstrap = "" if plain is None else f" [{100 * plain:.0f}]"
                    cells.append(f"{100 * share:.0f} ({width:.3f}){bootstrap}")
                print(f"| {name} | {rows} | " + " | ".join(cells) + " |")
        print(flush=True)
    print(f"{time.process_time() - started:.0f} seconds of processor time")


if __name__ == "__main__":
    main()
