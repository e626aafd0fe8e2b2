"""L2-SP: the formula's values, for the weights of the tasks in the step."""

from typing import Any

import pytest
import torch

from polytask.regularizers.l2_sp import L2Sp


def moved(model: Any, by: float) -> None:
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter += by


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("bf16", [False, True])
def test_worked_out_by_hand(tiny_model: Any, tiny_stream: Any, make_context: Any, bf16: bool) -> None:
    """An encoder of N weights, each changed by 0.01, and a head of 3 and 7."""
    model = tiny_model()
    regularizer = L2Sp(make_context(model), alpha=0.5, beta=0.2)
    moved(model, 0.01)
    with torch.no_grad():
        model.head("topic").output.weight.fill_(3.0)
        model.head("topic").output.bias.fill_(7.0)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        value = regularizer.penalty(model, model.run(tiny_stream(["topic"])))
    num_weights = sum(p.numel() for p in model.encoder.parameters())
    expected = 0.25 * num_weights * 0.01**2 + 0.1 * (16 * 3 * 9 + 3 * 49)
    assert value.item() == pytest.approx(expected, rel=1e-4)
    value.backward()
    for name, gradient in gradients(model).items():
        if name.startswith("encoder."):  # alpha (w - w0)
            torch.testing.assert_close(gradient, torch.full_like(gradient, 0.5 * 0.01), atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(model.head("topic").output.bias.grad, torch.full((3,), 0.2 * 7))


def test_at_the_start_only_new_weights_pull(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    assert L2Sp(make_context(model), beta=0.0).penalty(model, model.run(tiny_stream())).item() == 0
    assert L2Sp(make_context(model)).penalty(model, model.run(tiny_stream())).item() > 0


def test_tasks_outside_the_stream_get_no_gradient(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model("lhuc")
    regularizer = L2Sp(make_context(model))
    regularizer.penalty(model, model.run(tiny_stream(["topic", "alike"]))).backward()
    for task, there in [("topic", True), ("same", False), ("alike", True)]:
        own = [*model.head(task).parameters(), *model.adapter.task_parameters(task)]
        assert all((p.grad is not None) == there for p in own)


def test_frozen_parameters_do_not_change(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model("lhuc")
    model.encoder.requires_grad_(False)
    regularizer = L2Sp(make_context(model), alpha=0.5, beta=0.2)
    moved(model, 0.01)
    forward = model.run(tiny_stream(["topic"]))
    own = [*model.head("topic").parameters(), *model.adapter.task_parameters("topic")]
    assert regularizer.penalty(model, forward).item() == pytest.approx(0.1 * sum(p.square().sum().item() for p in own))
    model.requires_grad_(False)
    nothing = L2Sp(make_context(model)).penalty(model, model.run(tiny_stream(["topic"])))
    assert nothing.item() == 0


def test_own_encoders_are_pretrained_too(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    """Copies are pulled to their start, not to zero; the layers they replace get no gradient."""
    model = tiny_model("own_encoder", options={"layers": 1})
    regularizer = L2Sp(make_context(model), alpha=0.5, beta=0.0)
    forward = model.run(tiny_stream(["topic", "alike"]))
    assert regularizer.penalty(model, forward).item() == 0
    with torch.no_grad():
        for task in model.tasks:
            for parameter in model.adapter.task_parameters(task):
                parameter += 0.1
    value = regularizer.penalty(model, forward)
    each = sum(p.numel() for p in model.adapter.task_parameters("topic"))
    assert value.item() == pytest.approx(0.25 * 2 * each * 0.1**2, rel=1e-4)
    value.backward()
    found = gradients(model)
    assert "encoder.layers.0.up.weight" in found
    assert not any(name.startswith("encoder.layers.1.") for name in found)
    assert all(p.grad is None for p in model.adapter.task_parameters("same"))
