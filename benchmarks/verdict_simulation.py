"""Measures how often a study's verdict is wrong, and how often it detects a gap, in simulated studies.

    OMP_NUM_THREADS=1 python benchmarks/verdict_simulation.py

A run's score is truth + seed noise + example noise. The standard deviation of seed noise is 1 point unless the scenario
says otherwise, and a dev set of 5,000 examples, of which two variants answer 15 % differently, adds 0.55 points to each
difference. polytask's own functions compute the verdicts from these scores and from 50 blocks of examples. The
permutation test, which can only withdraw claims, is left out. Prints Markdown tables.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from polytask.evaluation.comparison.records import LEVEL
from polytask.evaluation.comparison.seed_noise import AnyNoise, prior_degrees, shared
from polytask.evaluation.comparison.statistics import Noise, Runs, holm, noise
from polytask.machine import environment

Floats = NDArray[np.float64]

POINT = 0.01
EXAMPLE_ERROR = float(np.sqrt(0.15 / 5000))
BLOCKS = 50
SEEDS = (1, 2, 3, 5, 10)
GAPS = (1, 2, 5, 18)
SAME = 5
"""The margin in the table of "the same", in points: wide enough for these studies to detect."""
TIMES = 8
"""How many times as large the seed noise of an unstable recipe is."""


# --- seed noise [variants, tasks, seeds], in points; the first variant is the reference -------------------------------


def normal(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return rng.normal(size=shape)


def unequal(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Every variant has its own standard deviation, between a third of a point and three points."""
    noise_VTS: Floats = rng.normal(size=shape) * 3 ** rng.uniform(-1, 1, (shape[0], 1, 1))
    return noise_VTS


def skewed(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Some runs of every variant are much worse: minus a gamma variable with shape 1/2 (skewness -2.8)."""
    noise_VTS: Floats = (0.5 - rng.gamma(0.5, size=shape)) / np.sqrt(0.5)
    return noise_VTS


def unstable(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    found = rng.normal(size=shape)
    found[-1] *= TIMES
    return found


def unstable_reference(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    found = rng.normal(size=shape)
    found[0] *= TIMES
    return found


def collapsing(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """A tenth of the runs of one variant lose 10 points on every task; its others score 1 point above the reference."""
    found = rng.normal(size=shape)
    found[-1] -= 10 * ((rng.random((1, shape[2])) < 0.1) - 0.1)
    return found


Scenario = Callable[[np.random.Generator, tuple[int, int, int]], Floats]
SCENARIOS: dict[str, Scenario] = {
    "normal": normal,
    "unequal": unequal,
    "skewed": skewed,
    "one recipe unstable": unstable,
    "reference unstable": unstable_reference,
}
LIMIT: dict[str, Scenario] = {"one recipe collapses": collapsing}


# --- one study --------------------------------------------------------------------------------------------------------


def study(
    rng: np.random.Generator, scenario: Scenario, variants: int, tasks: int, seeds: int, gaps: Sequence[float]
) -> tuple[Floats, list[list[Noise]]]:
    """Return the differences [G, W] to the reference and their noise; `gaps` are in points, for the first of G."""
    seed_VTS = POINT * scenario(rng, (variants, tasks, seeds))
    blocks_VTB = rng.normal(size=(variants, tasks, BLOCKS)) * EXAMPLE_ERROR * np.sqrt(BLOCKS / 2)
    differences, noises = [], []
    for v in range(1, variants):
        gap = POINT * gaps[v - 1] if v <= len(gaps) else 0.0
        parts_TB = blocks_VTB[v] - blocks_VTB[0]
        means_T = parts_TB.mean(1)
        scores_TS = gap + seed_VTS[v] - seed_VTS[0] + means_T[:, None]
        runs = [Runs(scores_TS[t], np.tile(parts_TB[t] - means_T[t], (seeds, 1))) for t in range(tasks)]
        views = [[run] for run in runs] + ([runs] if tasks > 1 else [])
        noises.append([noise([view], [0.0] * len(view)) for view in views])
        differences.append([float(np.mean([run.scores_S.mean() for run in view])) for view in views])
    return np.array(differences), noises


# --- rules: which of the G x W differences are claimed ----------------------------------------------------------------


def claims(differences_GW: Floats, noises: Sequence[Sequence[AnyNoise]]) -> NDArray[np.bool_]:
    """Return the claims by Holm at 5 %. If its first step claims nothing, no p value is computed."""
    flat = [one for row in noises for one in row]
    pairs = list(zip(differences_GW.ravel().tolist(), flat, strict=True))
    if all(one.half_width(LEVEL / len(pairs)) > abs(d) for d, one in pairs):
        return np.zeros(differences_GW.shape, bool)
    p = [one.p_value(d) if one.half_width(LEVEL) <= abs(d) else 1.0 for d, one in pairs]
    return (np.array(holm(p)) <= LEVEL).reshape(differences_GW.shape)


def old_rule(differences: Floats, noises: list[list[Noise]]) -> NDArray[np.bool_]:
    """Judge each comparison by its own seeds only, or by its examples only if there is one seed."""
    return claims(differences, noises)


def new_rule(differences: Floats, noises: list[list[Noise]]) -> NDArray[np.bool_]:
    if not noises[0][0].seeds:
        return np.zeros(differences.shape, bool)
    return claims(differences, shared(noises))


def _moderated(differences: Floats, noises: list[list[Noise]], robust: bool) -> NDArray[np.bool_]:
    """limma's eBayes: shrink every variance to the prior. `robust`: outliers (F test, 5 % among all) keep their own."""
    ((_, d),) = noises[0][0].seeds
    variances_GW = np.array([[one.seeds[0][0] * (d + 1) for one in row] for row in noises])
    prior = min(prior_degrees(variances_GW, np.full(len(noises), d)), d * (len(noises) - 1))
    usual_W = np.exp(np.log(variances_GW).mean(0) - special.digamma(d / 2) + np.log(d / 2))
    usual_W *= np.exp(special.digamma(prior / 2) - np.log(prior / 2))
    outlier = special.fdtrc(d, prior, variances_GW / usual_W) < 0.05 / variances_GW.size
    keeps_GW = outlier if robust else np.zeros(outlier.shape, bool)
    degrees_GW = np.where(keeps_GW, d, d + prior)
    new_GW = np.where(keeps_GW, variances_GW, (prior * usual_W + d * variances_GW) / (prior + d)) / (d + 1)
    moderated = [
        [replace(one, seeds=((float(new_GW[g, w]), float(degrees_GW[g, w])),)) for w, one in enumerate(row)]
        for g, row in enumerate(noises)
    ]
    return claims(differences, moderated)


def pooled(differences: Floats, noises: list[list[Noise]]) -> NDArray[np.bool_]:
    """Use the mean variance of all comparisons in a view, with all their degrees of freedom."""
    ((_, d),) = noises[0][0].seeds
    mean_W = np.mean([[one.seeds[0][0] for one in row] for row in noises], axis=0)
    together = [
        [replace(one, seeds=((float(mean), d * len(noises)),)) for one, mean in zip(row, mean_W, strict=True)]
        for row in noises
    ]
    return claims(differences, together)


def limma(differences: Floats, noises: list[list[Noise]]) -> NDArray[np.bool_]:
    return _moderated(differences, noises, robust=False)


def robust_limma(differences: Floats, noises: list[list[Noise]]) -> NDArray[np.bool_]:
    return _moderated(differences, noises, robust=True)


Rule = Callable[[Floats, list[list[Noise]]], NDArray[np.bool_]]
OLD_AND_NEW: dict[str, Rule] = {"old": old_rule, "new": new_rule}
ALL: dict[str, Rule] = {**OLD_AND_NEW, "pooled": pooled, "limma": limma, "robust limma": robust_limma}


# --- tables -----------------------------------------------------------------------------------------------------------


def false_claims(
    rng: np.random.Generator, scenario: Scenario, size: tuple[int, int, int], studies: int
) -> dict[str, float]:
    """Return the percentage of studies with any claim if there is no difference; size is variants, tasks, seeds."""
    rules = ALL if size[2] > 1 and size[1] > 1 else OLD_AND_NEW
    found = dict.fromkeys(rules, 0)
    for _ in range(studies):
        differences, noises = study(rng, scenario, *size, [])
        for name, rule in rules.items():
            found[name] += bool(rule(differences, noises).any())
    return {name: 100 * count / studies for name, count in found.items()}


def power(
    rng: np.random.Generator, scenario: Scenario, size: tuple[int, int, int], studies: int
) -> dict[str, list[float]]:
    """Return the percentage of studies that claim each gap, on the first task; other variants have no gap."""
    counts = {name: np.zeros(len(GAPS)) for name in OLD_AND_NEW}
    one_each = [[gap] for gap in GAPS] if size[0] == 2 else [list(GAPS)]
    for gaps in one_each:
        for _ in range(studies):
            differences, noises = study(rng, scenario, *size, gaps)
            for name, rule in OLD_AND_NEW.items():
                seen = rule(differences, noises)[:, 0] & (differences[:, 0] > 0)
                for at, gap in enumerate(gaps):
                    counts[name][GAPS.index(int(gap))] += seen[at]
    return {name: (100 * count / studies).tolist() for name, count in counts.items()}


def false_same(rng: np.random.Generator, scenario: Scenario, size: tuple[int, int, int], studies: int) -> float:
    """Return the percentage of studies that call any variant the same if all differ by the margin, SAME points."""
    found, gaps = 0, [float(SAME)] * (size[0] - 1)
    for _ in range(studies):
        differences, noises = study(rng, scenario, *size, gaps)
        level, room = LEVEL / differences.size, POINT * SAME - np.abs(differences).ravel()
        flat = [one for row in noises for one in row]
        found += any(r > 0 and one.half_width(level) <= r for r, one in zip(room, flat, strict=True))
    return 100 * found / studies


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows):
        print(f"| {' | '.join(row)} |")
    print(flush=True)


def print_false_claims(rng: np.random.Generator, variants: int, tasks: int, studies: int) -> None:
    rules = ALL if tasks > 1 else OLD_AND_NEW
    many = (variants - 1) * (tasks + (tasks > 1))
    print(f"False claims, percent of studies: {variants} variants, {tasks} task(s), {many} comparisons\n")
    rows = []
    for name, scenario in (SCENARIOS | LIMIT).items():
        for seeds in SEEDS:
            found = false_claims(rng, scenario, (variants, tasks, seeds), studies)
            numbers = [f"{found[rule]:.1f}" if rule in found else "" for rule in rules]
            rows.append([name, f"{seeds}", *numbers])
    table(["noise", "seeds", *rules], rows)


def print_power(rng: np.random.Generator, variants: int, tasks: int, studies: int) -> None:
    print(f"Gaps claimed, percent of studies (old / new): {variants} variants, {tasks} task(s)\n")
    rows = []
    for name, scenario in SCENARIOS.items():
        for seeds in SEEDS:
            seen = power(rng, scenario, (variants, tasks, seeds), studies)
            rows.append([name, f"{seeds}", *(f"{o:.0f} / {n:.0f}" for o, n in zip(*seen.values(), strict=True))])
    table(["noise", "seeds", *(f"{gap} points" if gap > 1 else "1 point" for gap in GAPS)], rows)


def print_false_same(rng: np.random.Generator, studies: int) -> None:
    print(f"Called the same within {SAME} points, percent of studies where two variants differ by {SAME} points\n")
    rows = []
    for name, scenario in SCENARIOS.items():
        rows.append([name, *(f"{false_same(rng, scenario, (2, 1, seeds), studies):.1f}" for seeds in SEEDS[1:])])
    table(["noise", *(f"{seeds} seeds" for seeds in SEEDS[1:])], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=1000, help="simulated studies for each number")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    studies, rng, started = chosen.studies, np.random.default_rng(chosen.seed), time.process_time()
    at_5, at_50 = (100 * np.sqrt(share * (1 - share) / studies) for share in (0.05, 0.5))
    print(f"{environment(torch.device('cpu'))['cpu']}, one core. Random seed {chosen.seed}.")
    print(f"{studies:,} studies for each number: standard error {at_5:.1f} at 5 %, at most {at_50:.1f};")
    print(f"a quarter of them for each number of the tables of gaps: standard error at most {2 * at_50:.1f}.\n")
    print_false_claims(rng, 6, 3, studies)
    print_false_claims(rng, 12, 1, studies)
    print_power(rng, 6, 3, studies // 4)
    print_power(rng, 2, 1, studies // 4)
    print_false_same(np.random.default_rng(chosen.seed + 1), studies)
    print(f"{time.process_time() - started:.0f} s of processor time: python {' '.join(sys.argv)}")


if __name__ == "__main__":
    main()
