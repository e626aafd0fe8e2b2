"""Summaries of probes: means with intervals, verdicts, sentences, the transfer matrix, and the page."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from polytask.evaluation.interference import (
    curve,
    jackknife,
    moving,
    p_value,
    read_interference,
    summarize,
)
from polytask.reports.interference import NOTHING_SHARED, with_sentences
from polytask.runs.report import write_report


def line(step: int, cosine: float | None, layers: dict[str, float | None], norms: tuple[float, float] = (1, 1)) -> Any:
    """A probe of the tasks sst and quora."""
    cosines = {"all": cosine, **layers}
    return {
        "kind": "interference",
        "step": step,
        "tasks": ["sst", "quora"],
        "layers": {name: [[1.0, value], [value, 1.0]] for name, value in cosines.items()},
        "norms": {name: list(norms) for name in cosines},
        "seconds": 0.5,
    }


APART = [line(10 * n, c, {"layer 1": c - 0.1, "layer 0": c}) for n, c in enumerate([-0.1, -0.3, -0.2, 0.05, -0.2], 1)]


def test_a_mean_has_its_usual_interval_and_words() -> None:
    found = with_sentences(summarize(APART))
    cosines = [-0.1, -0.3, -0.2, 0.05, -0.2]
    (pair,) = found["pairs"]
    assert (found["probes"], found["first_step"], found["last_step"], found["seconds"]) == (5, 10, 50, 2.5)
    assert found["layers"] == ["layer 0", "layer 1"]  # from the bottom up
    assert pair["cosine"]["value"] == pytest.approx(-0.15)
    assert pair["conflict"] == pytest.approx(0.8)
    # On Fisher's scale around the mean, with the t interval's own half width at its centre.
    half = stats.t.ppf(0.975, 4) * stats.sem(cosines)
    ends = np.tanh(np.arctanh(-0.15) + np.array([-1, 1]) * half / (1 - 0.15**2))
    assert [pair["cosine"]["low"], pair["cosine"]["high"]] == pytest.approx(ends, abs=1e-6)
    assert pair["p"] == pytest.approx(stats.ttest_1samp(cosines, 0).pvalue)
    assert pair["verdict"] == "unclear"
    assert pair["sentence"].startswith("The gradients of sst and quora show no clear sign: mean cosine -0.150 [")
    assert pair["layers"]["layer 1"]["value"] == pytest.approx(-0.25)


@pytest.mark.parametrize(
    ("sign", "words"),
    [
        (
            -1,
            "The gradients of sst and quora conflict: mean cosine -0.200 [-0.220, -0.180], below 0 in 100 % of 6 "
            "probes",
        ),
        (1, "The gradients of sst and quora agree: mean cosine 0.200 [0.180, 0.220], below 0 in 0 % of 6 probes"),
    ],
)
def test_the_sentence_names_the_strongest_layer(sign: int, words: str) -> None:
    cosines = [sign * c for c in (0.18, 0.2, 0.22, 0.21, 0.17, 0.22)]
    probes = [line(n, c, {"pooler": None, "layer 0": c / 2, "embeddings": 2 * c}) for n, c in enumerate(cosines, 1)]
    found = with_sentences(summarize(probes))
    (pair,) = found["pairs"]
    assert pair["sentence"].startswith(words[:40])
    assert re.sub(r"\[[^]]*\]", "[]", pair["sentence"]) == (
        re.sub(r"\[[^]]*\]", "[]", words) + f"; most in the embeddings ({0.4 * sign:.3f})."
    )
    assert pair["cosine"]["low"] < 0.2 * sign < pair["cosine"]["high"]
    assert found["layers"] == ["embeddings", "layer 0"]  # in the pooler nobody meets
    assert set(pair["layers"]) == {"embeddings", "layer 0"}


def test_many_pairs_are_corrected_for() -> None:
    """At 5 % each, one of twenty pairs of noise would be claimed; with Holm's correction hardly ever one of any."""
    rng, claims = np.random.default_rng(0), 0
    tasks = [f"t{k}" for k in range(7)]
    for _ in range(40):
        probes = []
        for step in range(1, 13):
            noise = np.triu(rng.normal(0, 0.1, (7, 7)), 1)
            cosines = (noise + noise.T + np.eye(7)).tolist()
            content = {"layers": {"all": cosines, "layer 0": cosines}, "norms": {"all": [1.0] * 7}}
            probes.append({"step": step, "tasks": tasks, "seconds": 0.1, **content})
        claims += any(pair["verdict"] != "unclear" for pair in summarize(probes)["pairs"])
    assert claims <= 5


def test_the_jackknife_of_a_mean_is_the_standard_error_of_its_blocks() -> None:
    values = np.random.default_rng(1).normal(0.3, 1, 40)
    value, error, degrees = jackknife(values, np.ones(40))
    assert (value, degrees) == (pytest.approx(values.mean()), 9)
    assert error == pytest.approx(stats.sem(values.reshape(10, 4).mean(1)))
    assert jackknife(values[:6], np.ones(6)) == pytest.approx((values[:6].mean(), stats.sem(values[:6]), 5))
    assert jackknife(values[:1], np.ones(1))[2] == 0


def test_the_jackknife_of_a_ratio_agrees_with_the_delta_method() -> None:
    rng = np.random.default_rng(2)
    bottoms = rng.uniform(1, 2, 10)
    tops = 0.5 * bottoms + rng.normal(0, 0.05, 10)
    value, error, _ = jackknife(tops, bottoms)
    assert value == pytest.approx(tops.sum() / bottoms.sum())
    delta = np.std(tops - value * bottoms, ddof=1) / np.sqrt(10) / bottoms.mean()
    assert error == pytest.approx(delta, rel=0.1)


def test_blocks_help_where_neighbours_are_alike() -> None:
    rng, kept, plain = np.random.default_rng(3), 0, 0
    for _ in range(400):
        noise, series = rng.normal(size=300), np.zeros(300)
        for t in range(1, 300):
            series[t] = 0.5 * series[t - 1] + noise[t]
        kept += p_value(series[100:]) > 0.05
        plain += stats.ttest_1samp(series[100:], 0).pvalue > 0.05
    assert kept / 400 > 0.91
    assert plain / 400 < 0.8


def test_transfer_is_in_steps_of_the_tasks_own() -> None:
    """Two probes: <g_sst, g_quora> = -0.5*2*1 and 0.25*2*4; |g_sst|^2 = 4 and 4, |g_quora|^2 = 1 and 16."""
    probes = [line(1, -0.5, {"layer 0": -0.5}, (2, 1)), line(2, 0.25, {"layer 0": 0.25}, (2, 4))]
    (own, to_quora), (to_sst, _) = summarize(probes)["transfer"]
    assert own["value"] == pytest.approx(1)
    assert to_quora["value"] == pytest.approx((-1 + 2) / 17)
    assert to_sst["value"] == pytest.approx((-1 + 2) / 8)
    assert to_sst["low"] < 0 < to_sst["high"]


def test_one_probe_has_no_interval_and_none_has_no_summary(tmp_path: Path) -> None:
    found = with_sentences(summarize(APART[:1]))
    (pair,) = found["pairs"]
    assert pair["cosine"] == {"value": -0.1, "low": None, "high": None}
    assert pair["verdict"] == "unclear"
    assert pair["sentence"] == (
        "The gradients of sst and quora show no clear sign: mean cosine -0.100, below 0 in 100 % of 1 probe."
    )
    assert found["transfer"][0][1] == {"value": pytest.approx(-0.1), "low": None, "high": None}
    assert read_interference(tmp_path / "metrics.jsonl") is None
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 1}\n')
    assert read_interference(tmp_path / "metrics.jsonl") is None
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in [{"kind": "step"}, *APART]))
    assert read_interference(tmp_path / "metrics.jsonl") == summarize(APART)
    assert json.loads(json.dumps(summarize(APART), allow_nan=False)) == summarize(APART)


def test_tasks_that_have_no_gradient_somewhere_are_left_out() -> None:
    """quora has one in the second probe only; or never."""
    probes = [line(1, None, {"layer 0": None}, (2, 0)), line(2, 0.5, {"layer 0": 0.5}, (2, 1))]
    (pair,) = summarize(probes)["pairs"]
    assert (pair["cosine"]["value"], pair["conflict"]) == (0.5, 0.0)
    assert curve(probes, "quora", "sst") == [(2, 0.5)]
    for never in (probes[0], {**probes[0], "layers": {}, "norms": {}}):
        nothing = with_sentences(summarize([never]))
        assert (nothing["note"], nothing["pairs"], nothing["layers"]) == (NOTHING_SHARED, [], [])


def test_tasks_that_share_no_parameters() -> None:
    """The third task has no gradient on what the first two share."""
    probes = []
    for step in (1, 2, 3):
        cosines = [[1.0, 0.1 * step, None], [0.1 * step, 1.0, None], [None, None, None]]
        content = {"layers": {"all": cosines, "layer 0": cosines}, "norms": {"all": [1.0, 1.0, 0.0]}}
        probes.append({"step": step, "tasks": ["a", "b", "c"], "seconds": 0.1, **content})
    found = with_sentences(summarize(probes))
    assert [pair["cosine"]["value"] for pair in found["pairs"]] == [pytest.approx(0.2), None, None]
    assert found["pairs"][1]["sentence"] == "a and c share no trainable parameters."
    assert found["transfer"][0][2]["value"] is None  # c has no step of its own to measure by
    assert found["transfer"][2][0]["value"] == 0


def test_the_moving_mean_covers_its_window() -> None:
    points = [(10 * n, float(n % 2)) for n in range(12)]
    found = moving(points)
    assert [step for step, *_ in found] == [20.0 + 10 * n for n in range(8)]
    assert [round(mean, 6) for _, mean, _, _ in found] == [0.4, 0.6] * 4
    half = stats.t.ppf(0.975, 4) * stats.sem([0, 1, 0, 1, 0])
    assert found[0][2:] == pytest.approx((0.4 - half, min(1.0, 0.4 + half)))
    assert moving(points[:4]) == []


# --- the page ---------------------------------------------------------------------------------------------------------
def probes_of(tasks: list[str], count: int = 8) -> list[Any]:
    rng, size, found = np.random.default_rng(0), len(tasks), []
    for step in range(1, count + 1):
        layers: dict[str, Any] = {}
        for name in ("all", "pooler", "layer 1", "layer 0", "embeddings"):
            noise = np.triu(rng.uniform(-0.4, 0.2, (size, size)), 1)
            layers[name] = (noise + noise.T + np.eye(size)).tolist() if name != "pooler" else [[None] * size] * size
        norms = {name: rng.uniform(1, 2, size).tolist() for name in layers}
        content = {"tasks": tasks, "layers": layers, "norms": norms, "seconds": 0.1}
        found.append({"kind": "interference", "step": 5 * step, **content})
    return found


def page_of(folder: Path, probes: list[Any]) -> str:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(probe) + "\n" for probe in probes))
    return write_report(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [2, 3, 9])
def test_the_page_shows_every_pair(tmp_path: Path, size: int) -> None:
    tasks = [f"task<{k}>" for k in range(size)]
    probes = probes_of(tasks)
    page = page_of(tmp_path, probes)
    found = with_sentences(summarize(probes))
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)).replace("&lt;", "<").replace("&gt;", ">")
    for pair in found["pairs"]:
        assert pair["sentence"] in text
    labels = re.findall(r'<svg [^>]*aria-label="([^"]*)"', page)
    assert len(labels) == 2 + len(found["pairs"])
    assert "Mean cosine by layer" in labels
    assert "task&lt;0&gt; and task&lt;1&gt;" in labels
    assert "8 probes, from step 5 to 40," in text
    assert not re.search(r"https?:|@import|url\((?!#)|src=|<script", page)
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert 'href="#interference"' in page
    assert len(page) < 1_500_000


def test_the_page_reports_tasks_that_share_nothing_and_has_no_section_without_probes(tmp_path: Path) -> None:
    page = page_of(tmp_path, [{**APART[0], "layers": {}, "norms": {}}])
    assert "No trainable parameter is shared by two tasks" in page
    assert "One probe, at step 10," in page
    assert "Mean cosine" not in page
    assert "nterference" not in page_of(tmp_path, [])
