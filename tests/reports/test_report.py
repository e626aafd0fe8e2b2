"""The report shows what the run folder says, harms nobody, loads nothing, and copes with what is not there yet."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from polytask.runs.report import write_report
from polytask.types import UserError

from ..conftest import Page

MARKUP = "<script>alert(1)</script>"


def metric(value: float, spread: float = 0.05) -> dict[str, float]:
    return {"value": value, "low": value - spread, "high": value + spread}


def scores(shift: float = 0.0) -> dict[str, Any]:
    return {
        "topic": {
            "loss": 0.4567,
            "primary": "accuracy",
            "examples": 4,
            "metrics": {"accuracy": metric(0.7127 + shift), "f1": metric(0.6543)},
        },
        "same": {"loss": 0.02, "primary": "pearson", "examples": 3, "metrics": {"pearson": metric(0.8767 + shift)}},
    }


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def step(number: int) -> dict[str, Any]:
    losses = {"topic": 1 / number} if number % 2 else {"same": 0.1 / number}
    rest = {"learning_rate": 1e-4, "gradient_norm": 1.5, "examples": 8, "tokens": 99, "seconds": 0.5}
    return {"kind": "step", "step": number, "epoch": 1, "losses": losses, "penalties": {"smart": 0.1}, **rest}


def evaluation(number: int, best: bool) -> dict[str, Any]:
    return {"kind": "evaluation", "step": number, "split": "dev", "tasks": scores(), "mean": 0.79, "best": best}


def summary() -> dict[str, Any]:
    lengths = {"edges": [0, 10, 20], "counts": [3, 1], "mean": 9.25, "max": 19, "truncated": 7}
    split = {"rows": 4, "skipped": 0, "skipped_rows": [], "lengths": lengths}
    broken = [{"row": 17, "column": "label", "value": "<i>maybe</i>", "problem": "not one of the classes"}]
    balance = {"labels": {"names": ["sport", MARKUP, "天气"], "counts": [1, 2, 1]}}
    histogram = {"labels": {"edges": [0, 2.5, 5], "counts": [1, 2]}}
    topic = {"kind": "classes", "classes": ["sport", MARKUP, "天气"], "range": None, "text": ["body"], "label": "l<b>"}
    topic["metric"] = "accuracy"
    same = {"kind": "score", "classes": [], "range": [0, 5], "text": ["one", "two"], "label": "score"}
    same["metric"] = "pearson"
    return {
        "name": "first <run>",
        "encoder": "minilm",
        "steps": 40,
        "epochs": 2.0,
        "seconds": 3725.0,
        "examples_per_second": 151.26,
        "peak_memory_bytes": 3 * 2**29,
        "device": "cpu",
        "finished": True,
        "best": {"step": 20, "select": "mean", "value": 0.7945},
        "parameters": {
            "encoder": 9000,
            "adapter_shared": 0,
            "per_task": {"topic": 700, "same": 300},
            "total": 10000,
            "trainable": 1000,
        },
        "tasks": {
            "topic": {
                **topic,
                "metric": "accuracy",
                "data": {
                    "train": {**split, **balance, "skipped": 1, "skipped_rows": broken},
                    "dev": {**split, **balance},
                },
            },
            "same": {**same, "metric": "pearson", "data": {"dev": {**split, **histogram}}},
        },
        "evaluations": {"dev": scores(), "test": scores(-0.1)},
        "baselines": {
            "topic": {"metric": "accuracy", "value": 0.7, "what": f"always '{MARKUP}'"},
            "same": {"metric": "pearson", "value": 0.0, "what": "always the same score"},
        },
    }


def topic_line(row: int, gold: str | None, predicted: str, probability: float) -> dict[str, Any]:
    text = [f"text of row {row} {MARKUP}"]
    return {
        "row": row,
        "text": text,
        "label": gold,
        "prediction": predicted,
        "probabilities": {predicted: probability},
    }


def write_run(folder: Path) -> Path:
    steps = [step(number) for number in range(1, 41)]
    write_lines(folder / "metrics.jsonl", [*steps, evaluation(20, True), evaluation(40, False)])
    write_lines(
        folder / "predictions" / "topic-dev.jsonl",
        [
            topic_line(1, "sport", "sport", 0.99),
            topic_line(2, "sport", MARKUP, 0.61),
            topic_line(3, MARKUP, "天气", 0.9231),
            topic_line(4, "天气", "天气", 0.5),
            topic_line(5, None, "sport", 0.5),
        ],
    )
    pairs = [(1.0, 1.5), (4.0, 1.0), (5.0, 5.0)]
    lines = [
        {"row": at, "text": [f"left {at}", f"right {at}"], "label": gold, "prediction": said}
        for at, (gold, said) in enumerate(pairs, 1)
    ]
    write_lines(folder / "predictions" / "same-dev.jsonl", lines)
    (folder / "recipe.yaml").write_text("name: first\nnote: '</pre><script>evil()</script>'\n", encoding="utf-8")
    data = {"topic": {"dev": {"source": "d.csv", "sha256": "ab12" * 16, "rows": 4, "skipped": 0}}}
    environment = {"polytask": "0.1.0", "python": "3.11.7", "torch": "2.12", "commit": None, "data": data}
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary()), encoding="utf-8")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that a test may change."""
    return write_run(tmp_path / "first")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(write_run(tmp_path_factory.mktemp("runs") / "first"))


def page_of(run: Path) -> Page:
    path = write_report(run)
    assert path == run / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_scores_are_those_of_the_summary(page: Page) -> None:
    text = page.text
    assert "topic accuracy 0.713 0.663 to 0.763 0.700 no clear difference" in text
    assert "f1 0.654 0.604 to 0.704" in text
    assert "same pearson 0.877 0.827 to 0.927 0.000 better than guessing Guessing: always the same score 3" in text
    assert "same pearson 0.777 0.727 to 0.827" in text  # the test split


def test_a_score_below_the_baseline_is_shown(run: Path) -> None:
    changed = summary()
    changed["baselines"]["topic"]["value"] = 0.9
    (run / "summary.json").write_text(json.dumps(changed), encoding="utf-8")
    assert "0.900 worse" in page_of(run).text


def test_a_page_is_titled_by_its_run(page: Page) -> None:
    assert page.text.startswith("first: polytask report first A run of the recipe first <run>.")


def test_scores_are_also_compared_with_the_start(run: Path) -> None:
    """A correlation of 0.877 is better than guessing, and was there before any training."""
    simple = {"same": {"metric": "pearson", "value": 0.95, "what": "the cosine of the two texts"}}
    start = {**evaluation(0, False), "baselines": simple}
    start["tasks"] = {**scores(), "same": scores(-0.02)["same"]}
    start["tasks"]["topic"]["metrics"]["f1"] = {**metric(0.1), "greater_is_better": False}
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8")
    (run / "metrics.jsonl").write_text(json.dumps(start) + "\n" + lines, encoding="utf-8")
    changed = {**summary(), "remarks": ["same: pearson is not clearly better."]}
    changed["best"]["start_value"] = 0.7711
    changed["evaluations"]["dev"]["topic"]["metrics"]["f1"]["greater_is_better"] = False
    (run / "summary.json").write_text(json.dumps(changed), encoding="utf-8")
    text = page_of(run).text
    assert "0.794 (0.771 before training)" in text or "0.795 (0.771 before training)" in text
    expected = "same pearson 0.877 0.827 to 0.927 0.000 0.857 0.950 worse than no training"
    assert f"{expected} no clear difference from step 0 better than guessing" in text
    assert "No training: the cosine of the two texts" in text
    assert "f1 (lower is better) 0.654 0.604 to 0.704 0.100 worse than step 0" in text
    assert "same: pearson is not clearly better." in text


def test_parts_with_different_learning_rates_have_a_curve_each(run: Path) -> None:
    rates = {"encoder": 1e-5, "heads": 1e-3}
    write_lines(run / "metrics.jsonl", [{**step(number), "learning_rates": rates} for number in (1, 2, 3)])
    text = page_of(run).text
    assert "encoder" in text
    assert "heads" in text
    same = dict.fromkeys(("encoder", "heads"), 1e-4)
    write_lines(run / "metrics.jsonl", [{**step(number), "learning_rates": same} for number in (1, 2, 3)])
    assert "Learning rate: encoder, heads" in page_of(run).text


def test_the_rest_of_the_summary_is_shown(page: Page) -> None:
    text = page.text
    for words in (
        "40 steps (2 epochs) in 1 h 02 min on cpu",
        "best model is that of step 20, chosen by the mean of all tasks on dev: 0.794",
        "151.3 examples a second",
        "1.5 GiB",
        "encoder, shared by all tasks 9,000 90.00 %",
        "only for topic 700 7.00 %",
        "of these, trained 1,000 10.00 %",
        "train 4 1 9.2 19 7",
        "17 label <i>maybe</i> not one of the classes",
        "topic dev d.csv 4 " + "ab12" * 16,
        "python 3.11.7",
    ):
        assert words in text, words
    assert "None" not in text


def test_per_class_numbers_come_from_the_labelled_predictions(page: Page) -> None:
    text = page.text
    assert "topic on dev: 5 rows, 1 of them without a label" in text
    assert "sport 1.000 0.500 0.667 2" in text
    assert f"{MARKUP} 0.000 0.000 0.000 1" in text
    assert "天气 0.500 1.000 0.667 1" in text


def test_the_surest_mistakes_come_first(page: Page) -> None:
    text = page.text
    first, second = f"true {MARKUP} , predicted 天气 (92.3 % sure) · row 3", f"true sport , predicted {MARKUP}"
    assert 0 < text.index(first) < text.index(second)
    assert "true 4.00 , predicted 1.00 (off by -3.00) · row 2 left 2 right 2" in text
    assert "row 4 " not in text[text.index("Most confident mistakes") : text.index("Largest errors")]


def test_only_ten_mistakes_are_shown_with_and_without_probabilities(run: Path) -> None:
    lines = [topic_line(row, "sport", "天气", 0.5 + row / 1000) for row in range(1, 31)]
    for line in lines[:10]:
        del line["probabilities"]
    write_lines(run / "predictions" / "topic-dev.jsonl", lines)
    text = page_of(run).text
    assert [f"row {row} text of" in text for row in (20, 21, 30)] == [False, True, True]


def test_user_text_never_becomes_markup(page: Page) -> None:
    assert "script" not in {tag for tag, _ in page.tags}
    assert not {"i", "b", "run"} & {tag for tag, _ in page.tags}
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    assert "</pre><script>evil()</script>" in page.text
    assert "first <run>" in page.text


def test_the_page_needs_nothing_but_itself(page: Page) -> None:
    assert not {"link", "img", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?:|@import|url\((?!#)|src=", page.source)
    for _, attributes in page.tags:
        target = attributes.get("href") or attributes.get("xlink:href") or "#"
        assert target.startswith("#")
    policies = [a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_ids_are_unique_and_links_lead_somewhere(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for tag, a in page.tags if tag == "a" and a.get("href")} <= set(ids)


def test_the_report_is_the_same_each_time(run: Path) -> None:
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    assert not list(run.glob(".report*"))


def test_every_task_and_split_has_its_plots(page: Page) -> None:
    labels = [attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg"]
    for title in (
        "topic: loss",
        "topic: accuracy on dev",
        "same: pearson on dev",
        "Learning rate",
        "Penalty of smart",
        "Confusion matrix: rows, and % of the true class",
        "True and predicted scores",
        "train: rows of each label",
        "dev: rows by score",
        "dev: rows by length",
    ):
        assert title in labels, title


def test_the_page_of_an_empty_folder_lists_what_is_missing(tmp_path: Path) -> None:
    text = page_of(tmp_path).text
    assert tmp_path.name in text
    for words in ("has not finished", "No training step", "no scores", "no predictions", "no recipe.yaml"):
        assert words in text, words


def test_a_run_before_its_first_evaluation(run: Path) -> None:
    for name in ("summary.json", "predictions/topic-dev.jsonl", "predictions/same-dev.jsonl"):
        (run / name).unlink()
    write_lines(run / "metrics.jsonl", [step(1), step(2)])
    page = page_of(run)
    assert "2 steps so far" in page.text
    assert "No evaluation has been recorded yet" in page.text
    assert "So far: 1.0 s of training steps" in page.text
    assert "topic: loss" in [attributes.get("aria-label") for _, attributes in page.tags]


def test_a_killed_run_shows_the_best_evaluation_so_far(run: Path) -> None:
    (run / "summary.json").unlink()
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write('{"kind": "step", "st')  # killed while writing
    text = page_of(run).text
    assert "has not finished" in text
    assert "topic accuracy 0.713 0.663 to 0.763" in text


def test_a_resumed_runs_repeated_steps_count_once(run: Path) -> None:
    for name in ("summary.json", "predictions/topic-dev.jsonl", "predictions/same-dev.jsonl"):
        (run / name).unlink()
    once = write_report(run).read_text(encoding="utf-8")
    with (run / "metrics.jsonl").open("a") as lines:
        lines.writelines(json.dumps(step(number)) + "\n" for number in range(31, 41))
    assert write_report(run).read_text(encoding="utf-8") == once


def test_tasks_one_after_another(run: Path, page: Page) -> None:
    assert "One task after another" not in page.text
    sequence = summary()
    sequence["best"] = {"step": 40, "select": "last", "value": None}
    sequence["transfer"] = {
        "stages": [{"task": "same", "first": 1, "last": 15}, {"task": "topic", "first": 16, "last": 1040}],
        "metrics": {"same": "pearson", "topic": "accuracy"},
        "scores": [[0.1, 0.2], [0.9, 0.25], [0.7, 0.6]],
        "backward": -0.2,
        "forward": 0.05,
        "forgetting": {"same": 0.2, "topic": None},
        "mean_forgetting": 0.2,
    }
    (run / "summary.json").write_text(json.dumps(sequence), encoding="utf-8")
    found = page_of(run)
    for words in (
        "same (steps 1 to 15), topic (steps 16 to 1,040)",
        "On average 20.0 points of the earlier tasks",
        "same pearson 0.100 0.900 0.700 0.200",
        "topic accuracy 0.200 0.600 0.600 \N{EN DASH}",
        "Backward transfer -0.200 Forward transfer +0.050 Mean forgetting 0.200",
        "The model is that of the last step.",
    ):
        assert words in found.text, words
    assert "chose the best model" not in found.text
    assert "#transfer" in [attributes.get("href") for _, attributes in found.tags]
    sequence["transfer"] = None  # it stopped before its last stage ended
    (run / "summary.json").write_text(json.dumps(sequence), encoding="utf-8")
    assert "One task after another" not in page_of(run).text


def test_errors_name_the_file(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is not a run's folder"):
        write_report(tmp_path / "nowhere")
    (run / "metrics.jsonl").write_text('{"kind": "st\n{}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"metrics.jsonl, line 1 is not valid JSON"):
        write_report(run)
    (run / "metrics.jsonl").unlink()
    (run / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"summary.json is not valid JSON"):
        write_report(run)


def test_large_splits_and_many_classes_stay_small(run: Path) -> None:
    names = [f"class number {number} with a long name" for number in range(60)]
    lines = [topic_line(at, names[at % 60], names[(at + at % 7 // 6) % 60], 0.5 + at / 20_000) for at in range(5_000)]
    write_lines(run / "predictions" / "topic-dev.jsonl", lines)
    pairs = [
        {"row": at, "text": ["a", "b"], "label": at % 51 / 10, "prediction": at % 53 / 10.3} for at in range(5_000)
    ]
    write_lines(run / "predictions" / "same-dev.jsonl", pairs)
    page = page_of(run)
    assert "topic on dev: 5,000 rows" in page.text
    assert "34 other classes)" in page.text  # 60 and the recipe's 3, of which 29 have a row of their own
    assert (run / "report.html").stat().st_size < 1_500_000


def test_scores_that_are_not_numbers_do_not_stop_the_report(run: Path) -> None:
    line = {"row": 1, "text": ["a", "b"], "label": 1.0, "prediction": float("nan")}
    write_lines(run / "predictions" / "same-dev.jsonl", [line])
    assert "same on dev: 1 rows" in page_of(run).text
