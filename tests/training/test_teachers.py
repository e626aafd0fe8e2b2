"""Whole runs with teachers: the mean of several, the first step's targets, refused teachers, and resuming."""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from scipy.special import expit, logit, softmax

import polytask
from polytask import Finished, Recipe, UserError, read_recipe, seeds, start_training, train
from polytask.runs.teachers import mean_outputs

from .conftest import assert_resumes_with_the_same_bits

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
SHORT = ["train.steps_per_epoch=3", "train.epochs=2"]


def single_task(settings: list[str], task: str) -> Recipe:
    recipe = read_recipe(QUICKSTART, settings)
    return replace(recipe, tasks={task: recipe.tasks[task]})


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    """A run with only the task opinion."""
    return train(single_task([*tiny_settings, *SHORT], "opinion"), tmp_path_factory.mktemp("teacher") / "run")


def taught(tiny_settings: list[str], *settings: str, **teachers: Path | Sequence[Path]) -> Recipe:
    given = [
        f"teachers.{task}={runs if isinstance(runs, Path) else [str(run) for run in runs]}"
        for task, runs in teachers.items()
    ]
    return read_recipe(QUICKSTART, [*tiny_settings, *SHORT, *given, *settings])


# --- several teachers -------------------------------------------------------------------------------------------------
def test_means_of_predictions() -> None:
    """Against the definition, in float64."""
    torch.manual_seed(0)
    three = [4 * torch.randn(7, 5) for _ in range(3)]
    classes, double = mean_outputs(three, "classes"), [one.double().numpy() for one in three]
    assert classes.numpy() == pytest.approx(np.log(np.mean([softmax(one, -1) for one in double], 0)), abs=1e-5)
    yes = mean_outputs([one[:, 0] for one in three], "yes_no")
    assert yes.numpy() == pytest.approx(logit(np.mean([expit(one[:, 0]) for one in double], 0)), abs=1e-5)
    scores = mean_outputs([one[:, 0] for one in three], "score")
    assert scores.numpy() == pytest.approx(np.mean([one[:, 0] for one in double], 0), abs=1e-6)


def test_the_mean_of_certain_predictions_is_finite() -> None:
    certain = torch.tensor([[300.0, -300.0, 0.0]])
    assert mean_outputs([certain, certain], "classes").isfinite().all()
    assert mean_outputs([certain[0], certain[0]], "yes_no").tolist() == [300.0, -300.0, 0.0]


def test_the_outputs_of_one_teacher_are_unchanged() -> None:
    outputs = torch.randn(4, 3)
    assert mean_outputs([outputs], "classes") is outputs


def test_a_list_of_one_is_a_string(tmp_path: Path, tiny_settings: list[str], teacher: Finished) -> None:
    runs = []
    for name, given in {"string": teacher.folder, "list": [teacher.folder]}.items():
        running = start_training(taught(tiny_settings, opinion=given), tmp_path / name)
        runs.append([report.losses for report in running.steps()])
        assert running.recipe.teachers == {"opinion": (str(teacher.folder),)}
    assert runs[0] == runs[1]


@pytest.mark.parametrize("number", [1, 2])
def test_the_first_step_uses_only_the_teachers(
    tmp_path: Path, tiny_settings: list[str], teacher: Finished, tiny_run: Finished, number: int
) -> None:
    """Against the mean of the probabilities that the teachers predict for the same texts."""
    teachers = [teacher.folder, tiny_run.folder][:number]
    recipe = taught(tiny_settings, opinion=teachers)
    report = next(start_training(recipe, tmp_path / "run").steps())
    (task,) = report.losses
    assert task == "opinion"

    again = start_training(recipe, tmp_path / "again")
    session = again.session
    (draw,) = session.sampler.next_step()
    stream = session.feed.next_batch([draw]).together
    session.feed.given[task] -= draw.count
    examples = list(again.prepared.tasks[task].splits["train"].examples())
    texts = [examples[i].texts[0] for i in session.feed.next_indices(draw)]
    models = [polytask.load(folder) for folder in teachers]
    for model in models:
        model.bundle.temperatures.clear()  # a student learns the outputs as they are, without calibration
    predictions = [model.predict(task, texts) for model in models]
    all_probabilities = [[list((one.probabilities or {}).values()) for one in said] for said in predictions]
    probabilities = torch.tensor(all_probabilities).mean(0)
    session.model.train()
    torch.manual_seed(seeds.derive(recipe.seed, "step", 1))  # the dropout of the run's first step
    outputs = session.model.run(stream).outputs[task]
    expected = -(probabilities * outputs.log_softmax(-1)).sum(-1).mean()
    assert report.losses[task] == pytest.approx(expected.item(), rel=1e-5)
    by_labels = session.model.head(task).loss(outputs, stream.labels[task])
    assert report.losses[task] != pytest.approx(by_labels.item(), rel=1e-3)


def test_a_student_of_teachers_for_every_kind(
    tmp_path: Path, tiny_settings: list[str], tiny_run: Finished, teacher: Finished
) -> None:
    """Only tasks with a teacher are distilled; without annealing the weight of the teachers is constant."""
    everything = {"question": tiny_run.folder, "similarity": tiny_run.folder, "opinion": teacher.folder}
    options = ["train.teacher_annealing=false", "train.teacher_weight=0.7", "train.teacher_temperature=2"]
    half = taught(tiny_settings, *options, **everything)
    running = start_training(half, tmp_path / "all")
    assert running.session.objective.teacher_weights == dict.fromkeys(everything, 0.7)
    reports = list(running.steps())
    assert {task for report in reports for task in report.losses} == set(everything)
    one = taught(tiny_settings, question=tiny_run.folder)
    alone = list(itertools.islice(start_training(one, tmp_path / "one").steps(), 2))
    plain = list(itertools.islice(start_training(taught(tiny_settings), tmp_path / "none").steps(), 2))
    assert alone[0].losses == plain[0].losses  # opinion, which has no teacher here
    assert alone[1].losses["question"] != plain[1].losses["question"]


def test_a_student_learns_the_predictions_of_its_teacher(
    tmp_path: Path, tiny_settings: list[str], tiny_run: Finished
) -> None:
    """A model that starts as its teacher has no gradient from the teacher's outputs."""
    settings = ["train.steps_per_epoch=1", "train.epochs=1", "train.clip=null", "dropout=0", "attention_dropout=0"]
    recipe = taught(tiny_settings, *settings, opinion=tiny_run.folder)
    running = start_training(recipe, tmp_path / "run")
    norms = [next(running.steps()).gradient_norm]
    running = start_training(recipe, tmp_path / "same")
    running.session.model.load_state_dict(polytask.load(tiny_run.folder).bundle.model.state_dict())
    for module in running.session.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    norms.append(next(running.steps()).gradient_norm)
    assert norms[1] < 1e-4 * norms[0]


def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path, tiny_settings: list[str], teacher: Finished) -> None:
    recipe = taught(tiny_settings, "train.save_every=2", opinion=teacher.folder)
    assert_resumes_with_the_same_bits(recipe, tmp_path)


def test_a_run_with_the_recipe_of_an_earlier_version_is_resumed(
    tmp_path: Path, tiny_settings: list[str], teacher: Finished
) -> None:
    """It has a string in place of the list, no teacher_weight, and no hash of the teacher."""
    recipe, run = taught(tiny_settings, "train.save_every=2", opinion=teacher.folder), tmp_path / "run"
    list(itertools.islice(start_training(recipe, run).steps(), 3))
    content = yaml.safe_load((run / "recipe.yaml").read_text())
    assert content["teachers"] == {"opinion": [str(teacher.folder)]}
    content["teachers"] = {"opinion": str(teacher.folder)}
    del content["train"]["teacher_weight"]
    (run / "recipe.yaml").write_text(yaml.safe_dump(content))
    environment = (run / "environment.json").read_text()
    assert "teachers_sha256" in environment
    (run / "environment.json").write_text(environment.replace("teachers_sha256", "unused"))
    assert start_training(recipe, run, resume=True).session.step == 2


def test_other_teachers_and_other_weights_of_a_teacher_are_refused(
    tmp_path: Path, tiny_settings: list[str], teacher: Finished, tiny_run: Finished
) -> None:
    mine = shutil.copytree(teacher.folder, tmp_path / "teacher")
    recipe, run = taught(tiny_settings, "train.save_every=2", opinion=mine), tmp_path / "run"
    list(itertools.islice(start_training(recipe, run).steps(), 3))
    both = taught(tiny_settings, "train.save_every=2", opinion=[mine, tiny_run.folder])
    with pytest.raises(UserError, match=r"another recipe:\n  teachers.opinion: was \[.*\], is \[.*, .*\]"):
        start_training(both, run, resume=True)
    shutil.copy(tiny_run.folder / "model" / "model.safetensors", mine / "model" / "model.safetensors")
    with pytest.raises(UserError, match=rf"other data:\n  teachers: {mine}: its weights have changed"):
        start_training(recipe, run, resume=True)


def test_refused(tmp_path: Path, tiny_settings: list[str], teacher: Finished) -> None:
    def refused(message: str, *settings: str, **teachers: Path | Sequence[Path]) -> None:
        with pytest.raises(UserError, match=message):
            start_training(taught(tiny_settings, *settings, **teachers), tmp_path / "run")
        assert not (tmp_path / "run").exists()  # nothing is written before everything is right

    refused("teachers.question: there is no task 'question' in .*. Valid: opinion", question=teacher.folder)
    order = "tasks.opinion.classes=[neutral, very negative, negative, positive, very positive]"
    refused("teachers.opinion: .* has other labels for opinion than this recipe", order, opinion=teacher.folder)
    pair = "tasks.opinion={kind: classes, classes: [very negative, negative, neutral, positive, very positive], "
    pair += "text: [text, text], label: opinion, train: sample:opinions-train, dev: sample:opinions-dev}"
    refused("teachers.opinion: .* another number of texts for opinion", pair, opinion=teacher.folder)
    refused("teachers.opinion: .*nothing: there is no such run", opinion=tmp_path / "nothing")
    refused(r"teachers.opinion\[1\]: .*nothing: there is no such run", opinion=[teacher.folder, tmp_path / "nothing"])
    refused(r"teachers.question\[0\]: there is no task 'question' in .*", question=[teacher.folder, teacher.folder])
    (tmp_path / "unfinished").mkdir()
    refused("teachers.opinion: .* the run has not finished", opinion=tmp_path / "unfinished")
    refused("teachers: there is no task 'opinions' .did you mean opinion", opinions=teacher.folder)
