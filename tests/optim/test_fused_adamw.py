"""Fused AdamW takes the steps of polytask's own formula and of torch's plain implementation."""

import pytest
import torch
from torch import nn

from polytask.optim.adamw import AdamW
from polytask.optim.fused_adamw import FusedAdamW
from polytask.types import UserError

OPTIONS = {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def trained(optimizer_class: type[torch.optim.Optimizer], steps: int = 20, **options: object) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = optimizer_class(model.parameters(), **options)
    inputs, targets = torch.randn(32, 6), torch.randn(32, 1)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("other", [AdamW, torch.optim.AdamW], ids=["polytask", "torch"])
def test_it_takes_the_same_steps(other: type[torch.optim.Optimizer]) -> None:
    for found, wanted in zip(trained(FusedAdamW, **OPTIONS), trained(other, **OPTIONS), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_the_defaults_are_those_of_adamw() -> None:
    weight = nn.Parameter(torch.zeros(1))
    own, other = FusedAdamW([weight]).defaults, AdamW([weight]).defaults
    assert {name: own[name] for name in ("lr", "betas", "eps", "weight_decay")} == {
        name: other[name] for name in ("lr", "betas", "eps", "weight_decay")
    }


def test_a_rate_below_zero_is_refused() -> None:
    with pytest.raises(UserError, match="fused_adamw"):
        FusedAdamW([nn.Parameter(torch.zeros(1))], lr=-1.0)
