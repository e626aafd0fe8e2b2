"""How far answers lie apart, for each kind of label."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from scipy.stats import entropy
from torch import Tensor

from polytask.regularizers import Smart
from polytask.regularizers.base import divergence


def test_classes_and_yes_no_are_the_symmetric_kl_divergence() -> None:
    torch.manual_seed(0)
    a, b = 3 * torch.randn(6, 4, dtype=torch.float64), 3 * torch.randn(6, 4, dtype=torch.float64)
    p, q = softmax(a.numpy(), -1), softmax(b.numpy(), -1)
    expected = (entropy(p, q, axis=-1) + entropy(q, p, axis=-1)).mean()
    assert divergence(a, b, "classes").item() == pytest.approx(expected)
    yes = [expit(logits[:, 0].numpy()) for logits in (a, b)]
    p, q = (np.stack([y, 1 - y], -1) for y in yes)
    expected = (entropy(p, q, axis=-1) + entropy(q, p, axis=-1)).mean()
    assert divergence(a[:, 0], b[:, 0], "yes_no").item() == pytest.approx(expected)


def test_by_hand() -> None:
    """Probabilities (3/4, 1/4) and (1/2, 1/2): (3/4 - 1/2) ln(3/2) + (1/4 - 1/2) ln(1/2) = ln(3)/4."""
    one, other = torch.tensor([[3.0, 1.0]]).log(), torch.zeros(1, 2)
    assert divergence(one, other, "classes").item() == pytest.approx(np.log(3) / 4)
    assert divergence(torch.tensor([np.log(3.0)]), torch.zeros(1), "yes_no").item() == pytest.approx(np.log(3) / 4)
    scores = torch.tensor([0.5, 1.0]), torch.tensor([0.0, 0.8])
    assert divergence(*scores, "score").item() == pytest.approx((0.25 + 0.04) / 2)


def mtdnn(one: Tensor, other: Tensor) -> Tensor:
    """mt-dnn's symmetric KL, by its definition: each KL has a target that is a number."""
    total = torch.zeros((), dtype=one.dtype)
    for moving, fixed in ((one, other), (other, one)):
        log_p, q = moving.log_softmax(-1), fixed.detach().softmax(-1)
        total = total + torch.nn.functional.kl_div(log_p, q, reduction="batchmean")
    return total


@pytest.mark.parametrize("kind", ["classes", "yes_no", "score"])
def test_fixed_targets_are_mt_dnns(kind: Any) -> None:
    torch.manual_seed(0)
    shape = (6, 4) if kind == "classes" else (6,)
    a, b = (3 * torch.randn(shape, dtype=torch.float64).requires_grad_() for _ in range(2))
    if kind == "classes":
        expected = mtdnn(a, b)
    elif kind == "yes_no":
        expected = mtdnn(torch.stack([a, torch.zeros_like(a)], -1), torch.stack([b, torch.zeros_like(b)], -1))
    else:
        expected = torch.nn.functional.mse_loss(a, b)
    found = divergence(a, b, kind, fixed_targets=True)
    assert found.item() == pytest.approx(expected.item())
    assert found.item() == pytest.approx(divergence(a, b, kind).item())
    for one, two in zip(torch.autograd.grad(found, (a, b)), torch.autograd.grad(expected, (a, b)), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(("kind", "ratio"), [("classes", 2.0), ("yes_no", 2.0), ("score", 1.0)])
def test_near_each_other_the_whole_gradient_is_twice_that_of_fixed_targets(kind: Any, ratio: float) -> None:
    torch.manual_seed(0)
    a = torch.randn((6, 4) if kind == "classes" else (6,), dtype=torch.float64)
    b = a + 1e-6 * torch.randn_like(a)
    a.requires_grad_(), b.requires_grad_()
    whole, half = (torch.autograd.grad(divergence(a, b, kind, fixed), (a, b)) for fixed in (False, True))
    for one, two in zip(whole, half, strict=True):
        torch.testing.assert_close(one, ratio * two, rtol=1e-4, atol=1e-4 * one.abs().max().item())


def test_very_sure_answers_stay_finite() -> None:
    one = torch.tensor([[200.0, -200.0]], requires_grad=True)
    divergence(one, -one.detach(), "classes").backward()
    assert torch.isfinite(one.grad).all()  # type: ignore[arg-type]


def test_tasks_count_by_their_weight(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    one, other = (model(tiny_stream()) for _ in range(2))
    parts = {t: Smart(make_context(model)).output_distance(model, {t: one[t]}, {t: other[t]}).item() for t in one}
    weighted = Smart(make_context(model, topic=0.5, alike=4.0)).output_distance(model, one, other).item()
    assert weighted == pytest.approx(0.5 * parts["topic"] + parts["same"] + 4 * parts["alike"])
