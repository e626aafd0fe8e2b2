"""Measures what a temperature that was fitted on few dev rows does to the probabilities of other rows.

    OMP_NUM_THREADS=1 python benchmarks/temperature_simulation.py

Scores z are drawn from a normal distribution, labels from softmax(z); the model's outputs are T z, so T is the right
temperature. Three ways to calibrate: the temperature with the lowest log loss (Guo et al. 2017); the same, but only if
it lowers the log loss when each half of the rows is calibrated by the other; and polytask's, with some further rows
that count as labelled by the probabilities of temperature 1. Prints the change of the log loss on 10,000 other rows
against no calibration, times 1,000: below 0 is better.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from polytask.evaluation.calibration import HIGHEST, LOWEST, PRIOR_ROWS

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

SPREAD = 2.0
TEMPERATURES = (0.7, 1.0, 1.3, 2.5)
WAYS = ("lowest log loss", "if it helps halves", "5 further rows", "10", "20", "40")
assert PRIOR_ROWS == 10, "the second column of further rows is polytask's"


def drawn(rng: np.random.Generator, rows: int, classes: int, temperature: float) -> tuple[Floats, Labels]:
    z_NC = rng.normal(scale=SPREAD, size=(rows, classes))
    gold_N = (special.softmax(z_NC, 1).cumsum(1) > rng.random((rows, 1))).argmax(1)
    return temperature * z_NC, gold_N


def log_loss(z_NC: Floats, gold_N: Labels, temperature: float) -> float:
    return float(-special.log_softmax(z_NC / temperature, 1)[np.arange(len(gold_N)), gold_N].mean())


def fitted(z_NC: Floats, gold_N: Labels, further: int = 0) -> float:
    """The temperature with the lowest log loss of the rows and of `further` rows."""
    p_NC = special.softmax(z_NC, 1)

    def loss(log_temperature: float) -> float:
        log_q_NC = special.log_softmax(z_NC / np.exp(log_temperature), 1)
        own = log_q_NC[np.arange(len(gold_N)), gold_N].sum()
        return float(-own - further * (p_NC * log_q_NC).sum(1).mean())

    ends = (np.log(LOWEST), np.log(HIGHEST))
    return float(np.exp(optimize.minimize_scalar(loss, bounds=ends, method="bounded").x))


def helps_halves(z_NC: Floats, gold_N: Labels) -> bool:
    half = len(gold_N) // 2
    parts = (slice(half), slice(half, None))
    after = [
        len(gold_N[one]) * log_loss(z_NC[one], gold_N[one], fitted(z_NC[other], gold_N[other]))
        for one, other in (parts, parts[::-1])
    ]
    return sum(after) / len(gold_N) < log_loss(z_NC, gold_N, 1.0)


def changes(rng: np.random.Generator, rows: int, classes: int, temperature: float, repeats: int) -> Floats:
    """The mean change of the log loss of each way, and its standard error."""
    other = drawn(rng, 10_000, classes, temperature)
    start = log_loss(*other, 1.0)
    found = []
    for _ in range(repeats):
        dev = drawn(rng, rows, classes, temperature)
        best = fitted(*dev)
        temperatures = [
            best,
            best if helps_halves(*dev) else 1.0,
            *(fitted(*dev, further) for further in (5, 10, 20, 40)),
        ]
        found.append([log_loss(*other, one) - start for one in temperatures])
    return np.array([np.mean(found, 0), np.std(found, 0, ddof=1) / repeats**0.5]) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    print(f"| classes | dev rows | right T | {' | '.join(WAYS)} |\n|{'---:|' * (3 + len(WAYS))}")
    for classes in (2, 4):
        for rows in (30, 60, 100, 300, 1000):
            for temperature in TEMPERATURES:
                means, errors = changes(rng, rows, classes, temperature, repeats)
                cells = [f"{mean:+.1f} ({error:.1f})" for mean, error in zip(means, errors, strict=True)]
                print(f"| {classes} | {rows:,} | {temperature} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
