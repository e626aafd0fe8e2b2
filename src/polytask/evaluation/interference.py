"""Interference between tasks, computed from the probes of a run. Knows the journal's lines; knows no model.

A probe records, for every pair of tasks, the cosine of their gradients, by layer and over all layers. The mean over the
run has a 95 % interval: the probes in order are divided into at most ten blocks, and the delete-one-block jackknife
with Student's t gives the error of the mean (on Fisher's scale, so that the ends stay cosines). Blocks are used instead
of probes because neighbouring probes see nearly the same weights; a cosine that changes during training widens the
interval. The interval describes this run, not other seeds. If neighbours correlate by 0.5, intervals from 20 probes
cover 84 % and from 60 probes 92 % (simulated; without blocks 75 % each); if they do not, 95 % from 3 probes on. The
gradients of a pair agree or conflict if its p value is below 5 % after Holm's correction over all pairs.

The transfer matrix is the first-order form of the inter-task affinity of Fifty et al. ("Efficiently Identifying Task
Groupings for Multi-Task Learning", 2021), which is 1 - L_j(after a step on task i)/L_j(before). A small step against
the gradient g_i lowers L_j by eta <g_i, g_j>, and a step against j's own gradient lowers it by eta <g_j, g_j>, so

    transfer_ij = sum over probes <g_i, g_j> / sum over probes <g_j, g_j>

is the effect of a step on i for j, in units of a step on j: 1 helps as much, 0 has no effect, below 0 does harm. It is
a ratio of sums because the gradient of a learned task is nearly 0. Fifty et al. take the steps and measure the losses;
this form costs nothing.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special  # has what scipy.stats computes with, which takes a second to import

from polytask.disk.json_files import read_json_lines
from polytask.evaluation.comparison import statistics

Json = dict[str, Any]
Floats = NDArray[np.float64]

ALL = "all"
BLOCKS = 10
LEVEL = 0.05
WINDOW = 5
"""The fewest probes of a moving mean."""


def read_interference(path: Path) -> Json | None:
    """Summarizes the probes in a run's metrics.jsonl; None if there are none."""
    lines = list(read_json_lines(path, containing=b'"kind": "interference"')) if path.exists() else []
    return summarize(lines) if lines else None


def summarize(lines: Sequence[Json]) -> Json:
    """Summarizes a run's probes (at least one) as JSON types; no pairs if no two tasks share parameters."""
    probes = _Probes(lines)
    summary: Json = {
        "probes": len(probes.steps_P),
        "first_step": int(probes.steps_P[0]),
        "last_step": int(probes.steps_P[-1]),
        "seconds": sum(line["seconds"] for line in lines),
        "tasks": list(probes.tasks),
        "layers": list(probes.layers),
        "pairs": [],
        "transfer": [],
    }
    pairs = [_pair(probes, i, j) for i, j in itertools.combinations(range(len(probes.tasks)), 2)]
    if all(pair["cosine"]["value"] is None for pair in pairs):
        return {**summary, "layers": []}
    adjusted = statistics.holm([pair["p"] for pair in pairs])
    for pair, p in zip(pairs, adjusted, strict=True):
        value = pair["cosine"]["value"]
        pair["verdict"] = "unclear" if value is None or p > LEVEL else "apart" if value < 0 else "together"
        pair["p"] = p
    shared = [name for name in probes.layers if any(name in pair["layers"] for pair in pairs)]
    return {**summary, "layers": shared, "pairs": pairs, "transfer": _transfer(probes)}


def curve(lines: Sequence[Json], one: str, other: str) -> list[tuple[int, float]]:
    """Returns (step, cosine) of two tasks' gradients over all layers, for every probe."""
    probes = _Probes(lines)
    cosines_P = probes.cosines(ALL, probes.tasks.index(one), probes.tasks.index(other))
    return [(int(s), float(c)) for s, c in zip(probes.steps_P, cosines_P, strict=True) if np.isfinite(c)]


def moving(points: Sequence[tuple[int, float]]) -> list[tuple[float, float, float, float]]:
    """Returns moving means over a sixth of the probes with their 95 % interval: (step, mean, low, high)."""
    width = max(WINDOW, len(points) // 6)
    if len(points) < width:
        return []
    around = np.lib.stride_tricks.sliding_window_view(np.array(points, np.float64), width, axis=0)
    steps, cosines = around[:, 0], around[:, 1]
    half = special.stdtrit(width - 1, 1 - LEVEL / 2) * cosines.std(axis=1, ddof=1) / math.sqrt(width)
    means = cosines.mean(axis=1)
    ends = np.clip([means - half, means + half], -1, 1)
    return [tuple(row) for row in np.stack([steps.mean(axis=1), means, *ends], axis=1).tolist()]


# --- one pair ---------------------------------------------------------------------------------------------------------
def _pair(probes: "_Probes", i: int, j: int) -> Json:
    whole_P = probes.cosines(ALL, i, j)
    by_layer = {name: _mean_cosine(probes.cosines(name, i, j)) for name in probes.layers}
    seen_P = whole_P[np.isfinite(whole_P)]
    return {
        "tasks": [probes.tasks[i], probes.tasks[j]],
        "cosine": _mean_cosine(whole_P),
        "conflict": float((seen_P < 0).mean()) if len(seen_P) else None,
        "p": p_value(seen_P),
        "layers": {name: cosine for name, cosine in by_layer.items() if cosine["value"] is not None},
    }


def _mean_cosine(cosines_P: Floats) -> Json:
    seen_P = cosines_P[np.isfinite(cosines_P)]
    if not len(seen_P):
        return {"value": None, "low": None, "high": None}
    value, error, degrees = jackknife(seen_P, np.ones(len(seen_P)))
    low, high = None, None
    if degrees:
        low, high = statistics.interval(value, float(special.stdtrit(degrees, 1 - LEVEL / 2)) * error, -1.0, 1.0)
    return {"value": value, "low": low, "high": high}


# --- the effect of a step on one task for another ---------------------------------------------------------------------
def _transfer(probes: "_Probes") -> list[list[Json]]:
    """Returns the transfer matrix: a row is the task of the step, a column the task whose loss it changes."""
    return [[_affinity(probes, i, j) for j in range(len(probes.tasks))] for i in range(len(probes.tasks))]


def _affinity(probes: "_Probes", i: int, j: int) -> Json:
    own_P = probes.norms(ALL, j) ** 2
    products_P = probes.cosines(ALL, i, j) * probes.norms(ALL, i) * probes.norms(ALL, j)
    seen = np.isfinite(own_P)
    if not own_P[seen].sum() > 0:
        return {"value": None, "low": None, "high": None}
    value, error, degrees = jackknife(np.nan_to_num(products_P[seen]), own_P[seen])
    if not degrees:
        return {"value": value, "low": None, "high": None}
    half = float(special.stdtrit(degrees, 1 - LEVEL / 2)) * error
    return {"value": value, "low": value - half, "high": value + half}


# --- the error of a mean ----------------------------------------------------------------------------------------------
def jackknife(tops_P: Floats, bottoms_P: Floats) -> tuple[float, float, int]:
    """Returns sum(tops) / sum(bottoms) over probes in order, its standard error by blocks, and the degrees of freedom.

    The degrees are 0 if the error is unknown. With bottoms of 1 the ratio is a mean; if no block has more than one
    probe, its error is the usual standard error.
    """
    tops, bottoms = ([part.sum() for part in np.array_split(x, min(BLOCKS, len(x)))] for x in (tops_P, bottoms_P))
    top, bottom, count = sum(tops), sum(bottoms), len(tops)
    value = float(top / bottom)
    rest = [(top - t, bottom - b) for t, b in zip(tops, bottoms, strict=True)]
    if count < 2 or not all(below > 0 for _, below in rest):
        return value, math.nan, 0
    without = np.array([above / below for above, below in rest])
    return value, float(without.std() * math.sqrt(count - 1)), count - 1


def p_value(cosines_P: Floats) -> float:
    """Returns the two-sided p value of a mean cosine under the hypothesis that it is 0."""
    if len(cosines_P) < 2:
        return 1.0
    value, error, degrees = jackknife(cosines_P, np.ones(len(cosines_P)))
    return float(2 * special.stdtr(degrees, -abs(value) / error)) if error > 0 else float(value == 0)


class _Probes:
    """The journal's lines as arrays. If the run's tasks changed, only the lines since then count."""

    def __init__(self, lines: Sequence[Json]) -> None:
        self.lines = [line for line in lines if line["tasks"] == lines[-1]["tasks"]]
        self.tasks: tuple[str, ...] = tuple(lines[-1]["tasks"])
        self.steps_P = np.array([line["step"] for line in self.lines])
        names = dict.fromkeys(name for line in self.lines for name in line["layers"])
        self.layers = tuple(name for name in reversed(names) if name != ALL)  # from the embeddings up

    def cosines(self, layer: str, i: int, j: int) -> Floats:
        """Returns the cosines [P] of two tasks; NaN where either has no gradient."""
        return np.array([_number(line["layers"].get(layer), i, j) for line in self.lines], np.float64)

    def norms(self, layer: str, k: int) -> Floats:
        """Returns the norms [P] of a task's gradients."""
        return np.array([_number(line["norms"].get(layer), k) for line in self.lines], np.float64)


def _number(value: Any, *places: int) -> float:
    for place in places:
        value = None if value is None else value[place]
    return math.nan if value is None else float(value)
