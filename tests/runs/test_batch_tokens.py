"""`train.batch_tokens`: steps of about the same number of tokens, and epochs that contain every example once."""

import math
from pathlib import Path

import numpy as np
import pytest

from polytask import UserError, read_recipe, rehearse, start_training, train
from polytask.runs.bundle import load_bundle

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
TOKENS = ["train.batch_tokens=600", "train.batch_size=32"]


def test_steps_have_about_that_many_tokens(tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, *TOKENS, "train.steps_per_epoch=null", "train.epochs=1", "tasks.similarity.head=cross"]
    running = start_training(read_recipe(QUICKSTART, settings), tmp_path / "run")
    prepared = running.prepared
    assert prepared.batch_sizes is not None
    steps = 0.0
    for task, count in prepared.batch_sizes.items():
        lengths = prepared.tasks[task].splits["train"].store.lengths()
        special = {"opinion": 2, "question": 4, "similarity": 3}[task]  # questions are separate sequences
        assert count == round(600 / (lengths.sum(1) + special).mean())
        steps += len(lengths) / count
    assert prepared.steps_per_epoch == math.ceil(steps)
    assert len(set(prepared.batch_sizes.values())) > 1
    reports = list(running.steps())
    assert len(reports) == prepared.steps_per_epoch
    assert np.mean([report.tokens for report in reports]) == pytest.approx(600, rel=0.05)
    for report in reports:
        (task,) = report.losses
        assert report.examples == prepared.batch_sizes[task]


def test_an_epoch_contains_every_example_once(tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, *TOKENS, "train.steps_per_epoch=null", "train.epochs=1", "sampler=sequential"]
    running = start_training(read_recipe(QUICKSTART, [*settings, "train.accumulate=2"]), tmp_path / "run")
    list(running.steps())
    for task, given in running.session.feed.given.items():
        size = len(running.prepared.tasks[task].splits["train"])
        assert abs(given - size) <= 2 * 2 * running.prepared.batch_sizes[task]  # type: ignore[index]


def test_a_run_resumes_to_the_same_weights(tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, *TOKENS, "sampler=mixed", "train.epochs=1", "train.save_every=4"]
    whole = train(QUICKSTART, tmp_path / "whole", settings)
    recipe = read_recipe(QUICKSTART, settings)
    for report in start_training(recipe, tmp_path / "cut").steps():
        if report.step == 6:
            break
    resumed = start_training(recipe, tmp_path / "cut", resume=True).complete()
    one, other = (load_bundle(run.folder / "model").model.state_dict() for run in (whole, resumed))
    assert all(one[name].equal(other[name]) for name in one)
    assert whole.summary.steps == resumed.summary.steps == 10


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["train.batch_tokens=600", "train.batch_size=16"], r"batch_tokens: cannot be combined with batch_size"),
        (["train.batch_tokens=0"], r"batch_tokens: must be in \[1"),
        (["train.batch_tokens=many"], r"batch_tokens: must be an integer"),
    ],
)
def test_other_values_are_refused(settings: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_recipe(QUICKSTART, settings)


def test_a_batch_has_at_least_one_example(tiny_settings: list[str]) -> None:
    prepared = rehearse(read_recipe(QUICKSTART, [*tiny_settings, "train.batch_tokens=10", "train.batch_size=32"]))
    assert prepared.batch_sizes == {"opinion": 1, "question": 1, "similarity": 1}
