"""Focal loss: the paper's own examples, cross-entropy at gamma 0, and gradients where probabilities saturate."""

import pytest
import torch
import torch.nn.functional as F

from polytask.losses.focal import Focal
from polytask.types import YES_NO, LabelSpace, UserError

THREE = LabelSpace("classes", ("bad", "fair", "good"))
LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.3, 0.1], [-1.0, 1.0, 3.0], [1.0, 1.0, 1.0]])
LABELS = torch.tensor([0, 2, 1, 0])


def test_the_papers_examples() -> None:
    """With gamma 2, an example of probability 0.9 counts 100 times less, and one of 0.968 about 1000 times less."""
    for p, less in [(0.9, 100), (0.968, 1000)]:
        logit = torch.tensor([p]).logit()
        plain = F.binary_cross_entropy_with_logits(logit, torch.ones(1))
        assert (plain / Focal(YES_NO, (1, 1))(logit, torch.ones(1))).item() == pytest.approx(less, rel=0.03)


def test_written_out() -> None:
    p = LOGITS.softmax(-1)[torch.arange(4), LABELS]
    each = -((1 - p) ** 1.5) * p.log()
    weights = torch.tensor([1.0, 5.0, 2.0, 1.0])
    torch.testing.assert_close(Focal(THREE, (2, 1, 1), gamma=1.5)(LOGITS, LABELS), each.mean())
    ours = Focal(THREE, (2, 1, 1), gamma=1.5, class_weights=(1.0, 2.0, 5.0))(LOGITS, LABELS)
    torch.testing.assert_close(ours, (weights * each).sum() / weights.sum())


def test_gamma_0_is_cross_entropy() -> None:
    weights = (1.0, 2.0, 5.0)
    ours = Focal(THREE, (2, 1, 1), gamma=0.0, class_weights=weights)(LOGITS, LABELS)
    torch.testing.assert_close(ours, F.cross_entropy(LOGITS, LABELS, weight=torch.tensor(weights)))


def test_yes_no_is_two_classes() -> None:
    logits, labels = torch.tensor([2.0, -1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
    two = torch.stack([torch.zeros(3), logits], -1)
    as_classes = Focal(LabelSpace("classes", ("no", "yes")), (1, 2), class_weights="balanced")(two, labels.long())
    torch.testing.assert_close(Focal(YES_NO, (1, 2), class_weights="balanced")(logits, labels), as_classes)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_gradients_are_finite_where_the_answer_is_certain(gamma: float) -> None:
    logits = torch.tensor([[200.0, 0.0, 0.0], [0.0, 200.0, 0.0]], requires_grad=True)
    loss = Focal(THREE, (1, 1, 1), gamma=gamma)(logits, torch.tensor([0, 0]))  # certainly right, and certainly wrong
    loss.backward()
    assert torch.isfinite(loss)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[1, 0] < 0  # the wrong one has a gradient


def test_class_weights_of_the_wrong_length() -> None:
    with pytest.raises(UserError, match="each of the 3 classes"):
        Focal(THREE, (1, 1, 1), class_weights=(1.0,))
