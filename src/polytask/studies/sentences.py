"""Each comparison of a study as one sentence of plain English, in points (hundredths of the metric)."""

import numpy as np

from polytask.evaluation.comparison.records import LEVEL, MEAN, Comparison


def sentence(comparison: Comparison, examples: str = "dev examples") -> str:
    """Says in words what a comparison shows; `examples` says what was scored."""
    c = comparison
    where = "the mean of the tasks" if c.task == MEAN else c.task
    if c.claim == "undecided":
        return _undecided(c, where, examples)
    if c.claim == "same":
        within = f"{c.variant} and {c.reference} are the same within {_margin(c)} on {where}"
        return f"{within}: difference {_points(c.difference)} points {_ends(c)}"
    low, high = (c.low, c.high) if c.difference > 0 else (-c.high, -c.low)
    text = f"{c.variant} is {c.claim} than {c.reference} on {where} by {_points(abs(c.difference))} points"
    text += f" [{_points(low)}, {_points(high)}]"
    if c.p_same <= LEVEL:
        text += f", which is within the margin of {_margin(c)}"
    return text if c.greater_is_better else f"{text} (lower is better)"


def _undecided(c: Comparison, where: str, examples: str) -> str:
    direction = "" if c.greater_is_better else " (lower is better)"
    if c.difference == 0.0:
        size = f"the same as {c.reference}"
    else:
        size = f"{_points(abs(c.difference))} points {'higher' if c.difference > 0 else 'lower'} than {c.reference}"
    scored = f"{c.variant} scored {size}{direction}"
    if not c.seed_noise_known:
        return f"undecided on {where}: seed noise unknown (one seed); {scored}, {_ends(c)} over examples alone"
    return f"undecided on {where}: {scored} {_in_seeds(c)} {_ends(c)}, but {_what_is_missing(c, examples)}"


def _in_seeds(c: Comparison) -> str:
    """Says in how many seeds the difference has the sign of the mean: "in both seeds", "in 2 of 3 seeds"."""
    if c.seed_differences is None:
        return "on average"
    agree = sum(np.sign(d) == np.sign(c.difference) for d in c.seed_differences)
    if agree < c.seeds:
        return f"in {agree} of {c.seeds} seeds"
    return "in both seeds" if c.seeds == 2 else f"in all {c.seeds} seeds"


def _what_is_missing(c: Comparison, examples: str) -> str:
    luck = f"{c.seeds} seeds cannot rule out luck"
    if max(c.p_noise, c.p_swap) <= LEVEL:  # the interval excludes 0, which some of many do by chance
        luck = f"among {c.comparisons} comparisons {luck}"
    if c.seeds_needed is not None:
        return f"{luck}; {c.seeds_needed} seeds could"
    if abs(c.difference) <= c.margin:
        return f"{luck}, nor a difference of more than {_margin(c)}"
    return f"{luck}, and more seeds alone would not: {c.examples:,} {examples} are too few"


def _ends(c: Comparison) -> str:
    return f"[{_points(c.low)}, {_points(c.high)}]"


def _margin(c: Comparison) -> str:
    return in_points(100 * c.margin)


def in_points(value: float) -> str:
    return "1 point" if value == 1 else f"{value:g} points"


def _points(value: float) -> str:
    return f"{100 * value + 0.0:.1f}".replace("-0.0", "0.0")
