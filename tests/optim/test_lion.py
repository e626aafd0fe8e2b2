"""Lion against the formula in plain numbers and against pytorch-optimizer's."""

import math
from typing import Any

import pytest
import pytorch_optimizer
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.optim.lion import Lion


def test_it_is_the_formula() -> None:
    lr, beta1, beta2, decay = 0.02, 0.9, 0.99, 0.1
    theta, m = 1.5, 0.0
    parameter = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    optimizer = Lion([parameter], lr=lr, betas=(beta1, beta2), weight_decay=decay)
    for t in range(1, 201):
        g = math.sin(t) / t
        parameter.grad = torch.tensor(g, dtype=torch.float64)
        optimizer.step()
        theta = theta - lr * (math.copysign(1.0, beta1 * m + (1 - beta1) * g) + decay * theta)
        m = beta2 * m + (1 - beta2) * g
        assert float(parameter.detach()) == pytest.approx(theta, abs=1e-12)


def test_as_in_pytorch_optimizer(follow: Any) -> None:
    (ours, _), (theirs, _) = follow(Lion, pytorch_optimizer.Lion)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-14, rtol=1e-14)


@settings(deadline=None)
@given(st.floats(1e-6, 1e6), st.integers(0, 1000))
def test_every_coordinate_moves_by_lr_whatever_the_gradient(steepness: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parameter = torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    optimizer = Lion([parameter], lr=0.01, weight_decay=0.0)
    for _ in range(3):
        before = parameter.detach().clone()
        parameter.grad = steepness * torch.randn(3, 4, generator=generator, dtype=torch.float64)
        optimizer.step()
        torch.testing.assert_close((parameter.detach() - before).abs(), torch.full_like(before, 0.01))


def test_it_keeps_one_tensor_of_each_parameter() -> None:
    parameter = torch.ones(3, requires_grad=True)
    optimizer = Lion([parameter])
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert set(optimizer.state[parameter]) == {"step", "exp_avg"}
