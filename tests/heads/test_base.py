"""Losses and decoding against hand-worked numbers."""

import math
from types import SimpleNamespace

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


def test_a_standardized_head_returns_scores_on_the_same_scale_as_others() -> None:
    """z = 0 is the mean 3 of the training scores, z = 1 is one standard deviation of 1.5 more; the range is 1 to 5."""
    head = HEADS["linear"]("t", LabelSpace("score", low=1, high=5, standardized_by=(3.0, 1.5)), 2, dropout=0.0)
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    with torch.no_grad():
        head.output.weight.copy_(torch.tensor([[1.0, 2.0]]))
    outputs = head(SimpleNamespace(pool=lambda pooling: vectors))
    assert outputs.tolist() == pytest.approx([0.5, 0.875, 1.25])
    assert [p.label for p in head.decode(outputs)] == [3.0, 4.5, 5.0]
