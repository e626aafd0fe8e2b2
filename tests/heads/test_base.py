"""Losses and decoding against hand-worked numbers."""

import math

import pytest
import torch

from polytask.heads import HEADS
from polytask.types import YES_NO, LabelSpace


def test_losses_by_hand() -> None:
    three = HEADS["linear"]("t", LabelSpace("classes", ("a", "b", "c")), 4)
    loss = three.loss(torch.tensor([[0.0, 0.0, 0.0], [math.log(2), 0.0, 0.0]]), torch.tensor([1, 0]))
    assert loss.item() == pytest.approx((math.log(3) + math.log(2)) / 2)  # 1/3, and 2 / (2 + 1 + 1)
    yes_no = HEADS["cross"]("t", YES_NO, 4)
    assert yes_no.loss(torch.tensor([0.0, 0.0]), torch.tensor([0.0, 1.0])).item() == pytest.approx(math.log(2))
    score = HEADS["cross"]("t", LabelSpace("score", low=0, high=5), 4)
    assert score.loss(torch.tensor([0.5, 1.0]), torch.tensor([0.0, 1.0])).item() == pytest.approx(0.125)


def test_decoding_by_hand() -> None:
    score = HEADS["cross"]("t", LabelSpace("score", low=0, high=5), 4)
    assert [p.label for p in score.decode(torch.tensor([-0.3, 0.5, 1.7]))] == [0.0, 2.5, 5.0]
    yes_no = HEADS["cross"]("t", YES_NO, 4)
    no, yes = yes_no.decode(torch.tensor([-1.0, math.log(3)]))
    assert (no.label, yes.label) == ("no", "yes")
    assert yes.probabilities is not None
    assert yes.probabilities["yes"] == pytest.approx(0.75)
