"""The claims of the five documents (claims.yaml), and the verdict on each from the studies' comparisons.

A claim has tests, each a pair of variants of a study, a task and the outcome that the claim expects; or, if no run
can decide it, a verdict with its reason. Every claim gets one of four verdicts:

    holds            all tests came out as expected
    does not hold    at least one test shows the opposite
    cannot be told   no test shows the opposite, but at least one is undecided or missing
    not run yet      none of the tests was made
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from papers_results import MARKS, TASKS, Result

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


@dataclass(frozen=True)
class Claim:
    """One claim of a document, in our words."""

    text: str
    tests: tuple[Check, ...] = ()
    verdict: str = ""
    """Only for claims without tests."""
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


@dataclass(frozen=True)
class Judged:
    """A verdict with the sentence that gives its numbers."""

    verdict: str
    reason: str
    shown: Sequence[str] = field(default=())


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
    """The variants of every study in recipes/papers/."""
    files = sorted((CLAIMS.parent.parent / "recipes" / "papers").glob("*/study-*.yaml"))
    studies = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    return {study["name"]: list(study["variants"]) for study in studies}


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
    tests = tuple(test for group in content.get("tests", ()) for test in read_tests(group, where))
    claim = Claim(content["text"], tests, content.get("verdict", ""), content.get("reason", ""))
    if bool(tests) == bool(claim.verdict):
        raise UserError(f"{where}: must have either tests or a verdict")
    if claim.verdict and (claim.verdict not in VERDICTS or not claim.reason):
        raise UserError(f"{where}: verdict: must be one of {', '.join(VERDICTS)}, with a reason; found {claim.verdict}")
    return claim


def read_tests(group: Mapping[str, Any], where: str) -> Iterable[Check]:
    """One test for every variant, reference and task of a group; each may be one name or a list."""
    values = [group[key] for key in ("variant", "reference", "tasks")]
    names = [[value] if isinstance(value, str) else value for value in values]
    if group["expected"] not in EXPECTED or not set(names[2]) <= {*TASKS, MEAN}:
        raise UserError(f"{where}: unknown task or expectation in {dict(group)}")
    for variant, reference, task in itertools.product(*names):
        yield Check(group["study"], variant, reference, task, group["expected"], group.get("rows", "dev"))


def needed_pairs(systems: Mapping[str, System], study: str, reference: str) -> dict[str, list[str]]:
    """By reference: the variants that claims compare with it, where neither is the study's own reference."""
    tests = [t for system in systems.values() for claim in system.claims.values() for t in claim.tests]
    pairs: dict[str, list[str]] = {}
    for test in tests:
        if test.study == study and test.rows == "dev" and reference not in (test.variant, test.reference):
            if test.reference in pairs.get(test.variant, ()):
                continue  # the same pair in the other direction
            variants = pairs.setdefault(test.reference, [])
            if test.variant not in variants:
                variants.append(test.variant)
    return pairs


# --- verdicts ---------------------------------------------------------------------------------------------------------
def judge(claim: Claim, results: Mapping[str, Result]) -> Judged:
    """The verdict on a claim; `results` has one result for each study that was run."""
    if claim.verdict:
        return Judged(claim.verdict, claim.reason)
    made = [(test, comparison_of(test, results.get(test.study))) for test in claim.tests]
    outcomes = [outcome(test, comparison) for test, comparison in made]
    if "contradicted" in outcomes:
        verdict = "does not hold"
    elif all(one == "missing" for one in outcomes):
        verdict = "not run yet"
    else:
        verdict = "holds" if all(one == "fulfilled" for one in outcomes) else "cannot be told"
    return Judged(verdict, claim.reason, sentences(made, results))


def comparison_of(test: Check, result: Result | None) -> Mapping[str, Any] | None:
    """The comparison that a test needs, in its direction; None if it was not made."""
    for found in result["comparisons"] if result else ():
        if (found["task"], found["rows"]) != (test.task, test.rows):
            continue
        if (found["variant"], found["reference"]) == (test.variant, test.reference):
            return dict(found)
        if (found["variant"], found["reference"]) == (test.reference, test.variant):
            ends = {"difference": -found["difference"], "low": -found["high"], "high": -found["low"]}
            return {**found, **ends, "claim": OPPOSITE[found["claim"]]}
    return None


def outcome(test: Check, comparison: Mapping[str, Any] | None) -> str:
    if comparison is None:
        return "missing"
    if comparison["claim"] == "undecided":
        return "undecided"
    return "fulfilled" if comparison["claim"] in EXPECTED[test.expected] else "contradicted"


def sentences(made: Sequence[tuple[Check, Mapping[str, Any] | None]], results: Mapping[str, Result]) -> list[str]:
    """For each pair of variants, the differences of their tasks; pairs that were not compared come last."""
    by_pair: dict[tuple[str, str, str], list[str]] = {}
    missing: dict[str, None] = {}
    for test, found in made:
        if found is None:
            rows = " on training rows" if test.rows == "train" else ""
            pair = f"{test.variant} against {test.reference}{rows}: not compared"
            missing[pair if test.study in results else f"`{test.study}` has no result"] = None
        else:
            text = f"{TASKS.get(test.task, test.task)} {points(found)}{MARKS[found['claim']]}"
            by_pair.setdefault((test.variant, test.reference, test.rows), []).append(text)
    shown = [
        f"{variant} against {reference}{' on training rows' if rows == 'train' else ''}: {', '.join(texts)}"
        for (variant, reference, rows), texts in by_pair.items()
    ]
    return [*shown, *missing]


def points(comparison: Mapping[str, Any]) -> str:
    difference, low, high = (100 * comparison[key] for key in ("difference", "low", "high"))
    return f"{difference:+.1f} [{low:.1f}, {high:.1f}]"
