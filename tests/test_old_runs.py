"""Runs of every format that was ever released, kept as they were written, still do everything a run does."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from polytask import Running, combine, evaluate_run, export_adapter, load, read_recipe, write_report
from polytask.bundle import load_bundle
from polytask.training.checkpoint import FORMAT, newest_good

RUNS = sorted((Path(__file__).parent / "fixtures" / "runs").glob("format-*"))


@pytest.fixture(params=RUNS, ids=lambda path: path.name)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(request.param, tmp_path / "run")


def test_there_is_one_of_every_format() -> None:
    assert [path.name for path in RUNS] == [f"format-{number}" for number in range(1, FORMAT + 1)]


def test_predicts_as_it_did(run: Path, tmp_path: Path) -> None:
    model = load(run)
    assert model.tasks == ("opinion", "question", "similarity")
    (opinion,) = model.predict("opinion", "Well worth the wait.")
    assert opinion.label in ("very negative", "negative", "neutral", "positive", "very positive")
    lines = [json.loads(line) for line in (run / "predictions" / "opinion-dev.jsonl").read_text().splitlines()]
    for line in lines[:20]:
        (found,) = model.predict("opinion", *line["text"])
        assert found.probabilities == pytest.approx(line["probabilities"], abs=1e-4)


def test_scores_as_it_did(run: Path) -> None:
    then = json.loads((run / "summary.json").read_text())["evaluations"]["dev"]
    now = evaluate_run(run)
    for task, score in now:
        assert score.value == pytest.approx(then[task]["metrics"][score.primary]["value"], abs=0.01)
        assert score.examples == then[task]["examples"]


def test_its_report_is_written(run: Path) -> None:
    write_report(run)
    page = (run / "report.html").read_text()
    assert all(task in page for task in ("opinion", "question", "similarity"))


def test_its_parts_are_exported_and_put_together(run: Path, tmp_path: Path) -> None:
    file = export_adapter(run, "question", tmp_path / "question.adapter.safetensors")
    combine(run, [file], tmp_path / "combined")
    texts = ("How do I reset it?", "Is there a way to start it afresh?")
    assert load(tmp_path / "combined").predict("question", *texts) == load(run).predict("question", *texts)


def test_it_goes_on_and_ends_where_it_did(run: Path) -> None:
    """Only nearly: another processor rounds otherwise. The sample data may have changed since."""
    before = load_bundle(run / "model").model.state_dict()
    assert newest_good(run / "checkpoints").path == run / "checkpoints" / "step-6"
    running = Running(read_recipe(run / "recipe.yaml"), run, resume=True, allow_change=True)
    assert [report.step for report in running.steps()] == [7, 8]
    running.session.load_best()
    for name, tensor in running.prepared.model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], atol=1e-3, rtol=0)
    assert load_file(run / "checkpoints" / "step-8" / "optimizer.safetensors")
