"""Whole runs of tasks one after another: what the summary and the pages say, and what each method leaves alone."""

import json
from pathlib import Path

import pytest
import torch

from polytask import Finished, train
from polytask.runs.summary import Best
from polytask.studies.compare import compare_runs

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
SEQUENCE = ["sampler=in_order", "train.select=last", "train.schedule=constant", "train.evaluate_every=1000"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> dict[str, Finished]:
    """The sequence with nothing against forgetting, and with adapters on an encoder that never learns."""
    folder = tmp_path_factory.mktemp("sequence")
    frozen = ["adapter=houlsby", "train.parts=adapters", "tasks.question.head=bi", "tasks.similarity.head=bi"]
    return {
        name: train(QUICKSTART, folder / name, [*tiny_settings, *SEQUENCE, *more])
        for name, more in {"none": frozen[2:], "frozen": frozen}.items()
    }


def test_the_summary_has_every_tasks_score_after_every_stage(runs: dict[str, Finished]) -> None:
    run = runs["none"]
    found = run.summary.transfer
    assert [stage["task"] for stage in found["stages"]] == ["opinion", "question", "similarity"]
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = {line["step"]: line["tasks"] for line in lines if line["kind"] == "evaluation"}
    assert list(evaluations) == [0, *(stage["last"] for stage in found["stages"])]
    for row, tasks in zip(found["scores"], evaluations.values(), strict=True):
        assert row == [score["metrics"][score["primary"]]["value"] for score in tasks.values()]
    final = [score.value for _, score in run.evaluations["dev"]]
    assert found["scores"][-1] == pytest.approx(final)  # the last weights are those of the model
    assert run.summary.best == Best(20, "last", None)


def test_a_frozen_encoder_forgets_nothing(runs: dict[str, Finished]) -> None:
    found = runs["frozen"].summary.transfer
    for column, stage in enumerate(found["stages"]):
        own = column + 1
        scores = [row[column] for row in found["scores"]]
        assert scores[:own] == [scores[0]] * own, stage  # heads and adapters of tasks to come stay as they started
        assert scores[own:] == [scores[own]] * len(scores[own:]), stage
    assert found["mean_forgetting"] == found["backward"] == found["forward"] == 0.0


def test_the_report_and_the_card_show_the_sequence(runs: dict[str, Finished]) -> None:
    page = runs["none"].report.read_text(encoding="utf-8")
    found = runs["none"].summary.transfer
    assert 'id="transfer"' in page
    assert "Every task&#x27;s score after each stage" in page
    assert f"{found['mean_forgetting']:.3f}" in page
    assert "The model is that of the last step." in page
    assert "chose the best model" not in page
    card = (runs["none"].folder / "model" / "README.md").read_text(encoding="utf-8")
    assert "The weights are those of the last step." in card
    assert "Dev rows chose" not in card


def test_a_comparison_of_sequences_shows_forgetting(runs: dict[str, Finished], tmp_path: Path) -> None:
    content = compare_runs([run.folder for run in runs.values()], tmp_path / "both")
    lost = {name: found["cost"]["forgetting"] for name, found in content["variants"].items()}
    assert lost == {name: run.summary.transfer["mean_forgetting"] for name, run in runs.items()}
    assert "| Forgotten |" in (tmp_path / "both" / "study.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "against",
    [
        "policy=gem",
        "regularizers=[ewc]",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("policy=a_gem", "policy=replay", "regularizers=[lwf]")),
    ],
)
def test_methods_against_forgetting_run_with_half_precision_and_accumulation(
    against: str, tmp_path: Path, tiny_settings: list[str]
) -> None:
    short = ["train.epochs=1", "train.batch_size=4", "train.accumulate=2", "train.precision=bf16"]
    finished = train(QUICKSTART, tmp_path / "run", [*tiny_settings, *SEQUENCE, *short, against])
    assert torch.isfinite(torch.tensor(finished.summary.transfer["scores"])).all()
