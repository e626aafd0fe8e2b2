"""Which tasks pull together and which apart, from the probes of a run. Knows the journal's lines; knows no model.

Every probe has the cosine of each two tasks' gradients, by layer and for all layers together. Their mean over the run
is given with a 95 % interval: the probes in order are cut into at most ten blocks, and the delete-one-block jackknife
with Student's t says how far the mean may be off (on Fisher's scale, so that it stays a cosine). Blocks rather than
probes, because neighbouring probes look at nearly the same weights; what changes in the course of the training widens
the interval. It speaks of this run, not of other seeds. Where neighbours correlate by 0.5, intervals from 20 probes
cover 84 % and from 60 probes 92 % (simulated; without blocks 75 % each); where they do not, 95 % from 3 probes on. A
pair is said to pull apart or together where Holm's correction over all pairs leaves its p value below 5 %.

The transfer matrix is the first-order form of the inter-task affinity of Fifty et al. ("Efficiently Identifying Task
Groupings for Multi-Task Learning", 2021), which is 1 - L_j(after a step on task i)/L_j(before): a small step against
the gradient g_i lowers L_j by eta <g_i, g_j>, and a step against its own gradient by eta <g_j, g_j>, so

    transfer_ij = sum over probes <g_i, g_j> / sum over probes <g_j, g_j>

is what a step on i does for j, in steps of j's own: 1 as much, 0 nothing, below 0 it undoes. Ratios of sums, because a
task that has been learned has hardly a gradient to divide by. Theirs takes the steps and measures; this costs nothing.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from polytask.disk.json_files import read_json_lines
from polytask.evaluation.comparison import statistics

Json = dict[str, Any]
Floats = NDArray[np.float64]

ALL = "all"
BLOCKS = 10
LEVEL = 0.05
WINDOW = 5
"""The fewest probes that a moving mean is taken over."""

NOTHING_SHARED = (
    "Nothing that learns is shared by two tasks (the encoder is frozen, or each task has its own), so no task can get "
    "in another's way there."
)


def read_interference(path: Path) -> Json | None:
    """What a run's metrics.jsonl tells, or None without probes."""
    lines = list(read_json_lines(path, containing=b'"kind": "interference"')) if path.exists() else []
    return summarize(lines) if lines else None


def summarize(lines: Sequence[Json]) -> Json:
    """All that is said of a run's probes, in JSON's own types. There is at least one."""
    probes = _Probes(lines)
    found: Json = {
        "probes": len(probes.steps_P),
        "first_step": int(probes.steps_P[0]),
        "last_step": int(probes.steps_P[-1]),
        "seconds": sum(line["seconds"] for line in lines),
        "tasks": list(probes.tasks),
        "layers": list(probes.layers),
        "pairs": [],
        "transfer": [],
        "note": None,
    }
    pairs = [_pair(probes, i, j) for i, j in itertools.combinations(range(len(probes.tasks)), 2)]
    if all(pair["cosine"]["value"] is None for pair in pairs):
        return {**found, "layers": [], "note": NOTHING_SHARED}
    adjusted = statistics.holm([pair["p"] for pair in pairs])
    for pair, p in zip(pairs, adjusted, strict=True):
        value = pair["cosine"]["value"]
        pair["verdict"] = "unclear" if value is None or p > LEVEL else "apart" if value < 0 else "together"
        pair["p"] = p
        pair["sentence"] = sentence(pair, found["probes"])
    met = [name for name in probes.layers if any(name in pair["layers"] for pair in pairs)]
    return {**found, "layers": met, "pairs": pairs, "transfer": _transfer(probes)}


def curve(lines: Sequence[Json], one: str, other: str) -> list[tuple[int, float]]:
    """(step, cosine) of two tasks over all layers."""
    probes = _Probes(lines)
    cosines_P = probes.cosines(ALL, probes.tasks.index(one), probes.tasks.index(other))
    return [(int(s), float(c)) for s, c in zip(probes.steps_P, cosines_P, strict=True) if np.isfinite(c)]


def moving(points: Sequence[tuple[int, float]]) -> list[tuple[float, float, float, float]]:
    """(step, mean, low, high) over a sixth of the probes around each, with the mean's 95 % interval."""
    width = max(WINDOW, len(points) // 6)
    if len(points) < width:
        return []
    around = np.lib.stride_tricks.sliding_window_view(np.array(points, np.float64), width, axis=0)
    steps, cosines = around[:, 0], around[:, 1]
    half = stats.t.ppf(1 - LEVEL / 2, width - 1) * cosines.std(axis=1, ddof=1) / math.sqrt(width)
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
        "layers": {name: found for name, found in by_layer.items() if found["value"] is not None},
    }


def _mean_cosine(cosines_P: Floats) -> Json:
    seen_P = cosines_P[np.isfinite(cosines_P)]
    if not len(seen_P):
        return {"value": None, "low": None, "high": None}
    value, error, degrees = jackknife(seen_P, np.ones(len(seen_P)))
    low, high = None, None
    if degrees:
        low, high = statistics.interval(value, float(stats.t.ppf(1 - LEVEL / 2, degrees)) * error, -1.0, 1.0)
    return {"value": value, "low": low, "high": high}


def sentence(pair: Mapping[str, Any], probes: int) -> str:
    """What a pair's numbers say, in words."""
    one, other = pair["tasks"]
    cosine = pair["cosine"]
    if cosine["value"] is None:
        return f"{one} and {other} share nothing that learns."
    reach = f" [{cosine['low']:.3f}, {cosine['high']:.3f}]" if cosine["low"] is not None else ""
    numbers = (
        f"mean cosine {cosine['value']:.3f}{reach}, against each other in {100 * pair['conflict']:.0f} % of {probes} "
        f"{'probe' if probes == 1 else 'probes'}"
    )
    if pair["verdict"] == "unclear":
        return f"Nothing clear between {one} and {other}: {numbers}."
    apart = pair["verdict"] == "apart"
    values = {name: found["value"] for name, found in pair["layers"].items()}
    most = (min if apart else max)(values, key=lambda name: values[name])
    place = f"; most in {'the ' if not most.startswith('layer') else ''}{most} ({values[most]:.3f})"
    return f"{one} and {other} pull {'apart' if apart else 'together'}: {numbers}{place}."


# --- what a step on one task does for another -------------------------------------------------------------------------
def _transfer(probes: "_Probes") -> list[list[Json]]:
    """Row: the task that a step is taken on; column: the task whose loss it changes."""
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
    half = float(stats.t.ppf(1 - LEVEL / 2, degrees)) * error
    return {"value": value, "low": value - half, "high": value + half}


# --- how sure a mean is -----------------------------------------------------------------------------------------------
def jackknife(tops_P: Floats, bottoms_P: Floats) -> tuple[float, float, int]:
    """sum(tops) / sum(bottoms) over probes in order, its standard error by blocks, and that one's degrees (0: unknown).

    With bottoms of 1 this is a mean; where no block has more than one probe, with its usual standard error.
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
    """That a mean of 0 gives one as far from it."""
    if len(cosines_P) < 2:
        return 1.0
    value, error, degrees = jackknife(cosines_P, np.ones(len(cosines_P)))
    return float(2 * stats.t.sf(abs(value) / error, degrees)) if error > 0 else float(value == 0)


class _Probes:
    """The lines as arrays; of a run whose tasks changed, those since."""

    def __init__(self, lines: Sequence[Json]) -> None:
        self.lines = [line for line in lines if line["tasks"] == lines[-1]["tasks"]]
        self.tasks: tuple[str, ...] = tuple(lines[-1]["tasks"])
        self.steps_P = np.array([line["step"] for line in self.lines])
        names = dict.fromkeys(name for line in self.lines for name in line["layers"])
        self.layers = tuple(name for name in reversed(names) if name != ALL)  # from the embeddings up

    def cosines(self, layer: str, i: int, j: int) -> Floats:
        """[P]; not a number where either task has no gradient."""
        return np.array([_number(line["layers"].get(layer), i, j) for line in self.lines], np.float64)

    def norms(self, layer: str, k: int) -> Floats:
        """[P]"""
        return np.array([_number(line["norms"].get(layer), k) for line in self.lines], np.float64)


def _number(value: Any, *places: int) -> float:
    for place in places:
        value = None if value is None else value[place]
    return math.nan if value is None else float(value)
