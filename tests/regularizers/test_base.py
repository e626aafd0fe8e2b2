"""How far answers lie apart, for each kind of label."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from scipy.stats import entropy

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


def test_very_sure_answers_stay_finite() -> None:
    one = torch.tensor([[200.0, -200.0]], requires_grad=True)
    divergence(one, -one.detach(), "classes").backward()
    assert torch.isfinite(one.grad).all()  # type: ignore[arg-type]


def test_tasks_count_by_their_weight(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    one, other = (model(tiny_stream()) for _ in range(2))
    parts = {t: Smart(make_context(model)).apart(model, {t: one[t]}, {t: other[t]}).item() for t in one}
    weighted = Smart(make_context(model, topic=0.5, alike=4.0)).apart(model, one, other).item()
    assert weighted == pytest.approx(0.5 * parts["topic"] + parts["same"] + 4 * parts["alike"])
