"""The claims of the five documents (claims.yaml), and the verdict on each from the studies' comparisons.

A claim has tests, each a pair of variants of a study, a task and the outcome that the claim expects; or, if no run
can decide it, a verdict with its reason. Every claim gets one of four verdicts:

    holds            all tests came out as expected
    does not hold    at least one test shows the opposite
    cannot be told   no test shows the opposite, but at least one is undecided or missing
    not run yet      none of the tests was made

A test whose study, variants or measure were never run does not count as long as other tests of its claim were run; the
page names it. A claim with tests and a verdict has that verdict until the first of its tests was run.

Whether a comparison is decided is judged with Holm's correction for the comparisons of its claim, where the result has
its p value, or the interval gives it because the comparison is over seeds alone (training rows, a gap, what was
forgotten); otherwise with the correction of its study.

Of a group of tests with `any: true`, one variant that fulfils all of its tests is enough; the group shows the opposite
if every variant does.

Two variants that a result compares with a third one, but not with each other, are compared through it. Their difference
is exact; half the width of its interval is at most the sum of the two, which is used, so that such a comparison decides
less than a direct one would. Two variants with the same scores on all tasks are one model (as when the checkpoint is
chosen before they differ): nothing was compared, and the comparison is undecided.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from papers_comparisons import in_short, in_words
from papers_results import LEVEL, SCORE, SPREAD, TASKS, Result, p_over_seeds
from papers_seeds import deciding_seeds, upper_p
from papers_studies import study_files

from polytask.evaluation.comparison.records import MARGIN
from polytask.evaluation.comparison.statistics import holm
from polytask.types import UserError, unknown

CLAIMS = Path(__file__).parent / "claims.yaml"
VERDICTS = ("holds", "does not hold", "cannot be told", "not run yet")
MEAN = "mean"
EXPECTED = {
    "better": ("better",),
    "same": ("same",),
    "not worse": ("better", "same"),
    "different": ("better", "worse"),
}
"""The outcomes of a comparison that fulfil each expectation; `undecided` neither fulfils nor contradicts it."""
ADDED = {"pal-samplers-mlm": ("MLM after",)}
"""Variants that no recipe can describe: papers.py trains the runs of the study's reference further."""
NOT_BY_SEEDS, NOT_KNOWN = "not by seeds", "not known"
OPPOSITE = {"better": "worse", "worse": "better", "same": "same", "undecided": "undecided"}


@dataclass(frozen=True)
class Check:
    """One comparison that a claim depends on."""

    study: str
    variant: str
    reference: str
    task: str
    """A task, or `mean`: the mean of the three tasks."""
    expected: str
    rows: Literal["dev", "train"] = "dev"
    of: str = SCORE
    """What is compared: the score, GAP, SPREAD, FORGOTTEN, PERPLEXITY, or a metric that is not the primary one."""
    group: int | None = None
    """The number of its group, if one variant of the group is enough."""


Made = Sequence[tuple[Check, Mapping[str, Any] | None]]
"""Tests, each with its comparison, or None if that was not made."""


@dataclass(frozen=True)
class Claim:
    """One claim of a document, in our words."""

    text: str
    tests: tuple[Check, ...] = ()
    verdict: str = ""
    """Of a claim without tests, and of one whose tests were never run."""
    reason: str = ""
    """Why there are no tests; with tests, a remark on what they leave open."""


@dataclass(frozen=True)
class System:
    """What the page says about one document."""

    about: str
    differs: str
    """What differs from the published setting."""
    studies: Mapping[str, str]
    """By study: its heading."""
    claims: Mapping[str, Claim]
    on_training_rows: Sequence[str] = ()
    """The studies whose published scores are those on training rows."""
    untested: str = ""
    """What its claims are about and no study of ours tests."""


@dataclass(frozen=True)
class Judged:
    """A verdict with its numbers."""

    verdict: str
    reason: str
    shown: Sequence[str] = field(default=())
    """Every comparison, in short; those of two variants are one text."""
    seeds: int | None = None
    """Of an open claim: the seeds that its undecided comparisons have."""
    needed: int | str = ""
    """Of an open claim: the seeds that would decide it, NOT_BY_SEEDS or NOT_KNOWN."""
    sentence: str = ""
    """The comparison that decides, or one that is undecided, in words."""
    comparisons: int = 0


# --- reading ----------------------------------------------------------------------------------------------------------
def read_systems(path: Path = CLAIMS) -> dict[str, System]:
    """Reads claims.yaml; raises a UserError for a study, variant, task, expectation or verdict that does not exist."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    systems = {name: read_system(system, f"{path.name}: {name}") for name, system in content.items()}
    variants = variants_of_studies()
    for name, system in systems.items():
        for study in system.studies:
            if study not in variants:
                raise UserError(unknown(f"{path.name}: {name}.studies", study, variants, "study"))
        for number, claim in system.claims.items():
            check_names(claim, variants, f"{path.name}: {name}.{number}")
    return systems


def variants_of_studies() -> dict[str, list[str]]:
    """The variants of every study in recipes/papers/, and those that papers.py adds."""
    return {name: [*study["variants"], *ADDED.get(name, ())] for name, (_, study) in study_files().items()}


def check_names(claim: Claim, variants: Mapping[str, Sequence[str]], where: str) -> None:
    for test in claim.tests:
        if test.study not in variants:
            raise UserError(unknown(where, test.study, variants, "study"))
        for variant in (test.variant, test.reference):
            if variant not in variants[test.study]:
                raise UserError(unknown(where, variant, variants[test.study], f"variant of {test.study}"))


def read_system(content: Mapping[str, Any], where: str) -> System:
    claims = {number: read_claim(claim, f"{where}.{number}") for number, claim in content["claims"].items()}
    return System(**{**content, "claims": claims})


def read_claim(content: Mapping[str, Any], where: str) -> Claim:
    groups = enumerate(content.get("tests", ()))
    tests = tuple(test for number, group in groups for test in read_tests(group, number, where))
    claim = Claim(content["text"], tests, content.get("verdict", ""), content.get("reason", ""))
    if not tests and not claim.verdict:
        raise UserError(f"{where}: must have tests or a verdict")
    if claim.verdict and (claim.verdict not in VERDICTS or not claim.reason):
        raise UserError(f"{where}: verdict: must be one of {', '.join(VERDICTS)}, with a reason; found {claim.verdict}")
    return claim


def read_tests(group: Mapping[str, Any], number: int, where: str) -> Iterable[Check]:
    """One test for every variant, reference and task of a group; each may be one name or a list."""
    if unexpected := group.keys() - {"study", "variant", "reference", "tasks", "expected", "rows", "of", "any"}:
        raise UserError(f"{where}: unknown field {', '.join(sorted(unexpected))} in {dict(group)}")
    values = [group[key] for key in ("variant", "reference", "tasks")]
    names = [[value] if isinstance(value, str) else value for value in values]
    if group["expected"] not in EXPECTED or not set(names[2]) <= {*TASKS, MEAN}:
        raise UserError(f"{where}: unknown task or expectation in {dict(group)}")
    for variant, reference, task in itertools.product(*names):
        rows, of = group.get("rows", "dev"), group.get("of", SCORE)
        yield Check(
            group["study"], variant, reference, task, group["expected"], rows, of, number if group.get("any") else None
        )


def needed_measures(systems: Mapping[str, System], study: str) -> dict[str, list[str]]:
    """What claims compare in a study other than scores, with the tasks."""
    tests = [t for system in systems.values() for claim in system.claims.values() for t in claim.tests]
    found: dict[str, dict[str, None]] = {}
    for test in tests:
        if test.study == study and test.of != SCORE:
            found.setdefault(test.of, {})[test.task] = None
    return {of: list(tasks) for of, tasks in found.items()}


def needed_pairs(systems: Mapping[str, System], study: str, reference: str) -> dict[str, list[str]]:
    """By reference: the variants that claims compare with it, where `polytask compare` does not compare them."""
    tests = [t for system in systems.values() for claim in system.claims.values() for t in claim.tests]
    pairs: dict[str, list[str]] = {}
    for test in tests:
        if (test.study, test.rows, test.of) != (study, "dev", SCORE):
            continue
        if reference not in (test.variant, test.reference) or test.reference in ADDED.get(study, ()):
            if test.reference in pairs.get(test.variant, ()):
                continue  # the same pair in the other direction
            variants = pairs.setdefault(test.reference, [])
            if test.variant not in variants:
                variants.append(test.variant)
    return pairs


# --- verdicts ---------------------------------------------------------------------------------------------------------
def judge(claim: Claim, results: Mapping[str, Result]) -> Judged:
    """The verdict on a claim; `results` has one result for each study that was run."""
    tests, never_run = split_by_run(claim.tests, results)
    if claim.verdict and not tests:
        return Judged(claim.verdict, claim.reason, in_short(never_run, results), comparisons=len(never_run))
    if not tests:
        tests, never_run = claim.tests, []
    made = decided([(test, with_p(test, results.get(test.study))) for test in tests])
    outcomes = [outcome(test, comparison) for test, comparison in made if test.group is None]
    for group in dict.fromkeys(test.group for test in tests if test.group is not None):
        own = [(test, comparison) for test, comparison in made if test.group == group]
        outcomes.append(outcome_of_any(own))
        shown = best_of_any(own)
        made = [one for one in made if one[0].group != group or one[0].variant == shown]
    if "contradicted" in outcomes:
        verdict = "does not hold"
    elif all(one == "missing" for one in outcomes):
        verdict = "not run yet"
    else:
        verdict = "holds" if all(one == "fulfilled" for one in outcomes) else "cannot be told"
    seeds, needed = seeds_for(made, results) if verdict == "cannot be told" else (None, "")
    sentence = in_words(verdict, [(test, found, outcome(test, found)) for test, found in made])
    every = [*made, *never_run]
    return Judged(verdict, claim.reason, in_short(every, results), seeds, needed, sentence, len(every))


def split_by_run(tests: Sequence[Check], results: Mapping[str, Result]) -> tuple[Sequence[Check], Made]:
    """The tests that count, and those that were never run. A group counts if one of its variants was run."""
    run = [test for test in tests if was_run(test, results.get(test.study))]
    groups = {test.group for test in run if test.group is not None}
    counting = [test for test in tests if test in run or test.group in groups]
    return counting, [(test, None) for test in tests if test not in run]


def was_run(test: Check, result: Result | None) -> bool:
    """Whether a result has both variants of a test, and what it compares."""
    if result is None:
        return False
    measured = any((one["rows"], one.get("of", SCORE)) == (test.rows, test.of) for one in result["comparisons"])
    both = {test.variant, test.reference} <= result.get("variants", {}).keys()
    return (both and measured) or comparison_of(test, result) is not None


def seeds_for(made: Made, results: Mapping[str, Result]) -> tuple[int | None, int | str]:
    """The seeds that the undecided comparisons of a claim have, and those that would decide the claim.

    One comparison that would show the opposite is enough; otherwise all of them must be fulfilled. Not known are the
    seeds for comparisons that were not made, or only through another variant, of one model, and of deviations.
    """
    has: list[int] = []
    opposite: list[int] = []
    fulfilled: list[int | None] = []
    known = True
    for test, found in made:
        if found is None:
            fulfilled.append(None)
            known = False
        elif outcome(test, found) == "undecided":
            result = results[test.study]
            has.append(seeds_of(test, result))
            possible: Mapping[str, int] = {}
            if test.of == SPREAD or "one_model" in found or has[-1] < 2 or "examples" not in result:
                known = False
            else:
                count = sum(one is not None for _, one in made)
                possible = deciding_seeds(found, has[-1], result["examples"], count)
                known = known and bool(possible or "through" not in found)
            shows = min(possible, key=possible.__getitem__, default="undecided")
            if shows == "undecided" or shows in EXPECTED[test.expected]:
                fulfilled.append(possible.get(shows))
            elif test.group is None:
                opposite.append(possible[shows])
            else:
                fulfilled.append(None)  # another variant of the group may still fulfil the claim
    numbers = [number for number in fulfilled if number is not None]
    seeds = min(has, default=None)
    if opposite:
        return seeds, min(opposite)
    if numbers and len(numbers) == len(fulfilled):
        return seeds, max(numbers)
    return seeds, NOT_BY_SEEDS if known else NOT_KNOWN


def seeds_of(test: Check, result: Result) -> int:
    """The seeds that both variants of a test have."""
    done = {name: variant["runs"][0] for name, variant in result.get("variants", {}).items()}
    return min(int(done.get(name, len(result.get("seeds", [0])))) for name in (test.variant, test.reference))


def decided(made: Made) -> Made:
    """The comparisons as they come out if only those of one claim are corrected for."""
    with_p = [found for _, found in made if found is not None and "p" in found]
    if not with_p:
        return made
    corrected = holm([found["p"] for found in with_p])
    claims = iter([claim_of(found, p, len(with_p)) for found, p in zip(with_p, corrected, strict=True)])
    return [
        (test, found if found is None or "p" not in found else {**found, "claim": next(claims)}) for test, found in made
    ]


def with_p(test: Check, result: Result | None) -> Mapping[str, Any] | None:
    """The comparison that a test needs, with its p values if it is over seeds alone."""
    found = comparison_of(test, result)
    over_seeds_alone = test.rows == "train" or test.of not in (SCORE, SPREAD)
    if result is None or found is None or "p" in found or not over_seeds_alone or seeds_of(test, result) < 2:
        return found
    half = (found["high"] - found["low"]) / 2
    p, p_same = p_over_seeds(found["difference"], half, seeds_of(test, result), MARGIN)
    return {**found, "p": p, "p_same": p_same}


def claim_of(found: Mapping[str, Any], corrected: float, comparisons: int) -> str:
    if corrected <= LEVEL:
        return "better" if found["difference"] > 0 else "worse"
    # p_same is that of its study: times the number of the study's comparisons, which older results do not state, and at
    # most 1. So 1 divided by that number says nothing.
    alone = found["p_same"] / found.get("comparisons", 1) if found["p_same"] < 1 else 1.0
    return "same" if alone * comparisons <= LEVEL else "undecided"


def comparison_of(test: Check, result: Result | None) -> Mapping[str, Any] | None:
    """The comparison that a test needs, in its direction; None if it was not made."""
    if result is None:
        return None
    found = direct(test, result) or through_another(test, result)
    if found is not None and one_model(test, result):
        return {**found, "claim": "undecided", "one_model": True, "p": 1.0, "p_same": 1.0}
    return found


def direct(test: Check, result: Result) -> Mapping[str, Any] | None:
    for found in result["comparisons"]:
        if (found["task"], found["rows"], found.get("of", SCORE)) != (test.task, test.rows, test.of):
            continue
        if (found["variant"], found["reference"]) == (test.variant, test.reference):
            return dict(found)
        if (found["variant"], found["reference"]) == (test.reference, test.variant):
            ends = {"difference": -found["difference"], "low": -found["high"], "high": -found["low"]}
            return {**found, **ends, "claim": OPPOSITE[found["claim"]]}
    return None


def through_another(test: Check, result: Result) -> Mapping[str, Any] | None:
    """The comparison of two variants that were both compared with a third one; the nearest bounds of all such ones."""
    found: list[Mapping[str, Any]] = []
    for third in result.get("variants", {}) if (test.rows, test.of) == ("dev", SCORE) else ():
        one = direct(replace(test, reference=third), result)
        two = direct(replace(test, variant=test.reference, reference=third), result)
        if one and two:
            difference = one["difference"] - two["difference"]
            half = sum((side["high"] - side["low"]) / 2 for side in (one, two))
            ends = {"difference": difference, "low": difference - half, "high": difference + half}
            p = upper_p(difference, half, min(seeds_of(replace(test, reference=third), result), seeds_of(test, result)))
            names = {key: one[key] for key in ("variant", "task", "rows", "claim")}
            found.append({**names, **ends, "reference": test.reference, "p": p, "p_same": 1.0, "through": third})
    return min(found, key=lambda one: one["high"] - one["low"], default=None)


def one_model(test: Check, result: Result) -> bool:
    """Whether two variants have the same scores, and intervals, on all tasks."""
    scores = [result.get("variants", {}).get(name, {}).get("scores") for name in (test.variant, test.reference)]
    return bool(scores[0]) and scores[0] == scores[1]


def outcome(test: Check, comparison: Mapping[str, Any] | None) -> str:
    if comparison is None:
        return "missing"
    if comparison["claim"] == "undecided":
        return "undecided"
    return "fulfilled" if comparison["claim"] in EXPECTED[test.expected] else "contradicted"


def outcome_of_any(made: Made) -> str:
    """The outcome of a group in which one variant is enough."""
    by_variant: dict[str, list[str]] = {}
    for test, comparison in made:
        by_variant.setdefault(test.variant, []).append(outcome(test, comparison))
    if all(set(own) == {"missing"} for own in by_variant.values()):
        return "missing"
    if any(set(own) == {"fulfilled"} for own in by_variant.values()):
        return "fulfilled"
    return "contradicted" if all("contradicted" in own for own in by_variant.values()) else "undecided"


def best_of_any(made: Made) -> str:
    """The variant of a group that is furthest above its references; the page shows only this one."""
    worst: dict[str, float] = {}
    for test, comparison in made:
        difference = -math.inf if comparison is None else comparison["difference"]
        worst[test.variant] = min(worst.get(test.variant, math.inf), difference)
    return max(worst, key=worst.__getitem__)
