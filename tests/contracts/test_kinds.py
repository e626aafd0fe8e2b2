"""Every kind of label with labels: reading and writing agree, and losses, distances and predictions fit together."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polytask.evaluation.metrics import metrics_for
from polytask.evaluation.scoring import Predictions, score
from polytask.kinds.base import Kind, LabelReader
from polytask.kinds.choice import MISSING
from polytask.kinds.table import KINDS
from polytask.losses.base import distillation_loss, label_terms, symmetric_distance
from polytask.settings import TaskSpec
from polytask.types import NO_LABEL, LabelKind, LabelSpace

WRITTEN: dict[LabelKind, list[Any]] = {
    "classes": ["b", "a", "c", "b", "a", "c"],
    "yes_no": ["yes", "no", "no", "yes", "no", "yes"],
    "score": ["1", "2.5", 5, "3", 4.0, "1.5"],
    "multilabel": ["b|a", "", "c", "a", "a|b", "b|c|a"],
    "choice": [["x", "y", "x"], [0, "x", "y"], ["2", *"xyz"], ["z", *"xyzw"], [1, *"xyz"], [3, *"xyzw"]],
    "tokens": ["O B-a", "O", "B-b I-b O B-a", "O O O", "B-a B-b", "O B-b"],
}
LABELLED = [kind for kind in KINDS if KINDS[kind].has_labels]


def numbers(kind: Kind, reader: LabelReader, values: list[Any]) -> np.ndarray:
    """Stored labels, as a store of tokens keeps them."""
    if not kind.per_word:
        return np.array([reader.read(value) for value in values])
    rows = [reader.read_words([(2 * i, 2 * i + 1) for i in range(len(value.split()))], value) for value in values]
    return np.array([row + [NO_LABEL] * (4 - len(row)) for row in rows])


def read(kind: Kind) -> tuple[TaskSpec, LabelSpace, dict[str, Any], np.ndarray]:
    task = TaskSpec("t", kind.name, ("text",), "label", "train.csv", "dev.csv", range=(1.0, 5.0))
    reader = kind.reader(task, None, WRITTEN[kind.name])
    stored = numbers(kind, reader, WRITTEN[kind.name])
    return task, kind.space(task, reader.meta, 0, stored), reader.meta, stored


def some_outputs(kind: Kind, labels: LabelSpace, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    if kind.name == "choice":
        return torch.randn(6, 4).masked_fill(torch.arange(4) >= torch.tensor([[2], [2], [3], [4], [3], [4]]), MISSING)
    if kind.per_word:
        words = torch.tensor([[len(value.split())] for value in WRITTEN[kind.name]])
        is_word = (torch.arange(4) < words).float()[..., None]
        return torch.cat([torch.randn(6, 4, kind.num_outputs(labels)) * is_word, is_word], -1)
    return kind.squeeze(torch.randn(6, kind.num_outputs(labels)))


@pytest.fixture(params=LABELLED)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_every_kind_is_here() -> None:
    assert set(WRITTEN) == set(LABELLED), "write some labels of the new kind"
    assert all(name == kind.name for name, kind in KINDS.items())


def test_labels_of_files_and_targets_are_the_same_in_two_forms(kind: Kind) -> None:
    _, labels, meta, stored = read(kind)
    targets = kind.targets(labels, meta, stored)
    written = [kind.label(meta, number) for number in stored.tolist()]
    assert len(targets) == len(written) == 6
    expected = kind.compared(targets, targets, labels)
    assert np.allclose(kind.compared_values(written, written, labels.classes), expected, atol=1e-6)
    assert len(kind.class_counts(labels, targets)) == len(labels.classes)


def test_a_known_label_space_gives_the_same_targets(kind: Kind) -> None:
    task, labels, meta, stored = read(kind)
    again = kind.reader(task, labels, ())
    stored_again = numbers(kind, again, WRITTEN[kind.name][::-1])
    targets = kind.targets(labels, again.meta, stored_again)
    assert np.array_equal(targets[::-1], kind.targets(labels, meta, stored))


def test_the_loss_is_the_mean_of_the_examples_losses(kind: Kind) -> None:
    _, labels, meta, stored = read(kind)
    outputs, targets = some_outputs(kind, labels), torch.from_numpy(kind.targets(labels, meta, stored))
    losses_B, weights_B = label_terms(outputs, targets, kind.name)
    assert losses_B.shape == weights_B.shape == (6,)
    torch.testing.assert_close(losses_B.sum() / weights_B.sum(), kind.loss(outputs, targets))
    uninformed = kind.uninformed(targets, kind.num_outputs(labels))
    assert uninformed.shape == outputs.shape
    assert kind.loss(uninformed, targets) > 0


def test_distances_are_zero_for_equal_outputs_and_symmetric(kind: Kind) -> None:
    _, labels, *_ = read(kind)
    one, other = some_outputs(kind, labels), some_outputs(kind, labels, 1)
    assert symmetric_distance(one, one, kind.name).item() == 0
    torch.testing.assert_close(symmetric_distance(one, other, kind.name), symmetric_distance(other, one, kind.name))
    assert symmetric_distance(one, other, kind.name) > 0
    fixed = symmetric_distance(one, other, kind.name, fixed_targets=True)
    torch.testing.assert_close(fixed, symmetric_distance(one, other, kind.name))
    assert distillation_loss(one, one, kind.name, 2.0, "kl").item() == pytest.approx(0, abs=1e-6)
    assert distillation_loss(one, other, kind.name, 2.0, "kl") > 0


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_both_forms_of_distillation_have_the_same_gradient(kind: Kind, temperature: float) -> None:
    _, labels, *_ = read(kind)
    gradients = []
    for form in ("kl", "cross_entropy"):
        outputs = some_outputs(kind, labels).requires_grad_()
        distillation_loss(outputs, some_outputs(kind, labels, 1), kind.name, temperature, form).backward()  # type: ignore[arg-type]
        gradients.append(outputs.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)


def test_the_mean_of_equal_models_is_their_prediction(kind: Kind) -> None:
    _, labels, *_ = read(kind)
    outputs = some_outputs(kind, labels)
    mean = kind.mean_outputs(torch.stack([outputs, outputs, outputs]))
    assert np.allclose(kind.predicted(mean, labels), kind.predicted(outputs, labels), atol=1e-6)
    several = [some_outputs(kind, labels, seed) for seed in range(3)]
    probabilities = [kind.probabilities(one, labels) for one in several]
    if probabilities[0] is not None:
        found = kind.probabilities(kind.mean_outputs(torch.stack(several)), labels)
        assert np.allclose(found, np.mean(probabilities, axis=0), atol=1e-6)  # type: ignore[arg-type]


def test_decoded_predictions_are_the_predicted_numbers(kind: Kind) -> None:
    _, labels, *_ = read(kind)
    outputs = some_outputs(kind, labels)
    decoded, predicted = kind.decode(outputs, labels), kind.predicted(outputs, labels)
    written = [label for label, _ in decoded]
    found = kind.compared_values(written, written, labels.classes)
    assert np.allclose(found, kind.compared(predicted, predicted, labels), atol=1e-6)
    for _, probabilities in decoded:
        assert (probabilities is None) == (kind.probabilities(outputs, labels) is None)
        names = tuple(map(str, range(len(probabilities or ())))) if kind.name == "choice" else labels.classes
        assert probabilities is None or tuple(probabilities) == names


def test_right_predictions_have_the_best_score(kind: Kind) -> None:
    _, labels, meta, stored = read(kind)
    targets = kind.targets(labels, meta, stored)
    found = score(Predictions(*kind.compared(targets, targets, labels)), labels, 0.0)
    assert set(found.metrics) == {metric.name for metric in metrics_for(kind.name)}
    assert found.value == pytest.approx(1)
    assert found.metrics[found.primary].low < 1


def test_neighbours_with_one_label_predict_it(kind: Kind) -> None:
    if kind.per_word:
        pytest.skip("there is no prediction of tags from neighbours")
    _, labels, meta, stored = read(kind)
    targets = kind.targets(labels, meta, stored)
    near = np.repeat(targets[:, None], 4, axis=1)
    if kind.name == "choice":  # options of other rows say nothing about those of a row
        with pytest.raises(NotImplementedError):
            kind.vote(near, np.ones((6, 4)), labels)
        return
    predicted, shares = kind.vote(near, np.ones((6, 4)), labels)
    assert np.allclose(predicted, targets, atol=1e-6)
    assert (shares is None) == (not labels.classes)
