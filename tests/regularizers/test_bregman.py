"""SMART's Bregman proximal point: the average is right, and shares no tensor with the model."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.losses.base import symmetric_distance
from polytask.model import MultiTaskModel
from polytask.regularizers.bregman import Bregman


def shake(model: MultiTaskModel, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def test_the_teacher_is_the_running_average(tiny_model: Any, make_context: Any) -> None:
    """beta is 0.9 in steps 1 and 2 of 20, a tenth, and 0.5 from step 3 on."""
    model = tiny_model().double()
    bregman = Bregman(make_context(model, steps=20), beta=0.9, late_beta=0.5)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step, beta in enumerate([0.9, 0.9, 0.5, 0.5], start=1):
        shake(model, step)
        bregman.after_step(model, step)
        expected = {name: beta * expected[name] + (1 - beta) * p.detach() for name, p in model.named_parameters()}
        for name, parameter in bregman.average.named_parameters():
            torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("adapter", ["none", "pal"])
def test_the_teacher_shares_nothing_with_the_model(
    adapter: str, tiny_model: Any, tiny_stream: Any, make_context: Any
) -> None:
    model = tiny_model(adapter, options={"size": 4, "heads": 2} if adapter == "pal" else None)
    bregman = Bregman(make_context(model))
    places = {p.data_ptr() for p in model.parameters()}
    assert not any(p.data_ptr() in places or p.requires_grad for p in bregman.average.parameters())
    stream = tiny_stream()
    before = bregman.average(stream)
    shake(model, 1)
    model.train()
    after = bregman.average(stream)  # no dropout: the same outputs every time
    assert all(torch.equal(before[task], after[task]) for task in before)


def test_the_penalty(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    start = tiny_model().eval()
    stream = tiny_stream()
    bregman = Bregman(make_context(model, same=3.0), weight=0.5)
    shake(model, 1)
    forward = model.run(stream)
    targets = start(stream)
    kinds = {"topic": "classes", "same": "yes_no", "alike": "score"}
    parts = {t: symmetric_distance(forward.outputs[t], targets[t], kinds[t]).item() for t in kinds}  # type: ignore[arg-type]
    expected = 0.5 * (parts["topic"] + 3 * parts["same"] + parts["alike"])
    assert bregman.penalty(model, forward).item() == pytest.approx(expected, rel=1e-5)


def test_no_penalty_where_nothing_has_moved(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    """Without dropout; with it, the model's outputs differ from those of its average even at the start."""
    stream = tiny_stream()
    for dropout in (0.0, 0.3):
        model = tiny_model(dropout=dropout)
        bregman = Bregman(make_context(model))
        bregman.after_step(model, 1)
        assert (bregman.penalty(model, model.run(stream)).item() == 0) == (dropout == 0)


def test_a_second_copy_of_the_batch_changes_nothing(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model(dropout=0.0)
    bregman = Bregman(make_context(model))
    shake(model, 1)
    once, twice = (bregman.penalty(model, model.run(tiny_stream(copies=n))).item() for n in (1, 2))
    assert once == pytest.approx(twice, rel=1e-5)


def test_gradient_of_the_penalty(tiny_model: Any, tiny_stream: Any, make_context: Any, check_gradient: Any) -> None:
    model = tiny_model().double()
    for task in model.tasks:
        model.head(task).pooling = "first"  # the mean is taken in float32
    bregman = Bregman(make_context(model))
    shake(model, 1)
    stream = tiny_stream(count=2)

    def penalty() -> Tensor:
        torch.manual_seed(4)
        return bregman.penalty(model, model.run(stream))

    check_gradient(model, penalty)


def test_the_state_is_the_teacher(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    bregman = Bregman(make_context(model))
    shake(model, 1)
    bregman.after_step(model, 1)
    saved = {name: tensor.clone() for name, tensor in bregman.state_dict().items()}
    other = Bregman(make_context(model))  # created from the changed model, as when a run is resumed
    other.load_state_dict(saved)
    for name, parameter in other.average.named_parameters():
        assert torch.equal(parameter, dict(bregman.average.named_parameters())[name])
    shake(model, 2)
    bregman.after_step(model, 2)
    other.after_step(model, 2)
    stream = tiny_stream()
    assert all(torch.equal(bregman.average(stream)[t], other.average(stream)[t]) for t in model.tasks)
