"""Adamax against the formula in plain numbers, torch's and pytorch-optimizer's."""

import math
from typing import Any

import pytest
import pytorch_optimizer
import torch

from polytask.optim.adamax import Adamax


def test_it_is_the_formula() -> None:
    lr, beta1, beta2, eps, decay = 0.02, 0.9, 0.99, 1e-3, 0.1
    theta, m, u = 1.5, 0.0, 0.0
    parameter = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    optimizer = Adamax([parameter], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    for t in range(1, 201):
        gradient = math.sin(t) / t
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        g = gradient + decay * theta  # decay is part of the gradient
        m = beta1 * m + (1 - beta1) * g
        u = max(beta2 * u, abs(g) + eps)
        theta = theta - lr / (1 - beta1**t) * m / u
        assert float(parameter.detach()) == pytest.approx(theta, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_bit_identical_to_torchs(follow: Any, dtype: torch.dtype) -> None:
    (ours, one), (theirs, two) = follow(Adamax, lambda groups: torch.optim.Adamax(groups, foreach=False), dtype=dtype)
    for mine, reference in zip(ours, theirs, strict=True):
        assert torch.equal(mine, reference)
        assert all(torch.equal(one.state[mine][name], value) for name, value in two.state[reference].items())


def test_as_in_pytorch_optimizer(follow: Any) -> None:
    """Theirs counts steps per group, ours per parameter: so every parameter has a gradient in every step."""
    (ours, _), (theirs, _) = follow(Adamax, pytorch_optimizer.AdaMax, holes=False)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-12, rtol=1e-12)


def test_it_does_not_decay_unless_asked() -> None:
    defaults = Adamax([torch.zeros(1, requires_grad=True)]).defaults
    found = {key: defaults[key] for key in ("lr", "betas", "eps", "weight_decay")}
    assert found == {"lr": 5e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
