"""Whole runs on a part of a training file: what they are trained on, and that a resumed run cannot change it."""

import itertools
import json
from pathlib import Path

import pytest

from polytask import UserError, evaluate_run, read_recipe, rehearse, start_training, train

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
FEW = "tasks.opinion.rows={sample: 40, seed: 3}"


def test_the_run_sees_only_the_chosen_rows(tmp_path: Path, tiny_settings: list[str]) -> None:
    finished = train(QUICKSTART, tmp_path / "run", [*tiny_settings, FEW, "tasks.question.rows=50"])
    data = {task: about.data for task, about in finished.summary.tasks.items()}
    assert [data[task]["train"]["rows"] for task in data] == [40, 50, 270]
    assert [data[task]["dev"]["rows"] for task in data] == [150, 120, 90]
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["data"]["opinion"]["train"]["rows"] == 40
    assert evaluate_run(tmp_path / "run", "train").tasks["opinion"].examples == 40


def test_an_epoch_has_the_chosen_rows_once(tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, FEW, "tasks.question.rows=50", "tasks.similarity.rows=6", "train.steps_per_epoch=null"]
    assert rehearse(read_recipe(QUICKSTART, settings)).steps_per_epoch == 6  # 96 examples, 16 in a step


def test_the_sample_does_not_depend_on_the_seed_of_the_run(tiny_settings: list[str]) -> None:
    rows = [
        rehearse(read_recipe(QUICKSTART, [*tiny_settings, FEW, f"seed={seed}"])).tasks["opinion"].splits["train"].rows
        for seed in (0, 1)
    ]
    assert rows[0].tolist() == rows[1].tolist()


def test_a_resumed_run_has_the_same_rows(tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, "train.save_every=3"]
    straight = train(QUICKSTART, tmp_path / "straight", [*settings, FEW])
    recipe = read_recipe(QUICKSTART, [*settings, FEW])
    list(itertools.islice(start_training(recipe, tmp_path / "stopped").steps(), 8))
    for rows, change in (
        ("{sample: 40, seed: 4}", r"tasks\.opinion\.rows\.seed: was 3, is 4"),
        ("{sample: 41, seed: 3}", r"tasks\.opinion\.rows\.sample: was 40, is 41"),
        ("40", r"tasks\.opinion\.rows: was not set, is 40"),
        ("null", r"tasks\.opinion\.rows\.sample: was 40, is not set"),
    ):
        other = read_recipe(QUICKSTART, [*settings, f"tasks.opinion.rows={rows}"])
        with pytest.raises(UserError, match=change):
            start_training(other, tmp_path / "stopped", resume=True)
    resumed = train(recipe, tmp_path / "stopped", resume=True)
    files = [run.folder / "model" / "model.safetensors" for run in (straight, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()
