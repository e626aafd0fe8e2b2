"""Scores on training rows: which rows, where they are shown, and that training does not change."""

import itertools
import json
import re
from pathlib import Path

import pytest

from polytask import Finished, read_recipe, start_training, train
from polytask.runs.prepare import prepare
from polytask.runs.score import sample_of_training_rows

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
SOME = "train.evaluate_train=100"


def lines(run: Path, kind: str) -> list[dict]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    """A run that scores 100 training rows of two tasks; the third is not trained. Tests must not change it."""
    settings = [*tiny_settings, SOME, "tasks.opinion.trained=false"]
    return train(QUICKSTART, tmp_path_factory.mktemp("scored") / "run", settings)


def test_every_evaluation_has_them(scored: Finished) -> None:
    found = lines(scored.folder, "evaluation")
    assert [line["step"] for line in found] == [0, 10, 20]
    for line in found:
        assert {task: score["examples"] for task, score in line["train"].items()} == {
            "question": 100,
            "similarity": 100,
        }
        assert set(line["train"]["question"]["metrics"]) == set(line["tasks"]["question"]["metrics"])
    best = next(line for line in found if line["step"] == scored.summary.best.step)
    assert json.loads(json.dumps(scored.summary.training_rows)) == best["train"]


def test_the_report_shows_curves_and_gaps(scored: Finished) -> None:
    page = (scored.folder / "report.html").read_text()
    assert page.count("evaluated training rows") == 4  # loss and metric of two tasks
    assert "question: accuracy on dev and on training rows" in page
    assert "opinion: accuracy on dev<" in page
    seen = scored.summary.training_rows["question"]["metrics"]["accuracy"]["value"]
    gap = seen - scored.evaluations["dev"].tasks["question"].value
    assert re.search(rf'<td class="n">{seen:.3f}</td><td class="n">{re.escape(f"{gap:+.3f}")}</td>', page)


def test_steps_and_dev_scores_do_not_change(tiny_run: Finished, tmp_path: Path, tiny_settings: list[str]) -> None:
    run = train(QUICKSTART, tmp_path / "run", [*tiny_settings, SOME])
    changing = {"seconds"}
    for one, other in zip(lines(tiny_run.folder, "step"), lines(run.folder, "step"), strict=True):
        assert {k: v for k, v in one.items() if k not in changing} == {
            k: v for k, v in other.items() if k not in changing
        }
    for one, other in zip(lines(tiny_run.folder, "evaluation"), lines(run.folder, "evaluation"), strict=True):
        assert "train" not in one
        assert one == {name: value for name, value in other.items() if name != "train"}
    assert not tiny_run.summary.training_rows
    files = [folder / "model" / "model.safetensors" for folder in (tiny_run.folder, run.folder)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_rows_are_always_the_same(tiny_settings: list[str]) -> None:
    samples = [
        sample_of_training_rows(prepare(read_recipe(QUICKSTART, [*tiny_settings, f"seed={seed}", *more])))
        for seed, more in ((0, [SOME]), (1, [SOME]), (0, ["train.evaluate_train=100000"]))
    ]
    for task, rows in samples[0].items():
        assert rows.indices.tolist() == samples[1][task].indices.tolist() == sorted(set(rows.indices.tolist()))
        assert rows.labels.tolist() == [rows.split.labels[i] for i in rows.indices]
        assert len(samples[2][task]) == len(rows.split)
    assert sample_of_training_rows(prepare(read_recipe(QUICKSTART, tiny_settings))) == {}


@pytest.mark.parametrize("more", [[], ["train.ema=0.9"], ["train.average_best=2"]])
def test_the_summary_has_the_scores_of_the_saved_weights(
    more: list[str], tmp_path: Path, tiny_settings: list[str]
) -> None:
    settings = [*tiny_settings, "train.evaluate_train=100000", "train.evaluate_every=5", *more]
    running = start_training(read_recipe(QUICKSTART, settings), tmp_path / "run")
    finished = running.complete()
    again = running.evaluate("train")
    for task, score in finished.summary.training_rows.items():
        assert score["loss"] == pytest.approx(again.tasks[task].loss, rel=1e-5)


def test_a_stopped_run_resumes_to_the_same_journal(scored: Finished, tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = read_recipe(QUICKSTART, [*tiny_settings, SOME, "tasks.opinion.trained=false", "train.save_every=3"])
    list(itertools.islice(start_training(recipe, tmp_path / "run").steps(), 8))
    resumed = train(recipe, tmp_path / "run", resume=True)
    assert lines(resumed.folder, "evaluation") == lines(scored.folder, "evaluation")
