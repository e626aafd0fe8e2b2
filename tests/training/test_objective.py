"""What a step minimizes: the tasks' losses, distillation from teachers, and penalties."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.losses import LOSSES
from polytask.losses.base import Loss, distillation_loss
from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer
from polytask.types import YES_NO, Draw


def a_pass(session: Any, **teacher_outputs: Tensor) -> Pass:
    """A pass over four examples of each task, without dropout."""
    session.model.eval()
    stream = session.feed.next_batch([Draw("one", 4), Draw("two", 4)]).together
    return session.model.run(replace(stream, teacher_outputs=teacher_outputs))


def test_a_named_loss_for_its_task_and_the_heads_own_for_the_others(make_session: Any) -> None:
    session = make_session()
    forward = a_pass(session)
    one, two = forward.outputs["one"], forward.outputs["two"]
    own = {
        "one": F.cross_entropy(one, forward.stream.labels["one"]),
        "two": F.binary_cross_entropy_with_logits(two, forward.stream.labels["two"]),
    }
    plain = session.objective.task_losses(session.model, forward.stream, forward.outputs, 0.3)
    assert {task: loss.item() for task, loss in plain.items()} == {task: loss.item() for task, loss in own.items()}

    focal: Loss = LOSSES["focal"](YES_NO, (10, 10))
    named = replace(session.objective, losses={"two": focal}).task_losses(
        session.model, forward.stream, forward.outputs, 0.3
    )
    assert named["one"].item() == own["one"].item()
    assert named["two"].item() == focal(two, forward.stream.labels["two"]).item() != own["two"].item()


@pytest.mark.parametrize(
    ("constant", "progress", "share"),
    [({}, 0.0, 0.0), ({}, 0.75, 0.75), ({"one": 0.5}, 0.75, 0.5), ({"one": 0.2}, 0.75, 0.8)],
)
def test_teachers_give_way_to_labels(
    make_session: Any, constant: dict[str, float], progress: float, share: float
) -> None:
    session = make_session()
    teacher = torch.tensor([[1.0, -1.0], [0.0, 2.0], [3.0, 0.0], [0.5, 0.5]])
    forward = a_pass(session, one=teacher)
    gold = F.cross_entropy(forward.outputs["one"], forward.stream.labels["one"]).item()
    taught = -(teacher.softmax(-1) * forward.outputs["one"].log_softmax(-1)).sum(-1).mean().item()
    objective = replace(session.objective, teacher_weights=constant)
    losses = objective.task_losses(session.model, forward.stream, forward.outputs, progress)
    assert losses["one"].item() == pytest.approx(share * gold + (1 - share) * taught, rel=1e-5)
    # The other task has no teacher, so its labels have the whole weight.
    own = F.binary_cross_entropy_with_logits(forward.outputs["two"], forward.stream.labels["two"])
    assert losses["two"].item() == own.item()


def test_a_named_loss_is_combined_with_a_teacher(make_session: Any) -> None:
    session = make_session()
    forward = a_pass(session, two=torch.tensor([3.0, -3.0, 0.0, 1.0]))
    focal: Loss = LOSSES["focal"](YES_NO, (10, 10))
    objective = replace(session.objective, losses={"two": focal}, temperature=2.0)
    outputs = forward.outputs["two"]
    gold = focal(outputs, forward.stream.labels["two"]).item()
    distilled = distillation_loss(outputs, forward.stream.teacher_outputs["two"], "yes_no", 2.0, "cross_entropy").item()
    found = objective.task_losses(session.model, forward.stream, forward.outputs, 0.25)["two"].item()
    assert found == pytest.approx(0.25 * gold + 0.75 * distilled, rel=1e-5)


class Named(Regularizer):
    """A constant penalty that records the passes it is called with."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.passes: list[Pass] = []

    def penalty(self, model: MultiTaskModel, forward: Pass) -> Tensor:
        self.passes.append(forward)
        return torch.tensor(self.value)


def test_penalties_by_name_from_the_forward_pass(make_session: Any) -> None:
    first, second = Named(0.25), Named(3.0)
    session = make_session(regularizers={"first": first, "second": second})
    forward = a_pass(session)
    penalties = session.objective.penalties(session.model, forward)
    assert {name: value.item() for name, value in penalties.items()} == {"first": 0.25, "second": 3.0}
    assert first.passes == [forward]
    assert second.passes == [forward]
