"""`train.stop: per_task`: a task leaves the sampler when its own dev score no longer improves."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from polytask import Finished, UserError, read_recipe, start_training, train
from polytask.recipe.records import Recipe
from polytask.runs.bundle import load_bundle
from polytask.training.loop import Session
from polytask.types import EvalReport, StepReport

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
PER_TASK = ["train.stop=per_task", "train.patience=2", "train.evaluate_every=3", "train.save_every=1"]


@pytest.fixture(scope="module")
def recipe(tiny_settings: list[str]) -> Recipe:
    return read_recipe(QUICKSTART, [*tiny_settings, *PER_TASK, "train.epochs=6", "sampler=proportional"])


@pytest.fixture(scope="module")
def run(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return train(recipe, tmp_path_factory.mktemp("stop") / "run")


def lines(folder: Path, kind: str) -> list[dict]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def expected(folder: Path) -> dict[str, tuple[int, int | None]]:
    """For each task, the step of its best evaluation and that after which it stops, from the journal."""
    stops: dict[str, tuple[int, int | None]] = {}
    for task in ("opinion", "question", "similarity"):
        best, best_step, since, left = float("-inf"), 0, 0, None
        for line in lines(folder, "evaluation")[1:]:
            score = line["tasks"][task]
            value = score["metrics"][score["primary"]]["value"]
            best, best_step, since = (value, line["step"], 0) if value > best else (best, best_step, since + 1)
            if since == 2 and left is None:
                left = line["step"]
        stops[task] = best_step, left
    return stops


def test_a_task_stops_when_its_own_score_no_longer_improves(run: Finished) -> None:
    stops = expected(run.folder)
    assert any(left for _, left in stops.values())
    for task, (best, left) in stops.items():
        found = run.summary.task_bests[task]
        assert (found["step"], found["left"]) == (best, left)
        drawn = [line["step"] for line in lines(run.folder, "step") if task in line["losses"]]
        assert drawn[-1] <= (left or run.summary.steps)
    noted = {task: line["step"] for line in lines(run.folder, "step") for task in line.get("left", ())}
    assert noted == {task: left for task, (_, left) in stops.items() if left}


def test_the_run_ends_when_all_tasks_have_stopped(run: Finished) -> None:
    stops = [left for _, left in expected(run.folder).values()]
    assert all(stops), "choose more epochs"
    assert run.summary.steps == max(left for left in stops if left)


def test_the_report_names_each_tasks_best_step(run: Finished) -> None:
    page = (run.folder / "report.html").read_text()
    assert "The best evaluation of each task" in page
    for best in run.summary.task_bests.values():
        assert f"{best['value']:.3f}" in page


@pytest.fixture
def opinion_improves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opinion's score improves at every evaluation, so that it does not stop when others do."""
    note = Session.note_task_scores

    def with_step(session: Session, evaluation: EvalReport) -> tuple[str, ...]:
        score = evaluation.tasks["opinion"]
        value = replace(score.metrics["accuracy"], value=float(evaluation.step))
        better = replace(score, metrics={**score.metrics, "accuracy": value})
        return note(session, replace(evaluation, tasks={**evaluation.tasks, "opinion": better}))

    monkeypatch.setattr(Session, "note_task_scores", with_step)


def interrupted(steps: Iterator[StepReport], last: int) -> None:
    for report in steps:
        if report.step == last:
            return


OTHER_SAMPLERS = ("round_robin", "sequential", "balanced")


@pytest.mark.parametrize(
    "sampler",
    ["proportional", "mixed", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_SAMPLERS)],
)
@pytest.mark.usefixtures("opinion_improves")
def test_a_run_resumes_to_the_same_weights(recipe: Recipe, tmp_path: Path, sampler: str) -> None:
    choice = replace(recipe, sampler=replace(recipe.sampler, name=sampler), train=replace(recipe.train, epochs=2))
    whole = train(choice, tmp_path / "whole")
    stop_at = min(best["left"] for best in whole.summary.task_bests.values() if best["left"]) + 1
    assert whole.summary.steps > stop_at, "choose settings with which the tasks do not all stop together"
    interrupted(start_training(choice, tmp_path / "cut").steps(), stop_at)
    resumed = start_training(choice, tmp_path / "cut", resume=True).complete()
    one, other = (load_bundle(run.folder / "model").model.state_dict() for run in (whole, resumed))
    assert all(one[name].equal(other[name]) for name in one)
    assert whole.summary.task_bests == resumed.summary.task_bests
    for kind in ("step", "evaluation"):
        first, second = lines(whole.folder, kind), lines(resumed.folder, kind)
        timed = ("seconds",)
        assert [{k: v for k, v in line.items() if k not in timed} for line in first] == [
            {k: v for k, v in line.items() if k not in timed} for line in second
        ]


def test_checkpoints_without_the_new_fields_can_be_resumed(
    tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*tiny_settings, "train.epochs=1", "train.save_every=4"]
    recipe = read_recipe(QUICKSTART, settings)
    running = start_training(recipe, tmp_path / "run")
    interrupted(running.steps(), 5)
    state = {**vars(running.session.progress)}
    del running
    from polytask.training import state as module  # noqa: PLC0415

    read = module.ckpt.read_checkpoint

    def without(path: Path) -> object:
        saved = read(path)
        for field in module.NEW_FIELDS:
            saved.state.pop(field, None)
        return saved

    monkeypatch.setattr(module.ckpt, "read_checkpoint", without)
    assert set(module.NEW_FIELDS) <= set(state)
    assert start_training(recipe, tmp_path / "run", resume=True).complete().summary.steps == 10


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["train.stop=per_task"], "stop: per_task needs `patience`"),
        (["train.stop=never"], "stop: must be one of all, per_task"),
    ],
)
def test_other_values_are_refused(settings: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_recipe(QUICKSTART, settings)


def test_tasks_with_a_fixed_number_of_steps_cannot_stop(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="stop: per_task cannot be combined with the sampler in_order"):
        train(replace(recipe, sampler=replace(recipe.sampler, name="in_order")), tmp_path / "run")
