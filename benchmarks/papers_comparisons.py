"""The comparisons behind a verdict on a claim, in words: one sentence, and all of them in short."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from papers_results import FORGOTTEN, GAP, LEVEL, MARKS, PERPLEXITY, SCORE, SPREAD, TASKS, Result, decimals

Found = Mapping[str, Any]
DECIDING = {"holds": "fulfilled", "does not hold": "contradicted", "cannot be told": "undecided"}
"""The outcomes of comparisons that a verdict rests on."""
MEASURES = {
    GAP: "the gap between training rows and dev",
    SPREAD: "the deviation over seeds",
    FORGOTTEN: "what was forgotten",
    PERPLEXITY: "100 times the logarithm of the perplexity",
}


class Test(Protocol):
    """What a comparison is between: a Check of papers_claims.py."""

    @property
    def study(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def rows(self) -> str: ...
    @property
    def of(self) -> str: ...


# --- one sentence -----------------------------------------------------------------------------------------------------
def in_words(verdict: str, made: Sequence[tuple[Test, Found | None, str]]) -> str:
    """The comparison that a verdict rests on, and how many more there are; `made` has the outcome of each comparison.

    Of a claim that holds it is the smallest difference, of one that does not hold the largest, and of an open one the
    first that is undecided.
    """
    own = [(test, found) for test, found, one in made if found is not None and one == DECIDING.get(verdict)]
    if not own:
        return ""
    others, verb = len(own) - 1, "is" if len(own) == 2 else "are"
    if verdict == "holds":
        smallest = min(own, key=lambda one: float(one[1]["difference"]))
        return difference_in_words(*smallest) + (f", the smallest of {len(own)} differences" if others else "")
    if verdict == "does not hold":
        largest = max(own, key=lambda one: abs(float(one[1]["difference"])))
        rest = f"; {others} more of {len(made)} comparisons {verb} against the claim" if others else ""
        return difference_in_words(*largest) + rest
    rest = f", as {verb} {others} more of {len(made)} comparisons" if others else ""
    return f"{difference_in_words(*own[0])}, which is undecided{why_undecided(own[0][1])}{rest}"


def why_undecided(found: Found) -> str:
    """A hint where the interval alone would decide."""
    if "one_model" in found:
        return " because they are one model"
    if found["low"] <= 0 <= found["high"]:
        return ""
    if found.get("p", 0.0) > LEVEL:
        return f" (p = {decimals(found['p'])}, which takes all rows of the study into account)"
    return " after the correction for several comparisons"


def difference_in_words(test: Test, found: Found) -> str:
    one, other, task = f"*{test.variant}*", f"*{test.reference}*", TASKS.get(test.task, "the mean of the tasks")
    if test.of == SPREAD:
        return f"{one} has {times(found)} the deviation over seeds of {other} on {task}"
    size, interval = abs(100 * found["difference"]), points(found).split(" ", 1)[1]
    side = "above" if found["difference"] > 0 else "below"
    if found["claim"] == "same":
        return f"{one} is the same as {other} on {task}{place(test)}, within half a point: {points(found)}"
    amount = f"{size:.1f} points {side}" if round(size, 1) else "0.0 points from"
    return f"{one} is {amount} {other} on {task}{place(test)} {interval}"


# --- all of them ------------------------------------------------------------------------------------------------------
def in_short(made: Sequence[tuple[Test, Found | None]], results: Mapping[str, Result]) -> list[str]:
    """For each pair of variants, the differences of their tasks; pairs that were not compared come last."""
    by_pair: dict[tuple[str, str, str], list[str]] = {}
    missing: dict[str, None] = {}
    several = len({test.study for test, found in made if found is not None}) > 1
    for test, found in made:
        if found is None:
            pair = f"{test.variant} against {test.reference}{place(test)}: not compared"
            missing[pair if test.study in results else f"`{test.study}` has no result"] = None
        else:
            shown_as = times(found) if test.of == SPREAD else points(found)
            note = f" (through {found['through']})" if "through" in found else ""
            note = " (the same model)" if "one_model" in found else note
            text = f"{TASKS.get(test.task, test.task)} {shown_as}{MARKS[found['claim']]}{note}"
            where = place(test) + (f" in `{test.study}`" if several else "")
            where += f" (run of {results[test.study]['date']})" if "earlier" in results.get(test.study, {}) else ""
            by_pair.setdefault((test.variant, test.reference, where), []).append(text)
    shown = [
        f"{variant} against {reference}{where}: {', '.join(texts)}"
        for (variant, reference, where), texts in by_pair.items()
    ]
    return [*shown, *missing]


def place(test: Test) -> str:
    """What a test compares, if it is not the score on dev."""
    if test.of == SCORE:
        return " on training rows" if test.rows == "train" else ""
    return f" in {MEASURES.get(test.of, test.of)}"


def times(found: Found) -> str:
    """A ratio of deviations; the comparison has the logarithm of its inverse, so that smaller is better."""
    ratio, high, low = (math.exp(-found[key]) for key in ("difference", "low", "high"))
    return f"{ratio:.2f} times [{low:.2f}, {high:.2f}]"


def points(found: Found) -> str:
    difference, low, high = (100 * found[key] for key in ("difference", "low", "high"))
    return f"{difference:+.1f} [{low:.1f}, {high:.1f}]"
