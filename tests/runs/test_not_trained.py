"""Tasks that are scored without being trained: they change nothing, are marked, and do not choose the checkpoint."""

import itertools
import json
from pathlib import Path

import pytest
import torch

import polytask
from polytask import Finished, UserError, add_task, evaluate_run, read_recipe, start_training, train
from polytask.recipe.records import recipe_to_mapping
from polytask.runs.bundle import load_run
from polytask.runs.probe import with_probes

RECIPES = Path(__file__).parents[2] / "recipes"
QUICKSTART = RECIPES / "quickstart.yaml"
SCORED = "tasks.question.trained=false"


def evaluations(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "evaluation"]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    """A run that scores questions and is not trained on them. Tests must not change it."""
    return train(QUICKSTART, tmp_path_factory.mktemp("scored") / "run", [*tiny_settings, SCORED])


def test_it_is_scored_everywhere_and_never_drawn(scored: Finished) -> None:
    lines = [json.loads(line) for line in (scored.folder / "metrics.jsonl").read_text().splitlines()]
    assert {task for line in lines if line["kind"] == "step" for task in line["losses"]} == {"opinion", "similarity"}
    for line in evaluations(scored.folder):
        assert line["not_trained"] == ["question"]
        values = [line["tasks"][task]["metrics"] for task in ("opinion", "similarity")]
        assert line["mean"] == pytest.approx((values[0]["accuracy"]["value"] + values[1]["pearson"]["value"]) / 2)
    assert scored.evaluations["dev"].tasks["question"].examples == 120
    assert len((scored.folder / "predictions" / "question-dev.jsonl").read_text().splitlines()) == 120
    assert {name for name, task in scored.summary.tasks.items() if not task.trained} == {"question"}
    assert not any(remark.startswith("question:") for remark in scored.summary.remarks)
    assert "question" in scored.summary.start
    assert "question" in scored.summary.untrained


def test_pages_mark_it(scored: Finished) -> None:
    page = (scored.folder / "report.html").read_text()
    assert "<strong>question</strong><br><small>not trained</small>" in page
    assert "Not trained: question. No step had examples of this task" in page
    assert "chosen by the mean of the trained tasks on dev" in page
    card = (scored.folder / "model" / "README.md").read_text()
    assert "Not trained, only scored: question." in card
    assert "the mean of the trained tasks" in card


def test_the_weights_are_those_of_a_run_without_the_task(
    scored: Finished, tmp_path: Path, tiny_settings: list[str]
) -> None:
    content = recipe_to_mapping(read_recipe(QUICKSTART, tiny_settings))
    del content["tasks"]["question"]
    other = train(content, tmp_path / "run")
    ours, theirs = (load_run(run.folder).model.state_dict() for run in (scored, other))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_its_own_parts_are_frozen(tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, SCORED, "adapter=conditional_norm", "tasks.question.head=cross"]
    running = start_training(read_recipe(QUICKSTART, settings), tmp_path / "run")
    model = running.session.model
    own = [*model.head("question").parameters(), *model.adapter.task_parameters("question")]
    assert own
    assert not any(parameter.requires_grad for parameter in own)
    before = [parameter.clone() for parameter in own]
    running.complete()
    assert all(torch.equal(a, b) for a, b in zip(before, own, strict=True))


def test_without_a_training_file(tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, "tasks.opinion.trained=false", "tasks.opinion.train=null", "tasks.opinion.classes=null"]
    finished = train(QUICKSTART, tmp_path / "run", settings)
    assert set(finished.summary.tasks["opinion"].data) == {"dev"}
    assert finished.summary.tasks["opinion"].classes == (
        "negative",
        "neutral",
        "positive",
        "very negative",
        "very positive",
    )
    assert "opinion" not in finished.summary.untrained
    again = evaluate_run(tmp_path / "run")
    assert (again.tasks["opinion"].examples, again.not_trained) == (150, ("opinion",))
    assert polytask.load(tmp_path / "run").predict("opinion", ["A fine day."])


@pytest.mark.parametrize(
    "methods",
    [
        ["sampler=in_order", "regularizers=[ewc, lwf]", "train.select=last"],
        pytest.param(["adapter=own_encoder", "regularizers=[soft_sharing]"], marks=pytest.mark.slow),
        pytest.param(["policy=gem", "sampler=in_order"], marks=pytest.mark.slow),
        ["policy=dwa", "regularizers=[r_drop, {name: smart}]", "sampler=mixed"],
        ["policy=pcgrad", "sampler=mixed", "train.interference_every=5"],
        pytest.param(["policy=uncertainty", "train.ema=0.9"], marks=pytest.mark.slow),
    ],
)
def test_with_methods_that_know_the_tasks(methods: list[str], tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, SCORED, "tasks.question.train=null", *methods]
    if any("sharing" in method or "interference" in method for method in methods):
        settings += ["tasks.similarity.head=cross"]
    running = start_training(read_recipe(QUICKSTART, settings), tmp_path / "run")
    reports = list(running.steps())
    assert {task for report in reports for task in report.losses} == {"opinion", "similarity"}
    finished = running.finish()
    if "sampler=in_order" in methods:
        assert [stage["task"] for stage in finished.summary.transfer["stages"]] == ["opinion", "similarity"]
    for report in reports:
        if report.interference is not None:
            assert report.interference.tasks == ("opinion", "similarity")


def test_a_stopped_run_resumes_to_the_same_end(scored: Finished, tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, SCORED, "train.save_every=3"]
    recipe = read_recipe(QUICKSTART, settings)
    list(itertools.islice(start_training(recipe, tmp_path / "run").steps(), 8))
    with pytest.raises(UserError, match=r"tasks\.question\.trained: was false, is true"):
        start_training(read_recipe(QUICKSTART, [*settings[:-2], settings[-1]]), tmp_path / "run", resume=True)
    resumed = train(recipe, tmp_path / "run", resume=True)
    for name in ("model", "parts"):
        files = [run.folder / "model" / f"{name}.safetensors" for run in (scored, resumed)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_it_can_choose_the_checkpoint_if_it_is_named(tmp_path: Path, tiny_settings: list[str]) -> None:
    finished = train(QUICKSTART, tmp_path / "run", [*tiny_settings, SCORED, "train.select=question"])
    scores = {line["step"]: line["tasks"]["question"] for line in evaluations(tmp_path / "run") if line["step"]}
    best = max(scores, key=lambda step: scores[step]["metrics"]["accuracy"]["value"])
    assert finished.summary.best.step == best


def test_text_alone_is_chosen_by_its_loss(tmp_path: Path, tiny_settings: list[str]) -> None:
    (tmp_path / "texts.csv").write_text("text\n" + "".join(f"Text number {n} is here.\n" for n in range(40)))
    content = recipe_to_mapping(read_recipe(QUICKSTART, tiny_settings))
    for task in content["tasks"].values():
        task["trained"] = False
    text = {"kind": "text", "text": "text", "train": str(tmp_path / "texts.csv"), "dev": str(tmp_path / "texts.csv")}
    finished = train({**content, "tasks": {**content["tasks"], "words": text}}, tmp_path / "run")
    best = next(line for line in evaluations(tmp_path / "run") if line["step"] == finished.summary.best.step)
    assert finished.summary.best.value == pytest.approx(best["tasks"]["words"]["loss"])
    assert "chosen by the loss on dev" in (tmp_path / "run" / "report.html").read_text()


def test_tasks_are_added_to_a_run_that_has_one(tmp_path: Path, tiny_settings: list[str]) -> None:
    short = ["train.epochs=1", "train.steps_per_epoch=4", "optimizer.lr=3e-3"]
    first = tmp_path / "first"
    train(RECIPES / "adding" / "two-tasks.yaml", first, [*tiny_settings, *short, SCORED])
    replay = RECIPES / "adding" / "similarity-replay.yaml"
    finished = add_task(first, replay, tmp_path / "second", [*short, "add.max_drop=0", "add.distill=0.5"])
    assert set(finished.summary.added.old) == {"opinion", "question"}
    assert "question" not in (finished.refused or "")
    with pytest.raises(UserError, match="at least one new task must be trained"):
        add_task(first, replay, tmp_path / "third", [*short, "tasks.similarity.trained=false"])


def test_interference_needs_two_trained_tasks(tiny_settings: list[str]) -> None:
    recipe = read_recipe(QUICKSTART, [*tiny_settings, SCORED, "tasks.opinion.trained=false"])
    with pytest.raises(UserError, match="needs two or more trained tasks, found 1"):
        with_probes(recipe, 5)
