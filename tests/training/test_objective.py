"""What a step makes small: each task's own loss, its teacher's say, and the penalties."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.losses import LOSSES
from polytask.losses.base import Loss
from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer
from polytask.training.objective import taught_loss
from polytask.types import YES_NO, Draw


def a_pass(session: Any, **taught: Tensor) -> Pass:
    """One of four examples of each task, without dropout."""
    session.model.eval()
    stream = session.feed.next_batch([Draw("one", 4), Draw("two", 4)]).together
    return session.model.run(replace(stream, taught=taught))


def test_a_named_loss_for_its_task_and_the_heads_own_for_the_others(make_session: Any) -> None:
    session = make_session()
    done = a_pass(session)
    one, two = done.outputs["one"], done.outputs["two"]
    own = {
        "one": F.cross_entropy(one, done.stream.labels["one"]),
        "two": F.binary_cross_entropy_with_logits(two, done.stream.labels["two"]),
    }
    plain = session.objective.task_losses(session.model, done.stream, done.outputs, 0.3)
    assert {task: loss.item() for task, loss in plain.items()} == {task: loss.item() for task, loss in own.items()}

    focal: Loss = LOSSES["focal"](YES_NO, (10, 10))
    named = replace(session.objective, losses={"two": focal}).task_losses(session.model, done.stream, done.outputs, 0.3)
    assert named["one"].item() == own["one"].item()
    assert named["two"].item() == focal(two, done.stream.labels["two"]).item() != own["two"].item()


@pytest.mark.parametrize(("annealed", "progress", "share"), [(True, 0.0, 0.0), (True, 0.75, 0.75), (False, 0.75, 0.5)])
def test_teachers_give_way_to_labels(make_session: Any, annealed: bool, progress: float, share: float) -> None:
    session = make_session()
    teacher = torch.tensor([[1.0, -1.0], [0.0, 2.0], [3.0, 0.0], [0.5, 0.5]])
    done = a_pass(session, one=teacher)
    gold = F.cross_entropy(done.outputs["one"], done.stream.labels["one"]).item()
    taught = -(teacher.softmax(-1) * done.outputs["one"].log_softmax(-1)).sum(-1).mean().item()
    objective = replace(session.objective, annealed=annealed)
    losses = objective.task_losses(session.model, done.stream, done.outputs, progress)
    assert losses["one"].item() == pytest.approx(share * gold + (1 - share) * taught, rel=1e-5)
    # The other task has no teacher, and all of its label's say from the start.
    own = F.binary_cross_entropy_with_logits(done.outputs["two"], done.stream.labels["two"])
    assert losses["two"].item() == own.item()


def test_a_named_loss_is_the_labels_part_beside_a_teacher(make_session: Any) -> None:
    session = make_session()
    done = a_pass(session, two=torch.tensor([3.0, -3.0, 0.0, 1.0]))
    focal: Loss = LOSSES["focal"](YES_NO, (10, 10))
    objective = replace(session.objective, losses={"two": focal}, temperature=2.0)
    outputs = done.outputs["two"]
    gold = focal(outputs, done.stream.labels["two"]).item()
    taught = taught_loss(outputs, done.stream.taught["two"], "yes_no", 2.0).item()
    found = objective.task_losses(session.model, done.stream, done.outputs, 0.25)["two"].item()
    assert found == pytest.approx(0.25 * gold + 0.75 * taught, rel=1e-5)


def test_taught_classes_by_hand() -> None:
    # The teacher's probabilities are 2/3 and 1/3 (logits ln 2 and 0), the student's 1/2 and 1/2.
    student, teacher = torch.zeros(1, 2), torch.tensor([[2.0, 1.0]]).log()
    assert taught_loss(student, teacher, "classes", 1.0).item() == pytest.approx(0.693147, rel=1e-5)
    # The student's 1/4 and 3/4: -(2/3 ln 1/4 + 1/3 ln 3/4).
    student = torch.tensor([[1.0, 3.0]]).log()
    assert taught_loss(student, teacher, "classes", 1.0).item() == pytest.approx(1.020090, rel=1e-5)
    # At temperature 2 logits of ln 4 and ln 9 are read as ln 2 and ln 3: the same numbers, times 4.
    softened = taught_loss(torch.tensor([[1.0, 9.0]]).log(), torch.tensor([[4.0, 1.0]]).log(), "classes", 2.0)
    assert softened.item() == pytest.approx(4 * 1.020090, rel=1e-5)


def test_taught_yes_no_by_hand() -> None:
    # Teacher 0.8, student 0.6: -(0.8 ln 0.6 + 0.2 ln 0.4); logits halved by the temperature were twice as large.
    student, teacher = torch.tensor([0.6]).logit(), torch.tensor([0.8]).logit()
    assert taught_loss(student, teacher, "yes_no", 1.0).item() == pytest.approx(0.591919, rel=1e-5)
    assert taught_loss(2 * student, 2 * teacher, "yes_no", 2.0).item() == pytest.approx(4 * 0.591919, rel=1e-5)


def test_taught_scores_are_squared_errors_at_any_temperature() -> None:
    student, teacher = torch.tensor([0.2, 0.9]), torch.tensor([0.5, 0.8])
    for temperature in (1.0, 3.0):
        assert taught_loss(student, teacher, "score", temperature).item() == pytest.approx((0.09 + 0.01) / 2)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_nothing_more_to_learn_where_the_student_is_the_teacher(temperature: float) -> None:
    torch.manual_seed(0)
    for kind, shape in (("classes", (6, 5)), ("yes_no", (6,)), ("score", (6,))):
        teacher = 2 * torch.randn(shape)
        student = teacher.clone().requires_grad_()
        taught_loss(student, teacher, kind, temperature).backward()  # type: ignore[arg-type]
        assert student.grad is not None
        torch.testing.assert_close(student.grad, torch.zeros(shape), atol=1e-6, rtol=0)


def test_taught_losses_are_float32_from_half_precision() -> None:
    for kind, shape in (("classes", (6, 5)), ("yes_no", (6,)), ("score", (6,))):
        outputs = torch.ones(shape, dtype=torch.bfloat16)
        assert taught_loss(outputs, outputs, kind, 1.0).dtype == torch.float32  # type: ignore[arg-type]


class Named(Regularizer):
    """The number it was made with, and the pass it was asked about."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.asked: list[Pass] = []

    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        self.asked.append(done)
        return torch.tensor(self.value)


def test_penalties_by_name_from_the_steps_own_pass(make_session: Any) -> None:
    first, second = Named(0.25), Named(3.0)
    session = make_session(regularizers={"first": first, "second": second})
    done = a_pass(session)
    penalties = session.objective.penalties(session.model, done)
    assert {name: value.item() for name, value in penalties.items()} == {"first": 0.25, "second": 3.0}
    assert first.asked == [done]
    assert second.asked == [done]
