"""QHAdam against the formula in plain numbers, our AdamW and pytorch-optimizer's."""

import math
from typing import Any

import pytest
import pytorch_optimizer
import torch

from polytask.optim.adamw import AdamW
from polytask.optim.qhadam import QHAdam
from polytask.types import UserError


@pytest.mark.parametrize("nus", [(0.7, 1.0), (0.4, 0.9), (0.0, 0.0), (1.0, 0.3)])
def test_it_is_the_formula(nus: tuple[float, float]) -> None:
    lr, beta1, beta2, eps, decay = 0.02, 0.95, 0.99, 1e-3, 0.1
    theta, m, v = 1.5, 0.0, 0.0
    parameter = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    optimizer = QHAdam([parameter], lr=lr, betas=(beta1, beta2), nus=nus, eps=eps, weight_decay=decay)
    for t in range(1, 201):
        g = math.sin(t) / t
        parameter.grad = torch.tensor(g, dtype=torch.float64)
        optimizer.step()
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        up = (1 - nus[0]) * g + nus[0] * m_hat
        down = math.sqrt((1 - nus[1]) * g * g + nus[1] * v_hat) + eps
        theta = theta - lr * decay * theta - lr * up / down
        assert float(parameter.detach()) == pytest.approx(theta, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_nus_of_one_it_is_adamw_to_the_last_bit(follow: Any, dtype: torch.dtype) -> None:
    (ours, _), (theirs, _) = follow(
        lambda groups: QHAdam(groups, nus=(1.0, 1.0), betas=(0.9, 0.999)), lambda groups: AdamW(groups), dtype=dtype
    )
    assert all(torch.equal(mine, reference) for mine, reference in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("nus", [(0.7, 1.0), (0.4, 0.9)])
def test_as_in_pytorch_optimizer(follow: Any, nus: tuple[float, float]) -> None:
    """With its decoupled decay. Theirs keeps the corrections' weights in float32, hence the tolerance."""
    (ours, _), (theirs, _) = follow(
        lambda groups: QHAdam(groups, nus=nus, betas=(0.995, 0.999)),
        lambda groups: pytorch_optimizer.QHAdam(groups, nus=nus, betas=(0.995, 0.999), weight_decouple=True),
    )
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, atol=2e-6, rtol=2e-6)


def test_the_papers_defaults() -> None:
    defaults = QHAdam([torch.zeros(1, requires_grad=True)]).defaults
    assert (defaults["nus"], defaults["betas"]) == ((0.7, 1.0), (0.995, 0.999))


@pytest.mark.parametrize("nus", [(0.7, 1.1), (-0.1, 1.0), (0.7,), (float("nan"), 1.0)])
def test_wrong_nus_are_named(nus: Any) -> None:
    with pytest.raises(UserError, match=r"qhadam: nus must be two numbers in \[0, 1\], found"):
        QHAdam([torch.zeros(1, requires_grad=True)], nus=nus)
