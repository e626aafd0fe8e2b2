"""Whole runs with teachers: the first step's targets, refused teachers, and resuming."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import polytask
from polytask import Finished, Recipe, UserError, read_recipe, seeds, start_training, train
from polytask.training.checkpoint import optimizer_tensors

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
SHORT = ["train.steps_per_epoch=3", "train.epochs=2"]


def single_task(settings: list[str], task: str) -> Recipe:
    recipe = read_recipe(QUICKSTART, settings)
    return replace(recipe, tasks={task: recipe.tasks[task]})


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    """A run with only the task opinion."""
    return train(single_task([*tiny_settings, *SHORT], "opinion"), tmp_path_factory.mktemp("teacher") / "run")


def taught(tiny_settings: list[str], *settings: str, **teachers: Path) -> Recipe:
    given = [f"teachers.{task}={folder}" for task, folder in teachers.items()]
    return read_recipe(QUICKSTART, [*tiny_settings, *SHORT, *given, *settings])


def test_the_first_step_uses_only_the_teacher(tmp_path: Path, tiny_settings: list[str], teacher: Finished) -> None:
    """Against the probabilities that the teacher predicts for the same texts."""
    recipe = taught(tiny_settings, opinion=teacher.folder)
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
    said = polytask.load(teacher.folder).predict(task, texts)
    probabilities = torch.tensor([list((prediction.probabilities or {}).values()) for prediction in said])
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
    """Only tasks with a teacher are distilled; without annealing the teachers count half until the end."""
    everything = {"question": tiny_run.folder, "similarity": tiny_run.folder, "opinion": teacher.folder}
    half = taught(tiny_settings, "train.teacher_annealing=false", "train.teacher_temperature=2", **everything)
    reports = list(start_training(half, tmp_path / "all").steps())
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
    straight = start_training(recipe, tmp_path / "straight")
    list(straight.steps())
    list(itertools.islice(start_training(recipe, tmp_path / "stopped").steps(), 3))
    resumed = start_training(recipe, tmp_path / "stopped", resume=True)
    assert resumed.session.step == 2
    list(resumed.steps())
    one, other = (
        {**r.session.model.state_dict(), **optimizer_tensors(r.session.optimizer)} for r in (straight, resumed)
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_refused(tmp_path: Path, tiny_settings: list[str], teacher: Finished) -> None:
    def refused(message: str, *settings: str, **teachers: Path) -> None:
        with pytest.raises(UserError, match=message):
            start_training(taught(tiny_settings, *settings, **teachers), tmp_path / "run")
        assert not (tmp_path / "run").exists()  # nothing is written before everything is right

    refused("teachers.question: there is no task of .* 'question'. Valid: opinion", question=teacher.folder)
    order = "tasks.opinion.classes=[neutral, very negative, negative, positive, very positive]"
    refused("teachers.opinion: .* has other labels for opinion than this recipe", order, opinion=teacher.folder)
    pair = "tasks.opinion={kind: classes, classes: [very negative, negative, neutral, positive, very positive], "
    pair += "text: [text, text], label: opinion, train: sample:opinions-train, dev: sample:opinions-dev}"
    refused("teachers.opinion: .* another number of texts for opinion", pair, opinion=teacher.folder)
    refused("teachers.opinion: .*nothing: there is no such run", opinion=tmp_path / "nothing")
    (tmp_path / "unfinished").mkdir()
    refused("teachers.opinion: .* the run has not finished", opinion=tmp_path / "unfinished")
    refused("teachers: there is no task 'opinions' .did you mean opinion", opinions=teacher.folder)
