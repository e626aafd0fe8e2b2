"""R-Drop: two draws of dropout; zero without dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.losses.base import symmetric_distance
from polytask.regularizers.r_drop import RDrop
from polytask.types import UserError

KINDS = {"topic": "classes", "same": "yes_no", "alike": "score"}


def test_the_penalty_is_between_two_passes_with_dropouts_of_their_own(
    tiny_model: Any, tiny_stream: Any, make_context: Any
) -> None:
    model = tiny_model(dropout=0.3)
    stream = tiny_stream()
    torch.manual_seed(1)
    forward = model.run(stream)
    found = RDrop(make_context(model, alike=4.0), weight=0.5).penalty(model, forward)
    torch.manual_seed(1)
    one, other = model(stream), model(stream)
    parts = {t: symmetric_distance(one[t], other[t], KINDS[t]).item() for t in KINDS}  # type: ignore[arg-type]
    assert found.item() == pytest.approx(0.5 * (parts["topic"] + parts["same"] + 4 * parts["alike"]), rel=1e-5)
    assert all(part > 0 for part in parts.values())


def test_a_task_may_have_a_weight_of_its_own(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model, stream = tiny_model(dropout=0.3), tiny_stream()
    context = make_context(model, alike=4.0)

    def penalty(**options: Any) -> float:
        torch.manual_seed(1)
        return RDrop(context, **options).penalty(model, model.run(stream)).item()

    only_alike = penalty(weight=0.0, task_weights={"alike": 1.0})
    assert only_alike > 0
    assert penalty(task_weights={"alike": 0.0}) == pytest.approx(penalty() - only_alike, rel=1e-4)
    assert penalty(weight=0.5, task_weights={"alike": 3.0}) == pytest.approx(
        0.5 * (penalty() - only_alike) + 3 * only_alike, rel=1e-4
    )


def test_a_weight_of_an_unknown_task_is_refused(tiny_model: Any, make_context: Any) -> None:
    with pytest.raises(UserError, match=r"r_drop.task_weights: there is no trained task 'alik' .did you mean alike"):
        RDrop(make_context(tiny_model()), task_weights={"alik": 1.0})


def test_exactly_zero_without_dropout(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model(dropout=0.0)
    penalty = RDrop(make_context(model)).penalty(model, model.run(tiny_stream()))
    penalty.backward()
    assert penalty.item() == 0
    assert all(p.grad.abs().max() == 0 for p in model.parameters() if p.grad is not None)


def test_a_constant_model_has_no_penalty(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model(dropout=0.3)
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter.zero_()
    assert RDrop(make_context(model)).penalty(model, model.run(tiny_stream())).item() == 0


def test_both_losses(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    """Without dropout the second pass's losses are the first one's, and the divergence is 0."""
    model = tiny_model(dropout=0.0)
    stream = tiny_stream()
    forward = model.run(stream)
    context = make_context(model, topic=0.5, alike=4.0)
    losses = {t: model.head(t).loss(forward.outputs[t], stream.labels[t]).item() for t in model.tasks}
    expected = 0.5 * losses["topic"] + losses["same"] + 4 * losses["alike"]
    assert RDrop(context, weight=7.0, both_losses=True).penalty(model, forward).item() == pytest.approx(
        expected, rel=1e-5
    )
    model = tiny_model(dropout=0.3)
    forward = model.run(stream)
    context = make_context(model)
    found = []
    for both in (True, False):
        torch.manual_seed(2)
        found.append(RDrop(context, both_losses=both).penalty(model, forward).item())
    torch.manual_seed(2)
    second = model(stream)
    losses = {t: model.head(t).loss(second[t], stream.labels[t]).item() for t in model.tasks}
    assert found[0] - found[1] == pytest.approx(sum(losses.values()), rel=1e-4)


def test_gradient_of_the_penalty(tiny_model: Any, tiny_stream: Any, make_context: Any, check_gradient: Any) -> None:
    model = tiny_model(dropout=0.3).double()
    for task in model.tasks:
        model.head(task).pooling = "first"  # the mean is taken in float32
    r_drop = RDrop(make_context(model))
    stream = tiny_stream(count=2)

    def penalty() -> Tensor:
        torch.manual_seed(4)
        return r_drop.penalty(model, model.run(stream))

    check_gradient(model, penalty)
