"""AdamW against torch's, and its efficient form against the formula written out in plain numbers."""

import math
from typing import Any

import pytest
import torch

from polytask.optim import OPTIMIZERS
from polytask.optim.adamw import AdamW
from polytask.types import UserError


@pytest.mark.parametrize("name", ["adamw", "fused_adamw"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_a_thousand_steps_are_torchs(follow: Any, name: str, dtype: torch.dtype, tolerance: float) -> None:
    (ours, one), (theirs, two) = follow(
        lambda groups: OPTIMIZERS[name](groups, eps=1e-6),
        lambda groups: torch.optim.AdamW(groups, eps=1e-6, foreach=False),
        dtype=dtype,
        steps=1000,
    )
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, atol=tolerance, rtol=tolerance)
        assert float(one.state[mine]["step"]) == float(two.state[reference]["step"])


def test_the_efficient_form_is_the_formula() -> None:
    lr, beta1, beta2, eps, decay = 0.02, 0.9, 0.999, 1e-3, 0.1
    theta, m, v = 1.5, 0.0, 0.0
    parameter = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = {"lr": lr, "eps": eps, "weight_decay": decay}
    optimizer = AdamW([parameter], correction="efficient", **options)
    for t in range(1, 201):
        g = math.sin(t) / t
        parameter.grad = torch.tensor(g, dtype=torch.float64)
        optimizer.step()
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        size = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
        theta = theta - lr * decay * theta - size * m / (math.sqrt(v) + eps)
        assert float(parameter.detach()) == pytest.approx(theta, abs=1e-12)


def test_the_two_forms_differ_by_their_eps_alone() -> None:
    ends = {}
    for correction in ("exact", "efficient"):
        for eps in (0.0, 1e-2):
            parameter = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
            optimizer = AdamW([parameter], lr=0.1, eps=eps, correction=correction)
            parameter.grad = torch.tensor([0.03, -0.2], dtype=torch.float64)
            optimizer.step()
            ends[correction, eps] = parameter.detach()
    torch.testing.assert_close(ends["exact", 0.0], ends["efficient", 0.0], atol=1e-14, rtol=0)
    assert not torch.allclose(ends["exact", 1e-2], ends["efficient", 1e-2], atol=1e-3)


@pytest.mark.parametrize("name", ["adamw", "fused_adamw"])
def test_the_defaults(name: str) -> None:
    defaults = OPTIMIZERS[name]([torch.zeros(1, requires_grad=True)]).defaults
    found = {key: defaults[key] for key in ("lr", "betas", "eps", "weight_decay")}
    assert found == {"lr": 5e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def test_a_wrong_correction_is_named() -> None:
    with pytest.raises(UserError, match="correction must be exact or efficient, found 'none'"):
        AdamW([torch.zeros(1, requires_grad=True)], correction="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("theirs_fused", [False, True])
@pytest.mark.parametrize("name", ["adamw", "fused_adamw"])
def test_training_goes_on_from_the_state_of_torchs_adamw(follow: Any, name: str, theirs_fused: bool) -> None:
    """150 steps by torch and 150 by ours are 300 by torch."""
    ours: list[torch.optim.Optimizer] = []

    def switch(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step < 150:
            return
        if not ours:
            groups = [{"params": group["params"]} for group in optimizer.param_groups]
            ours.append(OPTIMIZERS[name](groups, lr=7.0, eps=7.0))
            ours[0].load_state_dict(optimizer.state_dict())
        ours[0].step()
        for group in optimizer.param_groups:  # a fused optimizer keeps nothing else
            for parameter in group["params"]:
                parameter.grad = None

    def theirs(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, eps=1e-6, fused=theirs_fused)

    ((mixed, _),) = follow(theirs, each=switch)
    ((whole, reference),) = follow(theirs)
    for one, two in zip(mixed, whole, strict=True):
        torch.testing.assert_close(one, two, atol=1e-13, rtol=1e-13)
        assert float(ours[0].state[one]["step"]) == float(reference.state[two]["step"])
    assert ours[0].param_groups[0]["lr"] == 1e-2
    assert ours[0].param_groups[1]["eps"] == 1e-6


def test_a_state_with_options_that_ours_lacks_is_refused() -> None:
    parameter = torch.ones(2, requires_grad=True)
    theirs = torch.optim.AdamW([parameter], amsgrad=True)
    with pytest.raises(UserError, match="AdamW: the state was saved with amsgrad=True, which is not supported"):
        AdamW([parameter]).load_state_dict(theirs.state_dict())
