"""The scale of losses: 1 over the loss of a guess that ignores the texts, and how whole runs use it."""

import itertools
import math
from pathlib import Path

import pytest
import torch

from polytask import evaluate_run, load, read_recipe, start_training, train
from polytask.heads import HEADS
from polytask.losses import LOSSES
from polytask.training.loss_scale import even_scale
from polytask.types import YES_NO, LabelSpace

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
FIVE = LabelSpace("classes", tuple("abcde"))
EVEN = ["train.loss_scale=even", "tasks.similarity.standardize=true"]
PLAIN = ["train.loss_scale=none", "tasks.similarity.standardize=false"]


def test_scales_by_hand() -> None:
    classes = even_scale(HEADS["linear"]("t", FIVE, 8), None, torch.tensor([0, 4, 4]), 32)
    assert classes == pytest.approx(1 / math.log(5))
    yes_no = even_scale(HEADS["cosine"]("t", YES_NO, 8), None, torch.tensor([0.0, 1.0, 1.0]), 32)
    assert yes_no == pytest.approx(1 / math.log(2))
    scores = torch.tensor([0.2, 0.4, 0.9])
    for head in ("cross", "cosine"):
        score = even_scale(HEADS[head]("t", LabelSpace("score", low=0, high=5), 8), None, scores, 32)
        assert score == pytest.approx(1 / scores.var(correction=0).item())


def test_scales_of_plain_text() -> None:
    texts = torch.zeros(100, dtype=torch.int64)
    mlm = even_scale(HEADS["mlm"]("t", LabelSpace("text", vocabulary=300), 8), None, texts, 32)
    assert mlm == pytest.approx(1 / math.log(300))
    simcse = even_scale(HEADS["simcse"]("t", LabelSpace("text", vocabulary=300), 8), None, texts, 32)
    assert simcse == pytest.approx(1 / math.log(32))  # the texts of a batch are compared with each other


def test_a_loss_of_the_recipe_has_its_own_scale() -> None:
    labels = torch.tensor([0, 2, 2, 4])
    focal = LOSSES["focal"](FIVE, (1, 0, 2, 0, 1))
    scale = even_scale(HEADS["linear"]("t", FIVE, 8), focal, labels, 32)
    assert scale == pytest.approx(1 / (0.8**2 * math.log(5)))


@pytest.mark.parametrize("score", [0.5, 0.1, 0.999])
@pytest.mark.parametrize("rows", [4, 10, 5000])
def test_labels_that_are_all_the_same_have_no_scale(rows: int, score: float) -> None:
    """The mean of many equal numbers in float32 differs from them by a rounding error."""
    head = HEADS["cross"]("t", LabelSpace("score", low=0, high=5), 8)
    assert even_scale(head, None, torch.full((rows,), score), 32) == 1.0


def test_many_classes_need_little_memory() -> None:
    names = tuple(map(str, range(10_000)))
    scale = even_scale(HEADS["linear"]("t", LabelSpace("classes", names), 1), None, torch.arange(9_000), 32)
    assert scale == pytest.approx(1 / math.log(10_000))


def test_all_tasks_of_a_run_start_at_1(tmp_path: Path, tiny_settings: list[str]) -> None:
    """With heads that start at zero; a weight of the recipe is an additional factor."""
    heads = ["sampler=mixed", "tasks.question.head=cross", "tasks.similarity.head=cross", "tasks.question.weight=3"]
    running = start_training(read_recipe(QUICKSTART, [*tiny_settings, *heads, *EVEN]), tmp_path / "run")
    weights = running.session.objective.policy.context.weights
    losses = next(running.steps()).losses
    assert losses["opinion"] * weights["opinion"] == pytest.approx(1, abs=0.1)
    assert losses["question"] * weights["question"] == pytest.approx(3, abs=0.3)
    # The batch's own variance differs from that of the training rows.
    assert losses["similarity"] * weights["similarity"] == pytest.approx(1, abs=0.5)


def test_regularizers_have_the_same_weights(tmp_path: Path, tiny_settings: list[str]) -> None:
    running = start_training(read_recipe(QUICKSTART, [*tiny_settings, "regularizers=[r_drop]", *EVEN]), tmp_path / "r")
    objective = running.session.objective
    assert objective.regularizers["r_drop"].context.weights == objective.policy.context.weights


def test_a_standardized_head_predicts_the_mean_before_training_and_comes_back_from_disk(
    tmp_path: Path, tiny_settings: list[str]
) -> None:
    settings = [*tiny_settings, "tasks.similarity.head=cross", "train.epochs=1", *EVEN]
    running = start_training(read_recipe(QUICKSTART, settings), tmp_path / "run")
    labels = running.prepared.tasks["similarity"].labels
    assert labels.standardized_by is not None
    mean, deviation = labels.standardized_by
    start = running.evaluate("dev").tasks["similarity"]
    assert start.loss < 1.3 * (deviation / 5) ** 2  # the loss of the mean is the variance
    saved = train(QUICKSTART, tmp_path / "saved", settings)
    model = load(saved.folder)
    assert model.bundle.labels["similarity"] == labels
    (prediction,) = model.predict("similarity", "a cat", "a dog")
    assert isinstance(prediction.label, float)
    assert abs(prediction.label - mean) < 3 * deviation
    now, then = evaluate_run(saved.folder).tasks["similarity"], saved.evaluations["dev"].tasks["similarity"]
    assert now.value == pytest.approx(then.value, abs=1e-6)


def test_teachers_may_be_standardized_by_other_scores(tmp_path: Path, tiny_settings: list[str]) -> None:
    """Outputs are scores scaled to [0, 1], whatever a head learns."""
    settings = [*tiny_settings, "tasks.similarity.head=cross", "train.epochs=1", "train.steps_per_epoch=2"]
    teacher = train(QUICKSTART, tmp_path / "teacher", [*settings, *PLAIN])
    taught = read_recipe(QUICKSTART, [*settings, *EVEN, f"teachers.similarity={teacher.folder}"])
    reports = list(itertools.islice(start_training(taught, tmp_path / "run").steps(), 2))
    assert all(math.isfinite(loss) for report in reports for loss in report.losses.values())


def test_a_task_that_is_not_trained_needs_no_training_file(tmp_path: Path, tiny_settings: list[str]) -> None:
    """It has no scale, and its scores are not standardized, also if it has a training file."""
    settings = [*tiny_settings, *EVEN, "tasks.similarity.head=cross", "tasks.similarity.trained=false"]
    running = start_training(read_recipe(QUICKSTART, settings), tmp_path / "file")
    assert running.prepared.tasks["similarity"].labels.standardized_by is None
    running = start_training(read_recipe(QUICKSTART, [*settings, "tasks.similarity.train=null"]), tmp_path / "none")
    assert running.prepared.tasks["similarity"].labels.standardized_by is None
    objective = running.session.objective
    assert set(objective.policy.context.weights) == {"opinion", "question"}
    finished = running.complete()
    score = finished.evaluations["dev"].tasks["similarity"]
    assert evaluate_run(finished.folder).tasks["similarity"].loss == pytest.approx(score.loss, rel=1e-5)


@pytest.mark.parametrize("rows", ["30", "{sample: 30, seed: 2}"])
def test_scores_and_scales_are_those_of_the_chosen_rows(rows: str, tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, *EVEN, "tasks.similarity.head=cross", f"tasks.similarity.rows={rows}"]
    running = start_training(read_recipe(QUICKSTART, settings), tmp_path / "run")
    task = running.prepared.tasks["similarity"]
    scores = task.labels.unscaled(task.splits["train"].labels.astype(float))
    assert len(scores) == 30
    assert task.labels.standardized_by == pytest.approx((scores.mean(), scores.std()))
    weights = running.session.objective.policy.context.weights
    assert weights["similarity"] == pytest.approx(1 / (scores.std() / 5) ** 2, rel=1e-4)
