"""LAMB against the formula in plain numbers and, where the definitions meet, pytorch-optimizer's."""

import math
from typing import Any

import pytest
import pytorch_optimizer
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.optim.adamw import AdamW
from polytask.optim.lamb import Lamb
from polytask.types import UserError


def norm(numbers: list[float]) -> float:
    return math.sqrt(sum(number * number for number in numbers))


@pytest.mark.parametrize("clamp", [10.0, 0.5, None])
def test_it_is_the_formula(clamp: float | None) -> None:
    lr, beta1, beta2, eps, decay = 0.02, 0.9, 0.99, 1e-3, 0.1
    theta, m, v = [1.5, -0.5, 0.25, 2.0], [0.0] * 4, [0.0] * 4
    parameter = torch.tensor(theta, dtype=torch.float64).reshape(2, 2).requires_grad_()
    optimizer = Lamb([parameter], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay, clamp=clamp)
    for t in range(1, 201):
        g = [math.sin(t + i) / t for i in range(4)]
        parameter.grad = torch.tensor(g, dtype=torch.float64).reshape(2, 2)
        optimizer.step()
        m = [beta1 * a + (1 - beta1) * b for a, b in zip(m, g, strict=True)]
        v = [beta2 * a + (1 - beta2) * b * b for a, b in zip(v, g, strict=True)]
        r = [
            a / (1 - beta1**t) / (math.sqrt(b / (1 - beta2**t)) + eps) + decay * c
            for a, b, c in zip(m, v, theta, strict=True)
        ]
        ratio = min(norm(theta), clamp or math.inf) / norm(r)
        theta = [a - lr * ratio * b for a, b in zip(theta, r, strict=True)]
        assert parameter.detach().flatten().tolist() == pytest.approx(theta, abs=1e-12)


def test_vectors_and_zeros_take_adamws_step() -> None:
    """The ratio is 1 for a vector, a single number, and a matrix of zeros (as LoRA and PAL have at first)."""
    for shape in [(5,), (), (2, 3)]:
        ours, theirs = (torch.zeros(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
        options: dict[str, Any] = {"lr": 0.1, "eps": 1e-6, "weight_decay": 0.0}
        one, two = Lamb([ours], **options), AdamW([theirs], **options)
        for step in range(1 if len(shape) > 1 else 10):
            for parameter in (ours, theirs):
                parameter.grad = torch.full(shape, 0.5 - step, dtype=torch.float64)
            one.step()
            two.step()
        torch.testing.assert_close(ours, theirs, atol=1e-14, rtol=0)
        assert ours.detach().abs().max() > 0.05


def test_a_step_of_no_length_stays_where_it_is() -> None:
    parameter = torch.ones(2, 2, requires_grad=True)
    optimizer = Lamb([parameter], weight_decay=0.0)
    parameter.grad = torch.zeros(2, 2)
    optimizer.step()
    assert torch.equal(parameter.detach(), torch.ones(2, 2))


@settings(deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 1000), st.sampled_from([0.0, 0.1]))
def test_a_matrix_moves_by_lr_times_its_size(size: float, steepness: float, seed: int, decay: float) -> None:
    """Whatever the gradients; above the clamp, by lr times the clamp."""
    generator = torch.Generator().manual_seed(seed)
    parameter = (size * torch.randn(3, 4, generator=generator, dtype=torch.float64)).requires_grad_()
    optimizer = Lamb([parameter], lr=0.01, weight_decay=decay, clamp=10.0)
    for _ in range(3):
        before = parameter.detach().clone()
        parameter.grad = steepness * torch.randn(3, 4, generator=generator, dtype=torch.float64)
        optimizer.step()
        expected = 0.01 * min(float(before.norm()), 10.0)
        assert float((parameter.detach() - before).norm()) == pytest.approx(expected, rel=1e-9)


def test_as_in_pytorch_optimizer_once_the_corrections_are_over(follow: Any) -> None:
    """Theirs follows the paper's third version, without bias correction; and it adds eps to |r|, counts steps per
    group, decays outside the ratio unless told otherwise, and gives vectors a ratio too. So: a tiny eps, gradients for
    all, decay inside, and 150 steps with a rate of 0, in which the moments meet because the corrections end. Only the
    matrices are compared.
    """

    def wait(step: int, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["betas"] = (0.6, 0.7)
            group["lr"] = 0.0 if step < 150 else 0.01

    (ours, _), (theirs, _) = follow(
        lambda groups: Lamb(groups, eps=1e-14),
        lambda groups: pytorch_optimizer.Lamb(groups, eps=1e-14, weight_decouple=False, adam_debias=True),
        holes=False,
        each=wait,
    )
    for index in (0, 2):
        torch.testing.assert_close(ours[index], theirs[index], atol=1e-11, rtol=1e-11)
    assert not torch.allclose(ours[1], theirs[1], atol=1e-3), "a vector: ours has no ratio"


def test_a_wrong_clamp_is_named() -> None:
    with pytest.raises(UserError, match="lamb: clamp must be at least 0, found -1"):
        Lamb([torch.zeros(1, requires_grad=True)], clamp=-1.0)
