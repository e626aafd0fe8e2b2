"""Runs of every format that was ever released, kept as they were written, still do everything a run does."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from polytask import (
    UserError,
    add_task,
    combine,
    evaluate_run,
    export_adapter,
    load,
    read_recipe,
    start_training,
    train,
    write_report,
)
from polytask.export.adapter import KEY
from polytask.runs.bundle import load_bundle
from polytask.training.checkpoint import FORMAT, newest_good

RUNS = sorted((Path(__file__).parent.parent / "fixtures" / "runs").glob("format-*"))


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


def test_an_old_run_resumes_to_the_same_end(run: Path) -> None:
    """Only nearly: another processor rounds otherwise. The sample data may have changed since."""
    before = load_bundle(run / "model").model.state_dict()
    assert newest_good(run / "checkpoints").path == run / "checkpoints" / "step-6"
    running = start_training(read_recipe(run / "recipe.yaml"), run, resume=True, allow_change=True)
    assert not any("loss_scale" in change or "standardize" in change for change in running.changes)
    assert [report.step for report in running.steps()] == [7, 8]
    running.session.load_best()
    for name, tensor in running.prepared.model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], atol=1e-3, rtol=0)
    assert load_file(run / "checkpoints" / "step-8" / "optimizer.safetensors")


# --- runs started before a field existed ------------------------------------------------------------------------------
def without_new_fields(recipe: Path) -> None:
    """Removes the fields whose default is not what earlier versions did."""
    content = yaml.safe_load(recipe.read_text())
    del content["train"]["loss_scale"]
    for task in content["tasks"].values():
        del task["standardize"]
    recipe.write_text(yaml.safe_dump(content))


def test_a_run_keeps_the_loss_it_was_started_with(tmp_path: Path, tiny_settings: list[str]) -> None:
    """A run of an earlier version ends with the same weights, whether its own recipe or the user's is given."""
    settings = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=6", "train.save_every=3"]
    settings += ["tasks.similarity.head=cross", "sampler=mixed"]
    earlier = ["train.loss_scale=none", *(f"tasks.{task}.standardize=false" for task in ("opinion", "similarity"))]
    whole = train(QUICKSTART, tmp_path / "whole", [*settings, *earlier, "tasks.question.standardize=false"])
    weights = load_bundle(whole.folder / "model").model.state_dict()
    for name in ("own", "user"):
        running = start_training(read_recipe(tmp_path / "whole" / "recipe.yaml"), tmp_path / name)
        list(itertools.islice(running.steps(), 3))
        del running
        without_new_fields(tmp_path / name / "recipe.yaml")
    own = read_recipe(tmp_path / "own" / "recipe.yaml")
    assert (own.train.loss_scale, own.tasks["similarity"].standardize) == ("none", False)
    bare = read_recipe(QUICKSTART, [*settings, "train.loss_scale=even"])
    assert (bare.train.loss_scale, bare.tasks["similarity"].standardize) == ("even", True)
    for name, recipe in (("own", own), ("user", bare)):
        resumed = start_training(recipe, tmp_path / name, resume=True).complete()
        for key, tensor in load_bundle(resumed.folder / "model").model.state_dict().items():
            assert torch.equal(tensor, weights[key])


# --- models saved before an option existed ----------------------------------------------------------------------------
QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
NEW = "What is this?", "Which one is that?"
SHARED = {
    "low_rank": "{name: low_rank, size: 4, shared_projections: true}",
    "stack": "{name: stack, adapters: [{name: low_rank, size: 4, shared_projections: true}, lhuc]}",
}


def without_the_option(content: Any) -> Any:
    """JSON as it was written when low_rank's projections were always shared."""
    if isinstance(content, dict):
        return {key: without_the_option(value) for key, value in content.items() if key != "shared_projections"}
    return [without_the_option(value) for value in content] if isinstance(content, list) else content


@pytest.fixture(params=SHARED)
def shared_run(request: pytest.FixtureRequest, tmp_path: Path, tiny_settings: list[str]) -> Path:
    settings = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=2", f"adapter={SHARED[request.param]}"]
    train(QUICKSTART, tmp_path / "shared", settings)
    return tmp_path / "shared"


def test_low_rank_models_without_the_option_have_shared_projections(shared_run: Path, tmp_path: Path) -> None:
    answer = load(shared_run).predict("question", *NEW)
    file = export_adapter(shared_run, "question", tmp_path / "question.safetensors")
    with safe_open(file, framework="pt") as opened:
        about = without_the_option(json.loads(opened.metadata()[KEY]))
    save_file(load_file(file), file, metadata={KEY: json.dumps(about)})
    for path in (shared_run / "model" / "tasks.json", shared_run / "recipe.yaml"):
        content = without_the_option(yaml.safe_load(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(content), encoding="utf-8")
    assert "shared_projections" not in (shared_run / "model" / "tasks.json").read_text()

    assert load(shared_run).predict("question", *NEW) == answer
    combine(shared_run, [file], tmp_path / "combined")
    assert load(tmp_path / "combined").predict("question", *NEW) == answer
    rows = "".join(f"{text} {i},{i % 2}\n" for i in range(8) for text in NEW)
    (tmp_path / "new.csv").write_text("text,label\n" + rows)
    new = {"kind": "yes_no", "text": "text", "label": "label", "train": "new.csv", "dev": "new.csv"}
    recipe = {"tasks": {"new": new}, "data": str(tmp_path), "train": {"epochs": 1, "steps_per_epoch": 2}}
    add_task(shared_run, recipe, tmp_path / "added")
    assert load(tmp_path / "added").predict("question", *NEW) == answer


def test_an_older_checkpoint_is_refused_with_a_remedy(tmp_path: Path, tiny_settings: list[str]) -> None:
    def settings(shared: str) -> list[str]:
        adapter = f"adapter={{name: low_rank, size: 4{shared}}}"
        return [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=4", "train.save_every=2", adapter]

    shared = read_recipe(QUICKSTART, settings(", shared_projections: true"))
    running = start_training(shared, tmp_path / "run")
    list(itertools.islice(running.steps(), 2))
    del running
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(json.dumps(without_the_option(yaml.safe_load(recipe.read_text()))))
    with pytest.raises(UserError, match=r"meant `shared_projections: true`: .* pass --allow-change"):
        start_training(read_recipe(QUICKSTART, settings("")), tmp_path / "run", resume=True)
    start_training(shared, tmp_path / "run", resume=True, allow_change=True)
