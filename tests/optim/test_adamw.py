"""AdamW against torch's, and its efficient form against the formula written out in plain numbers."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.optim import OPTIMIZERS
from polytask.optim.adamw import AdamW
from polytask.optim.fused_adamw import FusedAdamW
from polytask.types import UserError

SHAPES = [(7, 5), (11,), (3, 2, 2), ()]


def start(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in SHAPES]


def groups(params: list[Tensor]) -> list[dict[str, Any]]:
    return [
        {"params": params[:2], "lr": 1e-2, "weight_decay": 0.1},
        {"params": params[2:], "lr": 3e-3, "weight_decay": 0.0, "betas": (0.8, 0.99), "eps": 1e-6},
    ]


def gradients(dtype: torch.dtype, steps: int) -> Iterator[list[Tensor | None]]:
    """Gradients of changing size; the second and the last parameter often have none, and not in the same steps."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        size = 10.0 ** (step % 5 - 3)
        grads: list[Tensor | None] = [size * torch.randn(s, generator=generator, dtype=dtype) for s in SHAPES]
        if step % 3 == 0:
            grads[1] = None
        if step % 7 < 4:
            grads[3] = None
        yield grads


@pytest.mark.parametrize("name", ["adamw", "fused_adamw"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_a_thousand_steps_are_torchs(name: str, dtype: torch.dtype, tolerance: float) -> None:
    ours, theirs = start(dtype), start(dtype)
    one = OPTIMIZERS[name](groups(ours))
    two = torch.optim.AdamW(groups(theirs), foreach=False)
    for grads in gradients(dtype, 1000):
        for mine, reference, grad in zip(ours, theirs, grads, strict=True):
            mine.grad = None if grad is None else grad.clone()
            reference.grad = grad
        one.step()
        two.step()
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


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_without_a_gradient_nothing_moves(name: str) -> None:
    params = [torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)]
    optimizer = OPTIMIZERS[name](params, lr=0.1, weight_decay=0.5)
    for _ in range(5):
        params[0].grad = torch.ones(3)
        optimizer.step()
    assert torch.equal(params[1], torch.ones(3))
    assert params[1] not in optimizer.state
    assert not torch.equal(params[0], torch.ones(3))
    params[1].grad = torch.ones(3)
    optimizer.step()
    assert (float(optimizer.state[params[0]]["step"]), float(optimizer.state[params[1]]["step"])) == (6.0, 1.0)


@pytest.mark.parametrize("correction", ["exact", "efficient"])
def test_a_saved_state_goes_on_bit_for_bit(correction: Any) -> None:
    def run(optimizer: torch.optim.Optimizer, params: list[Tensor], steps: list[list[Tensor | None]]) -> None:
        for grads in steps:
            for parameter, grad in zip(params, grads, strict=True):
                parameter.grad = grad
            optimizer.step()

    steps = list(gradients(torch.float32, 20))
    whole = start(torch.float32)
    run(AdamW(groups(whole), correction=correction), whole, steps)
    first = start(torch.float32)
    before = AdamW(groups(first), correction=correction)
    run(before, first, steps[:9])
    second = [parameter.detach().clone().requires_grad_() for parameter in first]
    after = AdamW(groups(second))
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    run(after, second, steps[9:])
    for one, two in zip(whole, second, strict=True):
        assert torch.equal(one, two)


def test_a_closure_is_asked_for_the_loss() -> None:
    parameter = torch.tensor(2.0, requires_grad=True)
    optimizer = AdamW([parameter], lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = parameter.square()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    assert optimizer.step(closure) == 4.0
    assert float(parameter.detach()) < 2.0


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_the_defaults(name: str) -> None:
    defaults = OPTIMIZERS[name]([torch.zeros(1, requires_grad=True)]).defaults
    found = {key: defaults[key] for key in ("lr", "betas", "eps", "weight_decay")}
    assert found == {"lr": 5e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"eps": -1e-8}, "eps is -1e-08"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"betas": (0.9, 1.0)}, "betas is"),
        ({"betas": [0.9]}, "betas is"),
        ({"correction": "none"}, "must be exact or efficient"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        AdamW([torch.zeros(1, requires_grad=True)], **options)


def test_fused_takes_a_list_of_betas_as_a_recipe_gives_it() -> None:
    assert FusedAdamW([torch.zeros(1, requires_grad=True)], betas=[0.8, 0.9]).defaults["betas"] == (0.8, 0.9)  # type: ignore[arg-type]
