"""Every kind of label with labels: reading and writing agree, and losses, distances and predictions fit together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from polytask.contracts import kinds as contract
from polytask.contracts.kinds import Subject
from polytask.evaluation.metrics import metrics_for
from polytask.evaluation.scoring import Predictions, score
from polytask.kinds.table import KINDS
from polytask.losses.base import distillation_loss
from polytask.types import LabelKind

WRITTEN: dict[LabelKind, tuple[Any, ...]] = {
    "classes": ("b", "a", "c", "b", "a", "c"),
    "yes_no": ("yes", "no", "no", "yes", "no", "yes"),
    "score": ("1", "2.5", 5, "3", 4.0, "1.5"),
    "multilabel": ("b|a", "", "c", "a", "a|b", "b|c|a"),
    "choice": (["x", "y", "x"], [0, "x", "y"], ["2", *"xyz"], ["z", *"xyzw"], [1, *"xyz"], [3, *"xyzw"]),
    "tokens": ("O B-a", "O", "B-b I-b O B-a", "O O O", "B-a B-b", "O B-b"),
}
LABELLED = [kind for kind in KINDS if KINDS[kind].has_labels]


@pytest.fixture(params=LABELLED)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(KINDS[request.param], WRITTEN[request.param])


def test_every_kind_is_here() -> None:
    assert set(WRITTEN) == set(LABELLED), "write some labels of the new kind"
    assert all(name == kind.name for name, kind in KINDS.items())


@pytest.mark.parametrize("holds", contract.PROPERTIES, ids=lambda function: function.__name__)
def test_the_contract(subject: Subject, holds: Callable[[Subject], None]) -> None:
    holds(subject)


def test_distillation_of_different_outputs_is_above_zero(subject: Subject) -> None:
    assert distillation_loss(subject.outputs(), subject.outputs(1), subject.kind.name, 2.0, "kl") > 0


def test_the_mean_of_several_models_has_the_mean_of_their_probabilities(subject: Subject) -> None:
    kind, labels = subject.kind, subject.labels
    several = [subject.outputs(seed) for seed in range(3)]
    probabilities = [p for outputs in several if (p := kind.probabilities(outputs, labels)) is not None]
    found = kind.probabilities(kind.mean_outputs(torch.stack(several)), labels)
    assert (found is None) == (not probabilities)
    assert found is None or np.allclose(found, np.mean(probabilities, axis=0), atol=1e-6)


def test_right_predictions_have_the_best_score(subject: Subject) -> None:
    kind, labels, targets = subject.kind, subject.labels, subject.targets
    found = score(Predictions(*kind.compared(targets, targets, labels)), labels, 0.0)
    assert set(found.metrics) == {metric.name for metric in metrics_for(kind.name)}
    assert found.value == pytest.approx(1)
    assert found.metrics[found.primary].low < 1


def test_neighbours_say_nothing_about_tags_and_options() -> None:
    for kind in (KINDS["tokens"], KINDS["choice"]):
        with pytest.raises(NotImplementedError, match=f"kind {kind.name} has no prediction from neighbours"):
            kind.vote(np.zeros((2, 4, 2)), np.ones((2, 4)), Subject(kind, WRITTEN[kind.name]).labels)
