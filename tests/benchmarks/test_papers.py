"""The page of the published systems: verdicts from comparisons, names in claims.yaml, changed learning rates."""

import argparse
import dataclasses
import importlib
import json
import math
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from polytask import UserError, read_study, train
from polytask.evaluation.comparison.records import TaskData
from polytask.evaluation.comparison.verdict import judge as compare_variants
from polytask.studies.compare import compare_runs

ROOT = Path(__file__).parent.parent.parent
STUDY = "conditional-norm-table-1"
STUDIES = sorted((ROOT / "recipes" / "papers").glob("*/study-*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def _paths() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.setenv("POLYTASK_DATA", "/data")
        yield


def module(name: str) -> Any:
    return importlib.import_module(name)


def comparison(claim: str, variant: str = "A", reference: str = "B", task: str = "sst") -> dict[str, Any]:
    ends = {"difference": 0.02, "low": 0.01, "high": 0.03, "rows": "dev"}
    return {"variant": variant, "reference": reference, "task": task, "claim": claim, **ends}


def claim_on(expected: str, tasks: tuple[str, ...] = ("sst",)) -> Any:
    claims = module("papers_claims")
    return claims.Claim("A beats B.", tuple(claims.Check("S", "A", "B", task, expected) for task in tasks))


# --- verdicts ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expected", "found", "verdict"),
    [
        ("better", "better", "holds"),
        ("better", "worse", "does not hold"),
        ("better", "same", "does not hold"),
        ("better", "undecided", "cannot be told"),
        ("same", "same", "holds"),
        ("same", "better", "does not hold"),
        ("not worse", "same", "holds"),
        ("not worse", "better", "holds"),
        ("not worse", "worse", "does not hold"),
        ("different", "worse", "holds"),
        ("different", "same", "does not hold"),
    ],
)
def test_the_verdict_on_one_comparison(expected: str, found: str, verdict: str) -> None:
    judged = module("papers_claims").judge(claim_on(expected), {"S": {"comparisons": [comparison(found)]}})
    assert judged.verdict == verdict
    assert judged.shown[0].startswith("A against B: SST +2.0 [1.0, 3.0]")


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            {"sst": "better", "sts": "better"},
            "*A* is 2.0 points above *B* on SST [1.0, 3.0], the smallest of 2 differences",
        ),
        (
            {"sst": "worse", "quora": "undecided", "sts": "worse"},
            "*A* is 2.0 points above *B* on SST [1.0, 3.0]; 1 more of 3 comparisons is against the claim",
        ),
        ({"sst": "same"}, "*A* is the same as *B* on SST, within half a point: +2.0 [1.0, 3.0]"),
        (
            {"sst": "better", "sts": "undecided"},
            "*A* is 2.0 points above *B* on STS [1.0, 3.0], which is undecided after the correction for several "
            "comparisons",
        ),
    ],
)
def test_one_sentence_says_what_a_verdict_rests_on(found: dict[str, str], sentence: str) -> None:
    results = {"S": {"comparisons": [comparison(claim, task=task) for task, claim in found.items()]}}
    assert module("papers_claims").judge(claim_on("better", tuple(found)), results).sentence == sentence


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"sst": "better", "sts": "better"}, "holds"),
        ({"sst": "better", "sts": "undecided"}, "cannot be told"),
        ({"sst": "undecided", "sts": "same"}, "does not hold"),
        ({"sst": "better"}, "cannot be told"),
        ({}, "not run yet"),
    ],
)
def test_a_claim_needs_all_its_comparisons(found: dict[str, str], verdict: str) -> None:
    made = [comparison(claim, task=task) for task, claim in found.items()]
    result = {"variants": scores_of(A=0.5, B=0.51), "comparisons": made, "examples": {"sst": 1101, "sts": 863}}
    assert module("papers_claims").judge(claim_on("better", ("sst", "sts")), {"S": result}).verdict == verdict


@pytest.mark.parametrize(
    ("planned", "named"),
    [
        ({"study": "T"}, "`T` has no result"),
        ({"variant": "C"}, "C against B: not compared"),
        ({"rows": "train"}, "A against B on training rows: not compared"),
        ({"of": "gap"}, "A against B in the gap between training rows and dev: not compared"),
    ],
)
@pytest.mark.parametrize(("found", "verdict"), [("better", "holds"), ("undecided", "cannot be told")])
def test_what_was_never_run_is_named_and_does_not_count(
    planned: dict[str, str], named: str, found: str, verdict: str
) -> None:
    claims = module("papers_claims")
    (test,) = claim_on("better").tests
    made = {**comparison(found), "p": 0.5, "p_same": 1.0} if found == "undecided" else comparison(found)
    result = {"variants": scores_of(A=0.5, B=0.51), "comparisons": [made], "examples": {"sst": 1101}}
    judged = claims.judge(claims.Claim("", (test, dataclasses.replace(test, **planned))), {"S": result})
    assert judged.verdict == verdict
    assert judged.shown[1:] == [named]
    alone = claims.judge(claims.Claim("", (test,)), {"S": result})
    assert (judged.seeds, judged.needed) == (alone.seeds, alone.needed)


def test_a_verdict_is_corrected_for_the_comparisons_of_its_claim_only() -> None:
    """Both variants are the same by one comparison of twenty of the study, whose p value is .01 by itself."""
    claim_of = module("papers_claims").claim_of
    found = {"difference": 0.001, "p_same": 0.2, "comparisons": 20}
    assert [claim_of(found, 1.0, count) for count in (1, 5, 6)] == ["same", "same", "undecided"]
    assert claim_of({**found, "p_same": 1.0}, 1.0, 1) == "undecided", "it may be 1 by itself too"
    del found["comparisons"]  # older results
    assert claim_of(found, 1.0, 1) == "undecided"
    assert claim_of(found, 0.01, 1) == "better"


def test_a_group_is_not_against_a_claim_before_all_of_its_variants_were_run() -> None:
    claims = module("papers_claims")
    tests = tuple(claims.Check("S", variant, "B", "sst", "better", group=0) for variant in "AC")
    variants = scores_of(A=0.5, B=0.51)
    for more, verdict in ({}, "cannot be told"), (scores_of(C=0.5), "does not hold"):
        made = [comparison("worse", name) for name in ("A", *more)]
        result = {"variants": {**variants, **more}, "comparisons": made, "examples": {"sst": 1101}}
        assert claims.judge(claims.Claim("", tests), {"S": result}).verdict == verdict


def test_a_verdict_beside_tests_is_that_until_they_are_run() -> None:
    claims = module("papers_claims")
    claim = claims.Claim("", claim_on("better").tests, "holds", "By construction.")
    judged = claims.judge(claim, {})
    assert (judged.verdict, judged.shown) == ("holds", ["`S` has no result"])
    assert claims.judge(claim, {"S": {"comparisons": [comparison("worse")]}}).verdict == "does not hold"


ANY = [("C", "B"), ("C", "D"), ("A", "B"), ("A", "D")]


@pytest.mark.parametrize(
    ("found", "verdict", "shown"),
    [
        (("undecided", "worse", "better", "better"), "holds", "A"),
        (("worse", "worse", "same", "undecided"), "does not hold", "A"),
        (("worse", "better", "better", "undecided"), "cannot be told", "A"),
        ((), "not run yet", ""),
    ],
)
def test_one_variant_of_a_group_is_enough(found: tuple[str, ...], verdict: str, shown: str) -> None:
    claims = module("papers_claims")
    tests = tuple(claims.Check("S", variant, other, "sst", "better", group=0) for variant, other in ANY)
    made = [
        {**comparison(claim, *pair), "difference": 0.01 * number}
        for number, (claim, pair) in enumerate(zip(found, ANY, strict=False))
    ]
    judged = claims.judge(claims.Claim("Some beat B and D.", tests), {"S": {"comparisons": made}} if found else {})
    assert judged.verdict == verdict
    assert all(text.startswith(shown) for text in judged.shown), "only the best variant is shown"


def test_spread_over_seeds_is_compared_by_the_f_test() -> None:
    results, claims = module("papers_results"), module("papers_claims")
    wide = dict(enumerate([0.40, 0.60, 0.45, 0.55, 0.42, 0.58, 0.48, 0.52, 0.44, 0.56]))
    narrow = {seed: 0.5 + (value - 0.5) / 4 for seed, value in wide.items()}
    (found,) = results.spread_comparisons({"hard": {"mean": wide}, "LNSR": {"mean": narrow}}, "hard")
    # Four times: the variances' ratio is 16, divided by the quantiles 4.026 and 1 / 4.026 of F(9, 9).
    assert [round(math.exp(found[key]), 2) for key in ("difference", "low", "high")] == [4.0, 1.99, 8.03]
    assert (found["claim"], found["of"]) == ("better", "spread")
    test = claims.Check("S", "LNSR", "hard", "mean", "better", of="spread")
    judged = claims.judge(claims.Claim("Steadier.", (test,)), {"S": {"comparisons": [found]}})
    assert judged.verdict == "holds"
    assert judged.shown == ["LNSR against hard in the deviation over seeds: mean 0.25 times [0.12, 0.50] ▲"]
    same = results.spread_comparisons({"hard": {"mean": wide}, "LNSR": {"mean": wide}}, "hard")
    assert same[0]["claim"] == "undecided"
    assert claims.judge(claim_on("better"), {"S": {"comparisons": same}}).verdict == "not run yet", "not a score"


def test_a_study_that_was_not_run() -> None:
    judged = module("papers_claims").judge(claim_on("better"), {})
    assert (judged.verdict, judged.shown) == ("not run yet", ["`S` has no result"])


def test_a_comparison_counts_in_the_other_direction_too() -> None:
    result = {"comparisons": [comparison("worse", "B", "A")]}
    judged = module("papers_claims").judge(claim_on("better"), {"S": result})
    assert judged.verdict == "holds"
    assert judged.shown == ["A against B: SST -2.0 [-3.0, -1.0] ▲"]


def test_a_comparison_on_training_rows_is_another_one() -> None:
    result = {"comparisons": [{**comparison("better"), "rows": "train"}]}
    assert module("papers_claims").judge(claim_on("better"), {"S": result}).verdict == "not run yet"


def test_the_last_result_decides() -> None:
    found = [{"comparisons": [comparison("undecided")]}, {"comparisons": [comparison("better")]}]
    assert module("papers_page").verdict(claim_on("better"), {"S": found}).verdict == "holds"


@pytest.mark.parametrize(
    ("p", "p_same", "verdict"),
    [((0.02, 0.03), 1, "holds"), ((0.03, 0.04), 1, "cannot be told"), ((0.9, 0.9), 0.02, "does not hold")],
)
def test_p_values_are_corrected_for_the_comparisons_of_the_claim(
    p: tuple[float, float], p_same: float, verdict: str
) -> None:
    """The study's verdict, whose correction is for all of its comparisons, does not count then."""
    both = zip(("sst", "sts"), p, strict=True)
    made = [{**comparison("undecided", task=task), "p": value, "p_same": p_same} for task, value in both]
    judged = module("papers_claims").judge(claim_on("better", ("sst", "sts")), {"S": {"comparisons": made}})
    assert judged.verdict == verdict


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        (([0.10, 0.11, 0.13], [0.20, 0.22, 0.23]), "holds"),
        (([0.10, 0.11, 0.13], [0.1, -0.1, 0.2]), "cannot be told"),
        (([0.001, -0.001, 0.0005], [0.20, 0.22, 0.23]), "does not hold"),  # one gap is the same
    ],
)
def test_measures_over_seeds_are_corrected_for_the_comparisons_of_the_claim(
    gaps: tuple[list[float], list[float]], verdict: str
) -> None:
    """By the p values of the paired t-tests, which are in the intervals; 40 others are measured in the study."""
    results, claims = module("papers_results"), module("papers_claims")
    scores = {"A": dict(zip(("sst", "sts"), (dict(enumerate(own)) for own in gaps), strict=True))}
    scores["B"] = {task: dict.fromkeys(range(3), 0.0) for task in scores["A"]}
    made = [{**one, "rows": "dev", "of": "gap"} for one in results.training_comparisons(scores, "B", 0.005)]
    for one, values in zip(made, gaps, strict=True):
        one["claim"] = "undecided"  # among so many
        p, _ = results.p_over_seeds(one["difference"], (one["high"] - one["low"]) / 2, 3, 0.005)
        assert p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=0.01)
    tests = tuple(claims.Check("S", "A", "B", task, "better", of="gap") for task in scores["A"])
    result = {"variants": scores_of(A=0.5, B=0.51), "comparisons": made, "examples": {"sst": 1101, "sts": 863}}
    assert claims.judge(claims.Claim("", tests), {"S": result}).verdict == verdict


def test_an_interval_that_excludes_0_is_explained_if_the_p_value_decides() -> None:
    made = {**comparison("undecided"), "p": 0.061, "p_same": 1.0}
    result = {"variants": scores_of(A=0.5, B=0.51), "comparisons": [made], "examples": {"sst": 1101}}
    judged = module("papers_claims").judge(claim_on("better"), {"S": result})
    assert judged.sentence.endswith("undecided (p = .061, which takes all rows of the study into account)")


def test_a_result_without_the_rows_of_a_claim_does_not_decide_it() -> None:
    made = {"date": "2026-11-16", "comparisons": [comparison("better")], "changes": {"set": [], "rate": 1}}
    cut_off = {"comparisons": [], "changes": {"set": [], "rate": 5}}
    judged = module("papers_page").verdict(claim_on("better"), {"S": [made, cut_off]})
    assert judged.verdict == "holds"
    assert judged.shown == ["A against B (run of 2026-11-16): SST +2.0 [1.0, 3.0] ▲"], "the page shows the other scores"


def test_the_folders_of_encoders_and_data_are_not_in_a_result() -> None:
    changes = {"set": ["encoder=/some/where/minilm", "train.epochs=3"], "recipes": {"encoder": ["minilm"]}}
    assert module("papers_results").without_folders(changes)["set"] == ["train.epochs=3"]
    changes = {"set": ["encoder=/some/where/bert"], "recipes": {"encoder": ["minilm"]}}
    assert module("papers_results").without_folders(changes)["set"] == ["encoder=bert"]
    changes = {"set": ["tasks.a.dev=some.csv"], "recipes": {"tasks.a.dev": ["/some/where/all.csv"]}}
    assert module("papers_results").without_folders(changes)["recipes"] == {"tasks.a.dev": ["all.csv"]}


def scores_of(**numbers: float) -> dict[str, Any]:
    """Variants with three seeds, and the same score on all tasks."""
    tasks = ("sst", "quora", "sts", "mean")
    return {
        name: {"runs": [3, 3], "scores": {t: [n, n - 0.01, n + 0.01] for t in tasks}} for name, n in numbers.items()
    }


def through(one: float, two: float, half: float = 0.01) -> dict[str, Any]:
    """A result that compares A and B with R, but not with each other."""
    made = [
        {**comparison("undecided", name, "R"), "difference": d, "low": d - half, "high": d + half}
        for name, d in (("A", one), ("B", two))
    ]
    return {"variants": scores_of(A=0.5, B=0.51, R=0.52), "comparisons": made, "examples": {"sst": 1101}}


@pytest.mark.parametrize(("two", "verdict"), [(0.2, "does not hold"), (0.015, "cannot be told")])
def test_two_variants_are_compared_through_a_third_one(two: float, verdict: str) -> None:
    judged = module("papers_claims").judge(claim_on("better"), {"S": through(0.0, two)})
    assert judged.verdict == verdict
    assert judged.shown[0].startswith(f"A against B: SST -{100 * two:.1f} [{-100 * two - 2:.1f}, ")
    assert judged.shown[0].endswith(" (through R)")


def test_a_comparison_through_a_third_variant_has_no_noise_of_one_of_the_two() -> None:
    """Otherwise the seeds that it needs were those of the other comparison."""
    result = through(0.0, 0.015)
    for one in result["comparisons"]:
        one |= {"seed_deviation": 0.001, "example_error": 0.001, "comparisons": 20, "p": 0.5, "p_same": 1.0}
    (test,) = claim_on("better").tests
    found = module("papers_claims").comparison_of(test, result)
    assert found["through"] == "R"
    assert not found.keys() & {"seed_deviation", "example_error", "comparisons"}


def test_an_interval_through_a_third_variant_is_never_too_narrow() -> None:
    """Half of it is at least that of the paired t interval of the two, whatever their scores."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        scores = rng.normal(size=(3, 3)) * rng.uniform(0.1, 5, size=(3, 1))
        found = module("papers_results").training_comparisons(
            {name: {"sst": dict(enumerate(own))} for name, own in zip("ABR", scores, strict=True)}, "R", 0.005
        )
        made = [{**one, "rows": "dev"} for one in found]
        result = {"variants": scores_of(A=0.5, B=0.51, R=0.52), "comparisons": made}
        compared = module("papers_claims").comparison_of(claim_on("better").tests[0], result)
        direct = stats.ttest_rel(scores[0], scores[1])
        ends = direct.confidence_interval(0.95)
        assert compared["difference"] == pytest.approx((scores[0] - scores[1]).mean(), abs=1e-5)
        assert compared["low"] <= ends.low + 1e-5
        assert compared["high"] >= ends.high - 1e-5
        assert compared["p"] >= direct.pvalue - 1e-4


def test_two_rows_that_are_the_same_model_decide_nothing() -> None:
    """As annealed and proportional sampling, if the best checkpoint is that of the first epoch."""
    same = {**comparison("same"), "p": 1.0, "p_same": 1e-6}
    for variants, verdict in (
        (scores_of(A=0.5, B=0.5), "cannot be told"),
        (scores_of(A=0.5, B=0.501), "does not hold"),
    ):
        result = {"variants": variants, "comparisons": [same], "examples": {"sst": 1101}}
        assert module("papers_claims").judge(claim_on("better"), {"S": result}).verdict == verdict


def test_the_seeds_that_would_decide_are_those_of_polytask_compare() -> None:
    """With both kinds of noise known, it is the number that `compare` gives for the same comparison."""
    rng = np.random.default_rng(5)
    gold = rng.integers(0, 2, 2000)

    def answers(right: float) -> Any:
        rates = right + rng.normal(size=3) * 0.02
        return np.stack([np.where(rng.random(2000) < rate, gold, 1 - gold) for rate in rates])

    predictions = {"B": answers(0.70), "A": answers(0.75)}
    data = TaskData("sst", "yes_no", 2, "accuracy", gold, predictions)
    (compared,) = compare_variants([data], "B").comparisons
    assert compared.claim == "undecided"
    assert compared.seeds_needed is not None
    found = {**module("papers_results").short(dataclasses.asdict(compared)), "rows": "dev"}
    seeds = module("papers_seeds").deciding_seeds(found, 3, {"sst": 2000}, 1)
    assert abs(seeds["better"] - compared.seeds_needed) <= 1
    assumed = module("papers_seeds").deciding_seeds(
        {key: value for key, value in found.items() if key not in ("seed_deviation", "example_error")},
        3,
        {"sst": 2000},
        1,
    )
    assert abs(assumed["better"] - compared.seeds_needed) <= 2


def open_one(difference: float, half: float, task: str = "sst") -> dict[str, Any]:
    ends = {"difference": difference, "low": difference - half, "high": difference + half}
    return {**comparison("undecided", task=task), **ends, "p": 0.5, "p_same": 1.0}


@pytest.mark.parametrize(
    ("sst", "sts", "needed"),
    [
        ((0.05, 0.08), (0.05, 0.12), "both"),  # both must be claimed: the one that needs more seeds
        ((0.05, 0.08), (-0.05, 0.12), "sts"),  # one the other way is enough
        ((0.05, 0.08), (0.02, 0.06), "not by seeds"),  # STS: two points are within the noise of 863 examples
    ],
)
def test_the_seeds_that_a_claim_needs(sst: tuple[float, float], sts: tuple[float, float], needed: str) -> None:
    claims, examples = module("papers_claims"), {"sst": 1101, "sts": 863}
    made = [open_one(*sst), open_one(*sts, task="sts")]
    result = {"variants": scores_of(A=0.5, B=0.51), "comparisons": made, "examples": examples}
    judged = claims.judge(claim_on("better", ("sst", "sts")), {"S": result})
    each = [module("papers_seeds").deciding_seeds(one, 3, examples, 2) for one in made]
    assert (judged.verdict, judged.seeds) == ("cannot be told", 3)
    if needed == "both":
        assert judged.needed == max(each[0]["better"], each[1]["better"]) > 3
    elif needed == "sts":
        assert judged.needed == each[1]["worse"]
    else:
        assert judged.needed == needed


def test_the_seeds_that_a_loss_of_plain_text_needs() -> None:
    """The dev sets of the study do not have the texts; the noise is that of seeds alone."""
    claims = module("papers_claims")
    made = {**open_one(0.05, 0.08, "texts"), "of": "perplexity"}
    test = claims.Check("S", "A", "B", "texts", "better", of="perplexity")
    result = {"variants": scores_of(A=0.5, B=0.51), "comparisons": [made], "examples": {"sst": 1101, "sts": 863}}
    judged = claims.judge(claims.Claim("", (test,)), {"S": result})
    assert judged.verdict == "cannot be told"
    assert (
        judged.needed == 5
    )  # the half width is 8.0 now; over n seeds, t(n - 1) s / sqrt(n), 4.0 with 5 and 5.1 with 4


# --- claims.yaml ------------------------------------------------------------------------------------------------------
def test_every_study_is_on_the_page_and_every_claim_names_existing_variants() -> None:
    claims = module("papers_claims")
    systems = claims.read_systems()  # raises for an unknown name
    assert sorted(study for system in systems.values() for study in system.studies) == sorted(
        claims.variants_of_studies()
    )
    assert {name: len(system.claims) for name, system in systems.items()} == {
        "conditional-norm": 5,
        "smart-adapters": 18,
        "round-robin-cosine": 14,
        "pal-samplers": 17,
        "pal-gem": 7,
    }


def test_what_claims_compare_is_measured_in_all_rows_of_the_study() -> None:
    """All need the weights after the last step; a gap needs scores on training rows, another metric its function."""
    claims = module("papers_claims")
    systems = claims.read_systems()
    paths = {yaml.safe_load(path.read_text(encoding="utf-8"))["name"]: path for path in STUDIES}
    wanted = {study: claims.needed_measures(systems, study) for study in paths}
    assert {of for measures in wanted.values() for of in measures} == {
        *("gap", "spread", "forgetting", "perplexity", "mean_absolute_error"),
    }
    for study, measures in wanted.items():
        recipes = read_study(paths[study]).recipes.values() if measures else ()
        for of, tasks in measures.items():
            assert all(recipe.train.select == "last" for recipe in recipes)
            if of == "gap":
                assert all(recipe.train.evaluate_train > 0 for recipe in recipes)
            elif of == "forgetting":
                assert all(recipe.sampler.name == "in_order" for recipe in recipes)
            elif of == "perplexity":
                assert {recipe.tasks[task].kind for recipe in recipes for task in tasks} == {"text"}
            elif of != "spread":
                names = [recipe.tasks[task].metrics for recipe in recipes for task in tasks]
                assert all(any(name.endswith(f":{of}") for name in own) for own in names)


def test_measures_are_compared_with_the_reference_of_their_study() -> None:
    claims = module("papers_claims")
    references = {(s := yaml.safe_load(path.read_text(encoding="utf-8")))["name"]: s["reference"] for path in STUDIES}
    tests = [t for system in claims.read_systems().values() for c in system.claims.values() for t in c.tests]
    others = [t for t in tests if t.rows != "dev" or t.of != "score"]
    assert others
    assert all(references[t.study] in (t.variant, t.reference) for t in others)


def test_tasks_of_claims_are_tasks_of_their_study() -> None:
    claims = module("papers_claims")
    paths = {yaml.safe_load(path.read_text(encoding="utf-8"))["name"]: path for path in STUDIES}
    tasks = {
        study: {task for r in read_study(path).recipes.values() for task in r.tasks} for study, path in paths.items()
    }
    tests = [t for system in claims.read_systems().values() for c in system.claims.values() for t in c.tests]
    assert not [t for t in tests if t.task not in {*tasks[t.study], "mean"}]
    eight = ("conditional-norm-eight-tasks", "pal-samplers-eight-tasks", "smart-adapters-eight-tasks")
    assert [len(tasks[study]) for study in eight] == [8, 8, 8]


def test_published_scores_are_those_of_existing_rows() -> None:
    variants = module("papers_claims").variants_of_studies()
    for study, rows in module("papers_results").published_scores().items():
        assert set(rows) <= set(variants[study])


GOOD = {"study": STUDY, "variant": "with CLN", "reference": "without CLN", "tasks": "sst", "expected": "better"}


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"tests": [{**GOOD, "study": "conditional-norm-table-9"}]}, "there is no study 'conditional-norm-table-9'"),
        ({"tests": [{**GOOD, "variant": "with LN"}]}, f"no variant of {STUDY} 'with LN' \\(did you mean with CLN"),
        ({"tests": [{**GOOD, "reference": "none"}]}, f"no variant of {STUDY} 'none'"),
        ({"tests": [{**GOOD, "tasks": ["sst", "mnli"]}]}, "unknown task or expectation"),
        ({"tests": [{**GOOD, "row": "train"}]}, "unknown field row"),
        ({"tests": [{**GOOD, "expected": "best"}]}, "unknown task or expectation"),
        ({}, "must have tests or a verdict"),
        ({"tests": [GOOD], "verdict": "holds"}, "with a reason"),
        ({"verdict": "true", "reason": "seen"}, "must be one of holds"),
        ({"verdict": "holds"}, "with a reason"),
    ],
)
def test_a_wrong_claim_is_refused(claim: dict[str, Any], message: str, tmp_path: Path) -> None:
    system = {"about": "", "differs": "", "studies": {STUDY: "Table 1"}, "claims": {"X1": {"text": "", **claim}}}
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"system": system}), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        module("papers_claims").read_systems(path)


def test_pairs_without_the_reference_are_compared_once() -> None:
    claims = module("papers_claims")
    tests = [("A", "B", "sst"), ("A", "B", "sts"), ("B", "A", "mean"), ("C", "B", "mean"), ("A", "R", "mean")]
    claim = claims.Claim("", tuple(claims.Check("S", *names, "better") for names in tests))
    systems = {"system": claims.System("", "", {}, {"X1": claim})}
    assert claims.needed_pairs(systems, "S", "R") == {"B": ["A", "C"]}
    assert claims.needed_pairs(systems, "another", "R") == {}


# --- results ----------------------------------------------------------------------------------------------------------
def study_json() -> dict[str, Any]:
    """The content of a made-up study.json of two variants, three seeds and one task."""

    def variant(value: float) -> dict[str, Any]:
        cells = [{"seed": seed, "run": f"cells/{seed}", "state": "done"} for seed in range(3)]
        score = {"mean": value, "low": value - 0.01, "high": value + 0.01, "values": [value] * 3}
        return {"settings": {"recipe": "/home/me/row.yaml"}, "cells": cells, "scores": {"sst": score}}

    compared = comparison("better", "with CLN", "without CLN")
    return {
        "name": STUDY,
        "started": "2026-11-16T16:04:09+00:00",
        "environment": {"torch": "2.11.0", "device": "cuda (NVIDIA H200)", "platform": "Linux"},
        "seeds": [0, 1, 2],
        "reference": "without CLN",
        "margin": 0.5,
        "tasks": {"sst": {"examples": 1101}},
        "variants": {"without CLN": variant(0.41), "with CLN": variant(0.43)},
        "comparisons": [{**compared, "sentence": "", "p": 0.01}],
        "curves": {"with CLN": {"0": {"sst": [[0, 0.2], [10, 0.4]]}, "1": {"sst": [[0, 0.3], [10, 0.4]]}}},
        "training": {
            "without CLN": {"sst": {"0": 0.50, "1": 0.52, "2": 0.54}},
            "with CLN": {"sst": {"0": 0.60, "1": 0.62, "2": 0.641}},
        },
        "changes": {"set": ["train.epochs=3", "train.evaluate_train=1000"], "rate": 5.0, "recipes": {}},
    }


def test_a_packed_result_has_scores_and_no_paths() -> None:
    result = module("papers_results").packed(study_json())
    assert "/home" not in json.dumps(result)
    assert result["variants"]["with CLN"]["scores"] == {"sst": [0.43, 0.42, 0.44]}
    assert result["variants"]["with CLN"]["start"] == {"sst": 0.25}
    assert [(c["rows"], c["claim"]) for c in result["comparisons"]] == [("dev", "better"), ("train", "better")]


@pytest.mark.parametrize(
    ("differences", "claim"),
    [
        ([0.10, 0.11, 0.12], "better"),
        ([-0.10, -0.11, -0.12], "worse"),
        ([0.10, -0.11, 0.12], "undecided"),
        ([0.0001, -0.0001, 0.0], "same"),
    ],
)
def test_comparisons_on_training_rows(differences: list[float], claim: str) -> None:
    scores = {"A": {"sst": dict(enumerate(differences))}, "B": {"sst": dict.fromkeys(range(3), 0.0)}}
    (compared,) = module("papers_results").training_comparisons(scores, "B", 0.005)
    assert compared["claim"] == claim


def test_untrained_heads_are_not_shown_unless_their_scores_are_published() -> None:
    results = module("papers_results")
    assert module("papers_studies").untrained("conditional-norm-fewer-tasks") == {
        "SST only, without CLN": {"quora", "sts"},
        "SST only, with CLN": {"quora", "sts"},
        "SST and Quora, with CLN": {"sts"},
        **{f"three tasks, {norms}": set() for norms in ("without CLN", "with CLN", "one CLN for all")},
    }
    assert module("papers_studies").untrained("pal-gem-table-1")["STS alone"] == {"sst", "quora"}, "by its recipe"
    result = {
        "name": "pal-gem-equal-updates",
        "reference": "STS alone",
        "examples": {"sst": 1101, "sts": 863},
        "variants": {name: {**one, "training": {}} for name, one in scores_of(**{"STS alone": 0.3, "A": 0.4}).items()},
        "comparisons": [comparison("better", "A", "STS alone", task) for task in ("sst", "sts")],
    }
    rows = results.table(result, {}).replace("\u00a0", " ").splitlines()[2:]
    assert rows == ["| STS alone | – | .300 [.290, .310] |", "| A | .400 [.390, .410] | .400 [.390, .410] ▲ |"]  # noqa: RUF001
    published = {"STS alone": {"sst": 0.2}}
    assert ".200 | .300 [.290, .310]" in results.table(result, published).replace("\u00a0", " ")
    svg = module("papers_page").plot(result["name"], result, {}, False)
    assert svg.count("<circle") < module("papers_page").plot(result["name"], result, published, False).count("<circle")


@pytest.mark.parametrize(
    ("study", "change", "recipes", "shown"),
    [
        ("pal-gem-table-1", "train.epochs=5", ["10"], "`train.epochs=5` (recipes: 10)"),
        ("pal-gem-table-1", "train.epochs=10", ["10"], ""),
        ("pal-gem-table-1", "train.steps_per_epoch=5", ["None"], "`train.steps_per_epoch=5`"),
        ("pal-gem-table-1", "train.evaluate_train=1000", ["0"], ""),
        ("pal-gem-equal-updates", "train.steps_per_epoch=600", ["600", "139", "346", "115"], ""),
        (
            "pal-gem-equal-updates",
            "train.steps_per_epoch=60",
            ["600", "139"],
            "`train.steps_per_epoch=60` (recipes: 600)",
        ),
        ("pal-samplers-equal-updates", "train.epochs=5", ["6", "2"], ""),
    ],
)
def test_a_change_is_shown_if_it_reaches_a_row(study: str, change: str, recipes: list[str], shown: str) -> None:
    """Rows that set a field themselves keep their value."""
    result = {"name": study, "changes": {"set": [change], "recipes": {change.partition("=")[0]: recipes}}}
    assert module("papers_page").change_in_words(result, change) == shown


@pytest.mark.parametrize(
    ("environment", "words", "file"),
    [
        ({"device": "cuda (NVIDIA H200)", "cores": 16}, "one NVIDIA H200", "2026-11-16-papers-2-h200.md"),
        ({"device": "cpu", "cores": 2}, "2 CPU cores", "2026-11-16-papers-2-cpu.md"),
        ({"device": "cpu"}, "a CPU", "2026-11-16-papers-2-cpu.md"),
    ],
)
def test_the_machine_of_a_result(environment: dict[str, Any], words: str, file: str) -> None:
    results = module("papers_results")
    packed = results.packed({**study_json(), "environment": {"torch": "2.11.0", **environment}})
    assert results.machine(packed["environment"]) == words
    assert f"; 2026-11-16, {words}, torch 2.11.0." in module("papers_page").setting(packed)
    assert results.dated_file(Path("papers-2026-11-16b.json"), environment["device"]) == file


def test_the_page_of_a_made_up_result() -> None:
    files = module("papers_page").files([module("papers_results").packed(study_json())])
    page = files["papers.md"]
    assert sorted(files) == [f"images/papers-{STUDY}.svg", "papers.md"]
    assert "1 of 31 studies have results" in page
    assert "**With `train.epochs=3`, 5 times the learning rate**; seeds 0, 1, 2" in page
    assert "| with CLN | .979 | .620 [.569, .671] ▲ | .430 [.420, .440] ▲ |" in page.replace("\u00a0", " ")
    assert "Furthest below the published scores: SST of without CLN, .520 instead of .964." in page
    assert "SST +2.0 [1.0, 3.0] ▲" in page
    assert "\n\nNot tested: scores on a part of the training data" in page
    at_a_glance = page[page.index("## Which claims hold") : page.index("## How to read it")]
    assert re.search(
        r"Of 61 claims, \*\*\d+\*\* hold, \*\*\d+\*\* do not hold, \*\*\d+\*\* cannot be told, ", at_a_glance
    )
    numbers = re.findall(r"^\| \[(\w+)\]\(#claims-of-", at_a_glance, re.M)
    assert len(numbers) == len(set(numbers)) == 61
    assert numbers.index("SA5") < numbers.index("SA15") < numbers.index("CN2"), "decided claims come first"
    judged = module("papers_claims").Judged
    cells = [
        module("papers_page").seeds_cells(judged("cannot be told", "", (), *own))
        for own in ((), (3, "not by seeds"), (3, 8))
    ]
    assert cells == ["\N{EN DASH} | \N{EN DASH}", "3 | not by seeds", "3 | 8"]


def test_open_claims_are_counted_and_sorted_by_the_seeds_that_they_need() -> None:
    claims, page = module("papers_claims"), module("papers_page")
    needed = {"X1": "", "X2": "not known", "X3": 12, "X4": "not by seeds", "X5": 4, "X6": 10}
    judged = {
        number: claims.Judged("cannot be told", "", (), None if seeds == "" else 3, seeds)
        for number, seeds in needed.items()
    }
    judged["X7"] = claims.Judged("holds", "")
    system = claims.System("", "", {}, {number: claims.Claim("") for number in judged})
    counts, _, decided, _, reasons, _, open_ones = page.at_a_glance({"system": system}, {}, {"system": judged})
    assert counts == "Of 7 claims, **1** hold, **6** cannot be told."
    assert reasons.startswith("- 2 need at most 10 seeds to be decided\n- 1 ")
    assert [line.split()[1] for line in reasons.splitlines()] == ["2", "1", "1", "1", "1"]
    numbers = [re.findall(r"^\| \[(X\d)\]", table, re.M) for table in (decided, open_ones)]
    assert numbers == [["X7"], ["X5", "X6", "X3", "X4", "X2", "X1"]]
    assert page.why_open([judged["X7"]]) == []


def test_the_page_is_up_to_date() -> None:
    results = module("papers_results").read_results()
    for name, text in module("papers_page").files(results).items():
        committed = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert committed == text, f"docs/{name} is out of date; run: python benchmarks/papers.py page"


def test_details_that_study_json_lacks(
    tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=2", "train.evaluate_train=10"]
    names = [f"{optimizer}-{seed}" for optimizer in ("adamw", "lamb", "lion") for seed in (0, 1)]
    for name in names:
        optimizer, seed = name.split("-")
        own = [*(s for s in settings if "optimizer" not in s), f"optimizer={{name: {optimizer}, lr: 1.0e-3}}"]
        train(ROOT / "recipes" / "quickstart.yaml", tmp_path / name, [*own, f"seed={seed}"])
    compare_runs([tmp_path / name for name in names], tmp_path / "study")
    papers = module("papers")
    monkeypatch.setattr(papers, "needed_pairs", lambda systems, study, reference: {"lion-0": ["lamb-0"]})
    monkeypatch.setattr(
        papers,
        "needed_measures",
        lambda systems, study: {"gap": ["mean"], "spread": ["opinion"], "f1": ["opinion"]},
    )
    study = papers.with_details(tmp_path / "study", {"rate": 5})
    assert study["reference"] == "adamw-0"
    assert {(c["variant"], c["reference"]) for c in study["pairs"]} == {("lamb-0", "lion-0")}
    assert {c["task"] for c in study["pairs"]} == {*study["tasks"], "mean"}
    assert {task: set(seeds) for task, seeds in study["training"]["lion-0"].items()} == {
        task: {"0", "1"} for task in study["tasks"]
    }
    assert study["changes"] == {"rate": 5}
    scores = {of: study["measured"][of]["lion-0"] for of in ("gap", "spread", "f1")}
    summary = json.loads((tmp_path / "lion-1" / "summary.json").read_text(encoding="utf-8"))
    dev, rows = summary["evaluations"]["dev"], summary["training_rows"]
    gaps = [
        rows[task]["metrics"][m]["value"] - dev[task]["metrics"][m]["value"]
        for task in dev
        if (m := dev[task]["primary"])
    ]
    assert scores["gap"]["mean"]["1"] == pytest.approx(sum(gaps) / len(gaps))
    assert scores["spread"]["opinion"]["1"] == dev["opinion"]["metrics"]["accuracy"]["value"]
    assert scores["f1"]["opinion"]["1"] == dev["opinion"]["metrics"]["f1"]["value"]
    made = module("papers_results").comparisons_over_seeds(study)
    assert {(one["of"], one["task"]) for one in made if "of" in one} == {
        ("gap", "mean"),
        ("spread", "opinion"),
        ("f1", "opinion"),
    }


def test_forgetting_and_the_loss_of_plain_text_are_measured(tmp_path: Path, tiny_settings: list[str]) -> None:
    file = tmp_path / "texts.csv"
    file.write_text("text\n" + "\n".join(["a dog runs", "two cats sleep"] * 10), encoding="utf-8")
    order = "order: [texts, opinion, question, similarity]"
    settings = [
        *(*tiny_settings, "train.epochs=1", "train.steps_per_epoch=4", "train.select=last"),
        f"tasks.texts={{kind: text, text: text, head: mlm, train: {file}, dev: {file}}}",
        f"sampler={{name: in_order, {order}, shares: equal}}",
    ]
    train(ROOT / "recipes" / "quickstart.yaml", tmp_path / "run", settings)
    papers = module("papers")
    summary = papers.summary_of(tmp_path / "run")
    perplexity = summary["evaluations"]["dev"]["texts"]["metrics"]["perplexity"]["value"]
    assert papers.measured(summary, "perplexity", "texts") == pytest.approx(math.log(perplexity))
    scores, tasks = summary["transfer"]["scores"], list(summary["transfer"]["metrics"])
    opinion = [row[tasks.index("opinion")] for row in scores]
    assert papers.measured(summary, "forgetting", "opinion") == pytest.approx(max(opinion[1:]) - opinion[-1])


def test_the_runs_of_the_reference_are_trained_further_and_compared(tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=2"]
    quickstart = ROOT / "recipes" / "quickstart.yaml"
    for seed in (0, 1):
        train(quickstart, tmp_path / f"plain-{seed}", [*settings, f"seed={seed}"])
        train(quickstart, tmp_path / f"lamb-{seed}", [*settings, "optimizer={name: lamb, lr: 1e-3}", f"seed={seed}"])
    study = tmp_path / "pal-samplers-mlm"
    compare_runs([tmp_path / name for name in ("plain-0", "plain-1", "lamb-0", "lamb-1")], study)
    papers = module("papers")
    arguments = [str(quickstart), *(word for setting in settings for word in ("--set", setting))]
    papers.train_further(study, arguments, 600, tmp_path / "log")
    runs = papers.runs_after(study, "pal-samplers-mlm")
    assert [(run.variant, run.seed) for run in runs] == [("MLM after", 0), ("MLM after", 1)], (
        tmp_path / "log"
    ).read_text()
    pairs = module("papers_claims").needed_pairs(
        module("papers_claims").read_systems(), "pal-samplers-mlm", "minBERT, round robin"
    )
    assert pairs == {"MLM after": ["minBERT, round robin"]}
    content = json.loads((study / "study.json").read_text(encoding="utf-8"))
    plain = [
        papers.FinishedRun("plain-0", seed, tmp_path / f"plain-{seed}", papers.summary_of(tmp_path / f"plain-{seed}"))
        for seed in (0, 1)
    ]
    found = papers.compare_pairs(content, [*plain, *runs], {"MLM after": ["plain-0"]})
    assert {(one["variant"], one["reference"]) for one in found} == {("plain-0", "MLM after")}
    assert {one["task"] for one in found} == {*content["tasks"], "mean"}


# --- run --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("study", "rates"),
    [
        ("conditional-norm/study-table-1", {"without CLN": 5e-5, "with CLN": 5e-5}),
        ("round-robin-cosine/study-table-3", {"AdamW 1e-5": 5e-5, "LAMB 1e-4": 5e-4}),
        ("smart-adapters/study-rate-1e-5", {"BERT plain": 5e-5}),
        ("pal-gem/study-sequence", {"GEM, memory 16": 5e-5}),
    ],
)
def test_the_rate_of_every_row_is_multiplied(study: str, rates: dict[str, float], tmp_path: Path) -> None:
    module("papers")
    changed = module("papers_schedule").with_changes(
        ROOT / "recipes" / "papers" / f"{study}.yaml", ["train.epochs=3"], []
    )
    file = tmp_path / "study.yaml"
    module("papers_schedule").write_yaml(changed, file)
    module("papers_schedule").write_yaml(module("papers_schedule").with_rates(changed, file, 5), file)
    recipes = read_study(file).recipes
    assert {name: recipes[name].optimizer.options["lr"] for name in rates} == rates
    assert all(recipe.train.epochs == 3 for recipe in recipes.values())


def test_a_rate_of_the_heads_is_multiplied_too(tmp_path: Path) -> None:
    module("papers")
    path = ROOT / "recipes" / "papers" / "conditional-norm" / "study-table-1.yaml"
    changed = module("papers_schedule").with_changes(path, ["train.head_lr=1e-3"], [])
    file = tmp_path / "study.yaml"
    module("papers_schedule").write_yaml(changed, file)
    module("papers_schedule").write_yaml(module("papers_schedule").with_rates(changed, file, 5), file)
    assert {recipe.train.head_lr for recipe in read_study(file).recipes.values()} == {5e-3}


def test_the_changes_name_the_values_of_the_recipes() -> None:
    path = ROOT / "recipes" / "papers" / "pal-gem" / "study-later-report.yaml"
    options = argparse.Namespace(set=["train.epochs=3"], rate=5.0)
    assert module("papers").changes_of(path, options) == {
        "set": ["train.epochs=3"],
        "rate": 5.0,
        "recipes": {"train.epochs": ["10", "15"]},
    }


def test_a_schedule_trains_every_run_once_and_three_seeds_of_all_studies_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = module("papers_schedule")
    (tmp_path / "schedule.yaml").write_text(
        "a/study: {rate: 5, set: {train.epochs: 3}, seeds: 5}\nb/study: {seeds: 2}\n"
    )
    planned = schedule.Planned.read(tmp_path / "schedule.yaml", tmp_path, [], ["max_length=16"])
    (changes, other) = planned.changes.values()
    assert (changes.set, changes.rate, list(changes.seeds)) == (["train.epochs=3", "max_length=16"], 5, [0, 1, 2, 3, 4])
    assert (other.set, other.rate, list(other.seeds)) == (["max_length=16"], 1, [0, 1])

    def cells(self: Any, path: Path) -> list[SimpleNamespace]:
        rows = ("shared", path.parent.name)
        return [SimpleNamespace(key=f"{row} {seed}", seed=seed) for row in rows for seed in self.changes[path].seeds]

    monkeypatch.setattr(schedule.Planned, "_plan", cells)
    keys = [cell.key for cell in planned._cells()]
    assert keys == [
        *("shared 0", "a 0", "shared 1", "a 1", "shared 2", "a 2", "b 0", "b 1"),
        *("shared 3", "a 3", "shared 4", "a 4"),
    ]


def test_packed_cells_compare_like_the_runs_themselves(tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=4"]
    names, here, there = ("plain-0", "lamb-0"), tmp_path / "here", tmp_path / "there"
    for name, own in zip(names, ([], ["optimizer={name: lamb, lr: 1e-3}"]), strict=True):
        train(ROOT / "recipes" / "quickstart.yaml", here / "cells" / name, [*settings, *own])
    (here / "cells" / "unfinished").mkdir()
    pack, archive, packed = module("papers_cells").pack_cells, tmp_path / "cells.tar.xz", tmp_path / "packed.txt"
    assert pack(here, archive, packed) == 2
    with tarfile.open(archive) as tar:
        assert not any(name.endswith("safetensors") for name in tar.getnames())
        tar.extractall(there, filter="data")
    studies = []
    for folder in (here, there):
        compare_runs([folder / "cells" / name for name in names], folder / "study")
        study = json.loads((folder / "study" / "study.json").read_text(encoding="utf-8"))
        studies.append((study["comparisons"], [own["scores"] for own in study["variants"].values()]))
    assert studies[0] == studies[1]
    row = json.loads((there / "cells" / "plain-0" / "predictions" / "opinion-dev.jsonl").read_text().splitlines()[0])
    assert "text" not in row
    assert pack(here, archive, packed) == 0
