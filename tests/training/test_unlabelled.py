"""Rows that only teachers label (`tasks.T.unlabelled`): their loss, who uses them, resuming, and what is refused."""

import csv
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask import Finished, Recipe, UserError, add_task, prepare, read_recipe, start_training, train
from polytask.losses import LOSSES
from polytask.losses.base import Loss
from polytask.recipe.reading import recipe_from
from polytask.tasks.training_rows import TrainingRows, training_rows
from polytask.types import NO_LABEL, Draw

from .conftest import assert_resumes_with_the_same_bits

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
SHORT = ["train.steps_per_epoch=4", "train.epochs=2"]
COLUMNS = {
    "opinion": [("text",), *((f"Film number {n} was a {word} one.",) for n in range(20) for word in ("good", "poor"))],
    "question": [("question1", "question2"), *((f"Why {n}?", f"What is {n} for?") for n in range(40))],
    "similarity": [("sentence1", "sentence2"), *((f"House {n} is old.", f"{n} is an old house.") for n in range(40))],
}
ROWS = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each task of the quick start, a file with texts and without labels."""
    folder = tmp_path_factory.mktemp("texts")
    for task, rows in COLUMNS.items():
        with (folder / f"{task}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    return {task: folder / f"{task}.csv" for task in COLUMNS}


@pytest.fixture
def taught(tiny_settings: list[str], tiny_run: Finished, files: dict[str, Path]) -> Any:
    """taught(*settings, tasks): the quick start with unlabelled rows and a teacher for these tasks."""

    def read(*settings: str, tasks: tuple[str, ...] = tuple(COLUMNS)) -> Recipe:
        given = [f"tasks.{task}.unlabelled={files[task]}" for task in tasks]
        given += [f"teachers.{task}={tiny_run.folder}" for task in tasks]
        return read_recipe(QUICKSTART, [*tiny_settings, *SHORT, *given, *settings])

    return read


# --- the loss ---------------------------------------------------------------------------------------------------------
def by_hand(outputs: Tensor, labels: Tensor, teacher: Tensor, kind: str, progress: float) -> Tensor:
    """The mean over all examples of (1 - progress) times the teacher's part, and of the labels' part where there is
    one."""
    total = torch.zeros(())
    for output, label, target in zip(outputs, labels, teacher, strict=True):
        known = label != NO_LABEL
        if kind == "classes":
            distilled = -(target.softmax(-1) * output.log_softmax(-1)).sum()
            own = -output.log_softmax(-1)[label] if known else torch.zeros(())
        elif kind == "yes_no":
            distilled = F.binary_cross_entropy_with_logits(output, target.sigmoid())
            own = F.binary_cross_entropy_with_logits(output, label) if known else torch.zeros(())
        else:
            distilled = (output - target) ** 2
            own = (output - label) ** 2 if known else torch.zeros(())
        total = total + progress * own + (1 - progress) * distilled
    return total / len(outputs)


@pytest.mark.parametrize("task", COLUMNS)
def test_rows_without_a_label_learn_from_the_teacher_only(task: str, taught: Any, tmp_path: Path) -> None:
    running = start_training(taught(), tmp_path / "run")
    session = running.session
    stream = session.feed.next_batch([Draw(task, 64)]).together
    labels, teacher = stream.labels[task], stream.teacher_outputs[task]
    without = labels == NO_LABEL
    assert 0 < without.sum() < 64
    session.model.eval()
    with torch.no_grad():
        outputs = session.model.run(stream).outputs[task]
    outputs.requires_grad_()
    kind = running.recipe.tasks[task].kind
    for progress in (0.0, 0.3, 1.0):
        found = session.objective.task_losses(session.model, stream, {task: outputs}, progress)[task]
        expected = by_hand(outputs, labels, teacher, kind, progress)
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)
        gradients = [torch.autograd.grad(loss, outputs)[0] for loss in (found, expected)]
        torch.testing.assert_close(*gradients, atol=1e-7, rtol=1e-4)
        assert bool((gradients[0][without] == 0).all()) == (progress == 1)
    labelled = labels[~without]
    assert labelled.unique().numel() > 1
    assert labelled.min() >= 0


def test_a_loss_with_class_weights(taught: Any, tmp_path: Path) -> None:
    """The weights are those of the labelled rows."""
    weighted = "tasks.opinion.loss={name: focal, class_weights: balanced}"
    running = start_training(taught(weighted), tmp_path / "run")
    plain = start_training(taught(weighted, "tasks.opinion.unlabelled=null"), tmp_path / "plain")
    one, other = (r.session.objective.losses["opinion"] for r in (running, plain))
    assert one.counts == other.counts
    stream = running.session.feed.next_batch([Draw("opinion", 32)]).together
    labels = stream.labels["opinion"]
    known = labels != NO_LABEL
    outputs = torch.randn(32, 5)
    found = running.session.objective.task_losses(running.session.model, stream, {"opinion": outputs}, 1.0)["opinion"]
    expected = known.float().mean() * one(outputs[known], labels[known])
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


# --- who uses the rows ------------------------------------------------------------------------------------------------
def test_they_are_training_examples_and_nothing_else(taught: Any, tmp_path: Path) -> None:
    """Epochs and the sampler count them; scales, scored training rows and what EWC samples are of labelled rows."""
    options = ["train.steps_per_epoch=null", "train.evaluate_train=1000", "train.loss_scale=even"]
    options += ["tasks.similarity.head=cross", "sampler=proportional"]
    running = start_training(taught(*options), tmp_path / "run")
    plain = start_training(taught(*options, "tasks.similarity.unlabelled=null"), tmp_path / "plain")
    one, other = (r.prepared.tasks["similarity"] for r in (running, plain))
    assert one.labels == other.labels
    assert one.labels.standardized_by is not None
    weights = [r.session.objective.policy.context.weights for r in (running, plain)]
    assert weights[0] == weights[1]
    labelled = len(one.splits["train"])
    assert len(running.session.feed.examples["similarity"]) == labelled + ROWS
    batch = running.recipe.train.batch_size
    total = sum(len(task.splits["train"]) + ROWS for task in running.prepared.tasks.values())
    assert running.prepared.steps_per_epoch == -(-total // batch)
    scored: Any = running.session.evaluate
    assert len(scored.training_rows["similarity"]) == labelled
    samples = running.session.feed.sample("similarity", 10**6)
    assert sum(bool(stream.labels["similarity"] >= 0) for stream in samples) == labelled


@pytest.mark.parametrize("policy", ["gem", "replay"])
def test_memories_keep_labelled_rows(policy: str, taught: Any, tmp_path: Path) -> None:
    running = start_training(taught(f"policy={policy}"), tmp_path / "run")
    list(running.steps())
    memory = running.session.feed.memory
    assert memory is not None
    for task, kept in memory.kept.items():
        assert kept
        assert max(kept) < len(running.prepared.tasks[task].splits["train"])


def test_gathered_texts_are_those_of_both_files(taught: Any, files: dict[str, Path]) -> None:
    rows = TrainingRows(*(prepare(taught()).tasks["question"].splits[name] for name in ("train", "unlabelled")))
    order = np.random.default_rng(0).permutation(len(rows))[:60]
    for index, texts in zip(order.tolist(), rows.gather(order), strict=True):
        expected = rows.tokens(index)
        assert [ids.tolist() for ids in texts] == [ids.tolist() for ids in expected]
    assert (rows.labels[-ROWS:] == NO_LABEL).all()
    examples = list(rows.examples())
    assert len(examples) == len(rows)
    assert (examples[-1].texts, examples[-1].label) == (("Why 39?", "What is 39 for?"), None)
    assert examples[0].label in ("no", "yes")
    assert len(rows.gather([])) == 0


def test_word_tags_of_both_files(tmp_path: Path, tiny_settings: list[str]) -> None:
    (tmp_path / "a.csv").write_text("text,tags,label\na film,D N,yes\nfilms run,N V,no\n")
    (tmp_path / "b.csv").write_text("text,tags\nrun films,V N\n")
    task = {"kind": "yes_no", "text": "text", "label": "label", "tags": "tags", "train": "a.csv", "dev": "a.csv"}
    content = {"tasks": {"one": {**task, "unlabelled": "b.csv"}}, "teachers": {"one": "unused"}}
    recipe = recipe_from(content, [tiny_settings[0]], folder=tmp_path)
    task_read = prepare(replace(recipe, teachers={})).tasks["one"]
    texts = training_rows(task_read).gather([2, 1, 0])
    assert texts.tags is not None
    found = [
        texts.tags[start : start + length].tolist()
        for (start,), (length,) in zip(texts.starts_NW.tolist(), texts.lengths_NW.tolist(), strict=True)
    ]
    splits = task_read.splits
    separate = [splits["unlabelled"].gather([0]), *(splits["train"].gather([i]) for i in (1, 0))]
    for tags, own in zip(found, separate, strict=True):
        assert own.tags is not None
        start, length = own.starts_NW.item(), own.lengths_NW.item()
        assert tags == own.tags[start : start + length].tolist()
        assert max(tags) > 0


# --- whole runs -------------------------------------------------------------------------------------------------------
def test_a_run_is_resumed_with_the_same_bits(taught: Any, tmp_path: Path) -> None:
    recipe = taught("train.save_every=2", "sampler=mixed")
    assert_resumes_with_the_same_bits(recipe, tmp_path)


def test_other_rows_are_refused(taught: Any, tmp_path: Path) -> None:
    recipe, file = taught("train.save_every=2"), tmp_path / "more.csv"
    file.write_text("text\none film\nanother film\n")
    spec = replace(recipe.tasks["opinion"], unlabelled=str(file))
    recipe = replace(recipe, tasks={**recipe.tasks, "opinion": spec})
    list(itertools.islice(start_training(recipe, tmp_path / "run").steps(), 3))
    file.write_text("text\none film\nanother film\na third\n")
    with pytest.raises(UserError, match=r"tasks.opinion.unlabelled: .*more.csv: had 2 rows, has 3"):
        start_training(recipe, tmp_path / "run", resume=True)


def test_tasks_can_be_added_to_the_finished_run(taught: Any, tmp_path: Path) -> None:
    """The new run has no teachers, and does not read the old tasks' rows without labels."""
    recipe = taught(tasks=("opinion",))
    finished = train(replace(recipe, tasks={"opinion": recipe.tasks["opinion"]}), tmp_path / "old")
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert summary["tasks"]["opinion"]["data"]["unlabelled"]["rows"] == ROWS
    new = {"tasks": {"question": read_recipe(QUICKSTART).tasks["question"]}}
    spec = new["tasks"]["question"]
    content = {"kind": spec.kind, "text": list(spec.text), "label": spec.label, "train": spec.train, "dev": spec.dev}
    settings = [*SHORT, "train.device=cpu"]
    added = add_task(finished.folder, {"tasks": {"question": content}}, tmp_path / "new", settings)
    assert read_recipe(added.folder / "recipe.yaml").tasks["opinion"].unlabelled is None


# --- what is refused --------------------------------------------------------------------------------------------------
class WithoutTerms(Loss):
    kinds = ("classes",)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels)


def test_refused(taught: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(message: str, *settings: str) -> None:
        with pytest.raises(UserError, match=message):
            start_training(taught(*settings, tasks=("opinion",)), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    both = "regularizers=[{name: r_drop, both_losses: true}]"
    refused("tasks.opinion.unlabelled: the regularizer r_drop with these options needs labels for all rows", both)
    monkeypatch.setitem(LOSSES, "without_terms", WithoutTerms)
    refused("tasks.opinion.unlabelled: the loss WithoutTerms needs labels", "tasks.opinion.loss=without_terms")
    (tmp_path / "empty.csv").write_text("text\n\n")
    refused(r"empty.csv.*", f"tasks.opinion.unlabelled={tmp_path / 'empty.csv'}")
    (tmp_path / "other.csv").write_text("sentence\na film\n")
    refused("other.csv: .*no column 'text'", f"tasks.opinion.unlabelled={tmp_path / 'other.csv'}")


def test_regularizers_that_need_no_labels(taught: Any, tmp_path: Path) -> None:
    options = ["regularizers=[r_drop, smart, in_batch_negatives]", "sampler=mixed"]
    for report in start_training(taught(*options), tmp_path / "run").steps():
        assert np.isfinite([*report.losses.values(), *report.penalties.values()]).all()
