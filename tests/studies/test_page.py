"""The page of a study shows study.json, looks like a run's report, and handles missing runs."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from polytask import reports, studies
from polytask.studies import charts
from polytask.studies.page import link, verdict, write_page
from polytask.studies.table import ABSENT
from polytask.types import UserError

from ..conftest import Page

MARKUP = "<script>alert(1)</script>"
METRICS = ("accuracy", "f1", "pearson")
Json = dict[str, Any]


def comparison(variant: str, task: str, difference: float, seeds: int) -> Json:
    claim = "better" if difference > 0.02 else "worse" if difference < -0.02 else "undecided"
    claim = claim if seeds > 1 else "undecided"
    ends = {"low": difference - 0.012, "high": difference + 0.012, "p_holm": 0.04321, "detectable": 0.0312}
    tests = {"p": 0.0123, "p_noise": 0.0123, "p_swap": 0.0001, "paired": True, "seed_noise_known": seeds > 1}
    tests |= {"p_study": 0.0123, "p_same": 0.567, "margin": 0.005, "seeds_needed": 7, "greater_is_better": True}
    sizes = {"effect_seeds": 2.34 if seeds > 1 else None, "effect_examples": 0.12, "examples": 1200, "seeds": seeds}
    said = {"claim": claim, "sentence": f"{variant} against plain on {task}: {claim}", "comparisons": 4}
    return (
        {"variant": variant, "reference": "plain", "task": task, "difference": difference} | ends | tests | sizes | said
    )


def make_study(variants: list[str], tasks: list[str], seeds: list[int], states: Json | None = None) -> Json:
    """A study in which each variant is 3 points above or below the one before; `states` of (variant, seed)."""
    views = [*tasks, "mean"] if len(tasks) > 1 else tasks
    study: Json = {
        "format": 2,
        "margin": 0.5,
        "name": "A study",
        "reference": variants[0],
        "seeds": seeds,
        "variants": {},
        "curves": {},
    }
    for at, variant in enumerate(variants):
        state = {seed: (states or {}).get((variant, seed), "done") for seed in seeds}
        mean, done = 0.7 + 0.03 * (-1) ** at * at, "done" in state.values()
        score = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, "values": [mean], "examples": 1200}
        values = dict.fromkeys(views, mean)
        cells = [
            {"seed": s, "run": f"cells/{at}-{s}", "state": state[s], "error": None, "values": values} for s in seeds
        ]
        size = {"shared": 9000, "per_task": dict.fromkeys(tasks, 100 + at), "trainable": 500 * (at + 1), "total": 9999}
        cost = {"parameters": size, "examples_per_second": 150.0, "peak_memory_bytes": 2**30, "seconds": 61.0 + at}
        scores = dict.fromkeys(views, score) if done else {}
        own = {"settings": {"adapter.size": at}, "cells": cells, "scores": scores, "cost": cost if done else None}
        study["variants"][variant] = own
        curve = [[step, mean - 1 / step] for step in range(10, 60, 10)]
        study["curves"][variant] = {str(s): dict.fromkeys(tasks, curve) for s in seeds if state[s] == "done"}
    finished = (
        [v for v in variants if study["variants"][v]["scores"]] if study["variants"][variants[0]]["scores"] else []
    )
    gaps = {v: study["variants"][v]["scores"][views[0]]["mean"] - 0.7 for v in finished[1:]}
    return study | {
        "tasks": {t: {"kind": "x", "metric": METRICS[i % 3], "examples": 400} for i, t in enumerate(tasks)},
        "comparisons": [comparison(v, task, gap, len(seeds)) for v, gap in gaps.items() for task in views],
        "differences": {"adapter.size": dict.fromkeys(variants, None) | {variants[-1]: 64}},
        "environment": {"cpu": "EPYC", "torch": "2.13.0", "threads": 2},
        **{"started": "2026-11-20T09:12:44+00:00", "workers": 2},
    }


def page_of(folder: Path, study: Json) -> Page:
    (folder / "study.json").write_text(json.dumps(study), encoding="utf-8")
    path = write_page(folder)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    study = make_study(["plain", "low", "high", MARKUP], ["topic", "same"], [0, 1, 2], {(MARKUP, 2): "failed"})
    study["variants"][MARKUP]["cells"][2]["error"] = f"ValueError: </pre>{MARKUP}"
    study["name"] = "<b>A study</b>"
    return page_of(tmp_path_factory.mktemp("study"), study)


def test_the_verdict_comes_first_then_claims_then_what_was_not_seen(page: Page) -> None:
    text = page.text
    lead = "high (+6.0 points) is better than plain on the mean of the tasks;"
    said = [lead, "high against plain on mean: better", "low against plain on mean: worse", "Variant topic accuracy"]
    assert [text.index(words) for words in said] == sorted(text.index(words) for words in said)
    heads = re.findall(r'<section id="(\w+)">', page.source)
    order = "verdict variants differences cost curves numbers recipes cells statistics environment"
    assert " ".join(heads) == order


def test_the_main_table_has_scores_claims_and_costs(page: Page) -> None:
    assert "plain reference 70.0 [69.0, 71.0]" in page.text
    assert "high 76.0 ▲ better [75.0, 77.0]" in page.text
    assert "low 67.0 ▼ worse [66.0, 68.0]" in page.text
    assert "9,000 102 1,500 150 1.0 GiB 1 min 03 s" in page.text
    assert f"{MARKUP} 2 of 3 seeds" in page.text


def test_forgetting_is_a_column_for_sequential_tasks(page: Page, tmp_path: Path) -> None:
    assert "orgotten" not in page.text
    study = make_study(["plain", "low"], ["topic", "same"], [0, 1])
    study["variants"]["low"]["cost"]["forgetting"] = 0.1234
    sequence = page_of(tmp_path, study)
    assert "Forgotten points Shared parameters" in sequence.text
    assert "12.3 9,000 101 1,000 150" in sequence.text
    assert f"{ABSENT} 9,000 100 500 150" in sequence.text
    assert '<td class="n wrap" data-sort="101">101</td>' in sequence.source  # the column of two numbers may break


def test_every_comparison_has_all_its_numbers(page: Page) -> None:
    assert (
        "high mean +6.0 [+4.8, +7.2] better 0.012 0.043 0.012 0.012 < 0.001 0.567 +2.34 +0.12 3.1 3 7 1,200"
        in page.text
    )


def test_the_rest_is_shown(page: Page) -> None:
    for words in (
        "4 variants, 2 tasks, 3 seeds (0, 1, 2)",
        "1 of 12 runs failed and is left out",
        "adapter.size=1",
        "about 5 %",
        "torch 2.13.0",
        "topic accuracy on 400 dev examples",
        "runs at a time 2",
    ):
        assert words in page.text, words
    assert "None" not in page.text


def test_every_plot_is_drawn(page: Page) -> None:
    labels = page.found("svg", "aria-label")
    assert labels[:3] == ["the mean of the tasks", "topic", "same"]
    against = ("trainable parameters", "seconds to train", "peak memory, MiB")
    assert labels[3:6] == [f"the mean of the tasks: score against {what}" for what in against]
    assert labels[6:] == ["topic: accuracy on dev", "same: f1 on dev"]


def test_done_runs_have_relative_links_and_failed_ones_their_own_list(page: Page) -> None:
    links = [target for target in page.found("a", "href") if not target.startswith("#")]
    assert len(links) == 11
    assert links[0] == "cells/0-0/report.html"
    assert "cells/3-2/report.html" not in links
    assert page.text.index(f"Failed runs {MARKUP}, seed 2") > page.text.index("Runs Variant Seed State")
    assert f"ValueError: </pre>{MARKUP}" in page.text


def test_a_link_never_leaves_the_folder() -> None:
    assert link("cells/a b") == "cells/a%20b/report.html"
    assert link("javascript:alert(1)") == "javascript%3Aalert%281%29/report.html"
    assert link("//host/x") == "host/x/report.html"


def test_only_the_script_that_sorts_may_run(page: Page) -> None:
    assert [tag for tag, _ in page.tags].count("script") == 1
    script = re.search(r"<script>(.*?)</script>\n</body>", page.source, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    assert [a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv")] == [policy]
    assert "b" not in {tag for tag, _ in page.tags}
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]


def test_the_page_needs_nothing_but_itself(page: Page) -> None:
    assert not {"link", "img", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?:|@import|url\((?!#)|src=", page.source)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {target[1:] for target in page.found("a", "href") if target.startswith("#")} <= set(ids)


def test_it_looks_like_a_runs_report() -> None:
    """The rules for colours, fonts, tables and print are the same lines as there."""
    page = (Path(reports.__file__).parent / "report.html.jinja").read_text("utf-8")
    sibling = re.search(r"<style>\n(.*)</style>", page, re.DOTALL)[1]
    own = (Path(studies.__file__).parent / "page.css").read_text("utf-8")
    shared = own.split("/* What only a study has. */")[0].splitlines()
    assert len(shared) > 30
    assert not set(shared) - set(sibling.splitlines())
    assert shared[0].startswith(":root")


def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    study = make_study(["plain", "other"], ["topic"], [0, 1])
    assert page_of(tmp_path, study).source == page_of(tmp_path, study).source
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["report.html", "study.json"]


def test_one_seed_is_stated_clearly(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_study(["plain", "low"], ["topic"], [0]))
    assert "There is one seed of each variant, so seed noise (the noise of training) is unknown" in page.text
    assert "one seed (0)" in page.text
    assert "low is undecided against plain on topic (one seed: seed noise unknown)." in page.text
    assert "worse than plain" not in page.text


def test_variants_with_fewer_seeds_are_marked(tmp_path: Path) -> None:
    study = make_study(["plain", "low", "high"], ["topic"], [0, 1])
    study["comparisons"][0]["seed_noise_known"] = False
    assert "Some variants have one seed" in page_of(tmp_path, study).text


@pytest.mark.parametrize(
    ("states", "lead", "note"),
    [
        ("failed", "Every run failed, so there is nothing to compare.", "Every run failed: see why"),
        ("missing", "No run has finished, so there is nothing to compare yet.", "4 of 4 runs are missing"),
    ],
)
def test_without_any_finished_run(tmp_path: Path, states: str, lead: str, note: str) -> None:
    names = ["plain", "other"]
    study = make_study(names, ["topic", "same"], [0, 1], {(v, s): states for v in names for s in (0, 1)})
    for tasks in (study["tasks"], {}):  # a study that has just begun does not know them
        page = page_of(tmp_path, study | {"tasks": tasks})
        assert lead in page.text
        assert note in page.text
        assert "There are no comparisons" in page.text
        assert not page.found("svg", "aria-label")


def test_without_the_reference_nothing_is_compared(tmp_path: Path) -> None:
    study = make_study(["plain", "other"], ["topic"], [0, 1], {("plain", 0): "failed", ("plain", 1): "missing"})
    text = page_of(tmp_path, study).text
    assert "The reference, plain, has no finished run" in text
    assert "other 0 done 67.0 report" in text


def test_one_variant_only(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_study(["plain"], ["topic"], [0, 1]))
    assert "There is one variant, plain, and nothing to compare it with." in page.text
    assert page.found("svg", "aria-label") == ["topic: accuracy on dev"]


def test_very_many_variants_and_tasks(tmp_path: Path) -> None:
    names = ["plain", *(f"{'a-very-long-name-' * 6}{number}" for number in range(11))]
    page = page_of(tmp_path, make_study(names, [f"task-{number}" for number in range(3)], [0, 1, 2]))
    assert len(page.found("svg", "aria-label")) == 4 + 3 + 3
    assert " and 3 others are better than plain" in page.text
    assert (tmp_path / "report.html").stat().st_size < 700_000


def test_missing_numbers_do_not_stop_the_page(tmp_path: Path) -> None:
    study = make_study(["plain", "low", "high"], ["topic"], [0, 1])
    study["variants"]["low"]["cost"] = {"parameters": None, "seconds": None}
    study["variants"]["high"]["scores"]["topic"] = study["variants"]["high"]["scores"]["topic"] | {"mean": float("nan")}
    study["comparisons"][0] |= {"p": float("nan"), "detectable": float("inf"), "effect_examples": None}
    text = page_of(tmp_path, study | {"environment": None, "differences": None, "curves": None}).text
    assert "nan" not in text
    assert "No evaluation has been recorded yet" in text


def test_the_verdict_when_only_single_tasks_differ() -> None:
    study = make_study(["plain", "a", "b"], ["topic", "same"], [0, 1])
    for c in study["comparisons"]:
        c["claim"] = "better" if (c["variant"], c["task"]) == ("a", "topic") else "undecided"
    said = "a and b are undecided against plain on the mean of the tasks; on single tasks: 1 better."
    assert verdict(study) == said


def test_variants_that_are_the_same_are_marked(tmp_path: Path) -> None:
    study = make_study(["plain", "a", "b"], ["topic"], [0, 1])
    for c in study["comparisons"]:
        c |= {"claim": "same", "margin": 0.01, "sentence": f"{c['variant']} and plain are the same within 1 point"}
    page = page_of(tmp_path, study | {"margin": 1.0})
    assert "a and b are the same as plain on topic within 1 point." in page.text
    assert "The same as plain a and plain are the same within 1 point" in page.text
    assert "a 67.0 = same [66.0, 68.0]" in page.text
    assert "the same within 1 point undecided" in page.text


def test_lower_is_better_inverts_the_front(tmp_path: Path) -> None:
    study = make_study(["plain", "low", "high"], ["topic"], [0, 1])
    study["tasks"]["topic"] |= {"metric": "rmse", "greater_is_better": False}
    page = page_of(tmp_path, study)
    assert "rmse, lower is better" in page.text
    assert charts.pareto({"cheap": (1, -0.7), "low": (2, -0.67), "high": (3, -0.76)}) == ["cheap", "low"]


def test_errors_name_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: not the folder of a study: it has no study\.json"):
        write_page(tmp_path / "nowhere")
