"""One class per row: numbers become indices of the sorted classes, and formulas agree with plain ones."""

import numpy as np
import pytest
import torch

from polytask.kinds.classes import Classes, most_probable
from polytask.kinds.names import LabelProblem
from polytask.settings import TaskSpec
from polytask.types import LabelSpace

KIND = Classes()
SPEC = TaskSpec("t", "classes", ("text",), "label", "train.csv", "dev.csv")
LABELS = LabelSpace("classes", ("a", "b", "c"))


def test_classes_are_stored_as_they_appear_and_sorted_later() -> None:
    reader = KIND.reader(SPEC)
    stored = np.array([reader.read(value) for value in ("10", 2, "2.0", "1", 10.0)])
    space = KIND.space(SPEC, reader.meta, 0, stored)
    assert stored.tolist() == [0, 1, 1, 2, 0]
    assert space == LabelSpace("classes", ("1", "2", "10"))
    targets = KIND.targets(space, reader.meta, stored)
    assert targets.tolist() == [2, 1, 1, 0, 2]
    assert targets.dtype == np.int64
    assert KIND.class_counts(space, targets) == (1, 2, 2)
    assert KIND.label(reader.meta, 0) == "10"


@pytest.mark.parametrize(("value", "problem"), [(None, "the label is empty"), ([1], "expected a name or a number")])
def test_labels_that_cannot_be_used(value: object, problem: str) -> None:
    with pytest.raises(LabelProblem, match=problem):
        KIND.reader(SPEC).read(value)


def test_the_symmetric_divergence_is_the_sum_of_two() -> None:
    torch.manual_seed(0)
    p, q = (torch.randn(5, 3, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    divergence = (p.exp() * (p - q)).sum(-1) + (q.exp() * (q - p)).sum(-1)
    torch.testing.assert_close(KIND.distance(p, q, False), divergence.mean())


def test_with_fixed_targets_each_side_learns_from_the_other_one() -> None:
    torch.manual_seed(0)
    one, other = (torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    KIND.distance(one, other, True).backward()
    expected = (one.softmax(-1) - other.softmax(-1)).detach() / 5
    torch.testing.assert_close(one.grad, expected)
    torch.testing.assert_close(other.grad, -expected)


def test_the_most_probable_class() -> None:
    ((label, probabilities),) = most_probable(torch.tensor([[0.2, 0.5, 0.3]]), LABELS)
    assert label == "b"
    assert probabilities == pytest.approx({"a": 0.2, "b": 0.5, "c": 0.3})


def test_neighbours_vote_by_weight_with_one_vote_spread_over_all_classes() -> None:
    predicted, shares = KIND.vote(np.array([[0, 1, 1]]), np.array([[3.0, 1.0, 1.0]]), LABELS)
    assert predicted.tolist() == [0]
    assert shares is not None
    np.testing.assert_allclose(shares, [[(3 + 1 / 3) / 6, (2 + 1 / 3) / 6, (1 / 3) / 6]])
