"""Plain text has no labels, and nothing of it can be predicted."""

import numpy as np
import pytest
import torch

from polytask.kinds.text import PlainText
from polytask.settings import TaskSpec
from polytask.types import LabelSpace

KIND = PlainText()
SPEC = TaskSpec("t", "text", ("text",), None, "train.csv", "dev.csv")
LABELS = LabelSpace("text", vocabulary=100)


def test_every_row_has_the_label_zero() -> None:
    reader = KIND.reader(SPEC)
    assert [reader.read(value) for value in (None, "", "a", 3)] == [0, 0, 0, 0]
    assert KIND.space(SPEC, {}, 100, None) == LABELS
    assert KIND.targets(LABELS, {}, np.zeros(2)).dtype == np.int64
    assert KIND.label({}, 0) is None


def test_the_distance_is_zero_with_a_gradient_of_zero() -> None:
    outputs = torch.ones(3, requires_grad=True)
    distance = KIND.distance(outputs, torch.zeros(3), False)
    distance.backward()
    assert distance == 0
    assert outputs.grad is not None
    assert not outputs.grad.any()


def test_there_is_nothing_to_predict_or_to_learn_from_labels() -> None:
    outputs = torch.ones(3)
    with pytest.raises(AssertionError, match="plain text has no labels"):
        KIND.predicted(outputs, LABELS)
    with pytest.raises(AssertionError, match="plain text has no labels"):
        KIND.decode(outputs, LABELS)
    with pytest.raises(NotImplementedError, match="define their own loss"):
        KIND.loss(outputs, outputs)
