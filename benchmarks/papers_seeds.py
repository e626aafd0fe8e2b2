"""How many seeds would decide a comparison that the seeds of its study leave open. Knows numbers only.

The rule is that of `polytask compare`: the fewest seeds, as noisy as those that were run, with which a difference of
the observed size would be claimed, or with which the variants would be the same within the margin. Both kinds of noise
are needed for that. Results since 2026-11-19 have them; for older ones the noise over examples is what `compare`
assumes before any run has finished (two variants predict different labels for 15 % of the examples), and the rest of
the interval is noise over seeds.
"""

import math
from collections.abc import Mapping
from typing import Any

from scipy import special

from polytask.evaluation.comparison.power import assumed
from polytask.evaluation.comparison.records import LEVEL, MARGIN
from polytask.evaluation.comparison.statistics import Noise
from polytask.evaluation.comparison.verdict import seeds_needed

MEAN = "mean"


def deciding_seeds(
    found: Mapping[str, Any], seeds: int, examples: Mapping[str, int], comparisons: int
) -> dict[str, int]:
    """By outcome (better, worse, same): the seeds with which it would be claimed among so many comparisons.

    `examples` are the sizes of the study's dev sets. An outcome that a hundred seeds do not give is left out.
    """
    noise = noise_of(found, seeds, examples)
    difference = found["difference"]
    wanted = {"better" if difference > 0 else "worse": difference, "same": MARGIN - abs(difference)}
    needed = {
        outcome: seeds_needed(noise, size, seeds, comparisons)
        for outcome, size in wanted.items()
        if outcome != "same" or size > 0
    }
    return {outcome: number for outcome, number in needed.items() if number is not None}


def noise_of(found: Mapping[str, Any], seeds: int, examples: Mapping[str, int]) -> Noise:
    """The two kinds of noise of a difference."""
    over_seeds_alone = found["rows"] == "train" or "of" in found
    task = found["task"]
    sizes = {task: examples[task]} if task in examples else dict(examples)  # the mean; plain text is not a task's score
    degrees = max(min(sizes.values()) - 1, 1)
    if "seed_deviation" in found and "example_error" in found:
        return Noise(((found["seed_deviation"] ** 2 / seeds, seeds - 1),), found["example_error"] ** 2, 0.0, degrees)
    half = (found["high"] - found["low"]) / 2
    seeds_t, examples_t = (-special.stdtrit(d, LEVEL / 2) for d in (seeds - 1, degrees))
    (*_, outlook) = assumed(sizes, list(sizes) if len(sizes) > 1 else [], MEAN, 1)
    error = 0.0 if over_seeds_alone else min(outlook.example_error, half / examples_t)
    variance = max(half**2 - (examples_t * error) ** 2, 0.0) / seeds_t**2
    return Noise(((variance, seeds - 1),), error**2, 0.0, degrees)


def upper_p(difference: float, half: float, seeds: int) -> float:
    """A p value that is not too small, given half the width of a 95 % interval that is not too narrow.

    The ends of an interval move out with its level at most as fast as those of Student's t over the seeds alone.
    """
    if abs(difference) < half:
        return 1.0
    at_level = -special.stdtrit(seeds - 1, LEVEL / 2)
    return float(2 * special.stdtr(seeds - 1, -at_level * abs(difference) / half)) if half > 0 else math.nan
