"""Ordinal losses: hand-worked soft labels, scipy's distance of distributions, and near misses that cost less."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import energy_distance

from polytask.losses.ordinal import Ordinal
from polytask.types import LabelSpace

FIVE = LabelSpace("classes", ("1", "2", "3", "4", "5"))


def test_soft_labels_by_hand() -> None:
    # Slope ln 2: each place further away is half as likely. From the second of five: 1/2, 1, 1/2, 1/4, 1/8.
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.0, 0.7]])
    q = torch.tensor([4.0, 8.0, 4.0, 2.0, 1.0]) / 19
    expected = -(q * logits[0].log_softmax(-1)).sum()
    ours = Ordinal(FIVE, (), slope=float(np.log(2)))(logits, torch.tensor([1]))
    torch.testing.assert_close(ours, expected)


def test_power_is_of_the_distance() -> None:
    # Slope ln 2, power 2: 2^0, 2^-1, 2^-4, 2^-9, 2^-16 from the first of five.
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.0, 0.7]])
    q = torch.tensor([1, 2**-1, 2**-4, 2**-9, 2**-16])
    expected = -(q / q.sum() * logits[0].log_softmax(-1)).sum()
    ours = Ordinal(FIVE, (), slope=float(np.log(2)), power=2.0)(logits, torch.tensor([0]))
    torch.testing.assert_close(ours, expected)


def test_a_steep_slope_is_cross_entropy() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(8, 5), torch.randint(0, 5, (8,))
    torch.testing.assert_close(Ordinal(FIVE, (), slope=100.0)(logits, labels), F.cross_entropy(logits, labels))


def test_emd_is_scipys_distance() -> None:
    """The energy distance of two distributions on the line is sqrt(2) times the L2 distance of their cumulatives."""
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    places = np.arange(5)
    theirs = [
        energy_distance(places, [y], row.softmax(-1).numpy()) ** 2 / 2
        for row, y in zip(logits, labels.tolist(), strict=True)
    ]
    assert Ordinal(FIVE, (), form="emd")(logits, labels).item() == pytest.approx(np.mean(theirs))


@pytest.mark.parametrize("form", ["soft", "emd"])
def test_a_farther_miss_costs_more(form: Any) -> None:
    loss = Ordinal(FIVE, (), form=form)
    costs = [
        loss(6 * F.one_hot(torch.tensor([predicted]), 5).float(), torch.tensor([1])).item()
        for predicted in (1, 2, 3, 4)
    ]
    assert costs == sorted(costs)
    assert len(set(costs)) == 4
