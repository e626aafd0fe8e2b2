"""Cross-entropy with options, against the formula written out, torch and scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from polytask.kinds.choice import MISSING
from polytask.kinds.table import KINDS
from polytask.losses.cross_entropy import CrossEntropy
from polytask.losses.focal import Focal
from polytask.types import NO_LABEL, YES_NO, LabelSpace, UserError

THREE = LabelSpace("classes", ("bad", "fair", "good"))
LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.3, 0.1], [-1.0, 1.0, 3.0], [1.0, 1.0, 1.0]])
LABELS = torch.tensor([0, 2, 1, 0])


def test_the_defaults_are_the_heads_own_loss() -> None:
    torch.testing.assert_close(CrossEntropy(THREE, (2, 1, 1))(LOGITS, LABELS), F.cross_entropy(LOGITS, LABELS))
    logits, labels = torch.tensor([2.0, -1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
    ours = CrossEntropy(YES_NO, (1, 2))(logits, labels)
    torch.testing.assert_close(ours, F.binary_cross_entropy_with_logits(logits, labels))


def test_smoothed_classes_written_out() -> None:
    log_p = LOGITS.log_softmax(-1)
    each = [-(0.8 * log_p[i, y] + 0.2 / 3 * log_p[i].sum()) for i, y in enumerate(LABELS)]
    ours = CrossEntropy(THREE, (2, 1, 1), smoothing=0.2)(LOGITS, LABELS)
    assert ours.item() == pytest.approx(sum(each).item() / 4, rel=1e-6)


def test_smoothed_yes_no_written_out() -> None:
    p = torch.tensor([0.9, 0.2])
    # With a smoothing of 0.1 the targets are 0.95 for yes and 0.05 for no.
    yes = -(0.95 * np.log(0.9) + 0.05 * np.log(0.1))
    no = -(0.05 * np.log(0.2) + 0.95 * np.log(0.8))
    ours = CrossEntropy(YES_NO, (1, 1), smoothing=0.1)(p.logit(), torch.tensor([1.0, 0.0]))
    assert ours.item() == pytest.approx((yes + no) / 2, rel=1e-5)


def test_smoothed_yes_no_is_smoothing_over_two_classes() -> None:
    logits, labels = torch.tensor([2.0, -1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
    two = torch.stack([torch.zeros(3), logits], -1)
    ours = CrossEntropy(YES_NO, (1, 2), smoothing=0.3)(logits, labels)
    torch.testing.assert_close(ours, F.cross_entropy(two, labels.long(), label_smoothing=0.3))


def test_the_weighted_mean_divides_by_the_weights() -> None:
    log_p = LOGITS.log_softmax(-1)
    weights = [1.0, 2.0, 5.0]
    expected = sum(-weights[y] * log_p[i, y] for i, y in enumerate(LABELS)) / (1 + 5 + 2 + 1)
    ours = CrossEntropy(THREE, (2, 1, 1), class_weights=(1.0, 2.0, 5.0))(LOGITS, LABELS)
    torch.testing.assert_close(ours, expected)


def test_weighted_yes_no_is_two_weighted_classes() -> None:
    logits, labels = torch.tensor([2.0, -1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
    two = torch.stack([torch.zeros(3), logits], -1)
    ours = CrossEntropy(YES_NO, (1, 2), class_weights=(0.2, 3.0))(logits, labels)
    torch.testing.assert_close(ours, F.cross_entropy(two, labels.long(), weight=torch.tensor([0.2, 3.0])))


@pytest.mark.parametrize("method", [CrossEntropy, Focal])
@pytest.mark.parametrize("options", [{}, {"class_weights": "balanced"}, {"class_weights": (1.0, 2.0, 0.5)}])
def test_the_words_of_texts_are_examples(method: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    labels = torch.tensor([[0, 1, 2, NO_LABEL], [2, NO_LABEL, NO_LABEL, NO_LABEL], [1, 1, 0, 0]])
    is_word = labels != NO_LABEL
    outputs = torch.cat([torch.randn(3, 4, 3), is_word[..., None].float()], -1)
    of_words, of_classes = (
        method(LabelSpace(kind, tuple("abc"), scheme=scheme), (7, 2, 1), **options)
        for kind, scheme in (("tokens", "plain"), ("classes", None))
    )
    expected = of_classes(outputs[is_word][:, :-1], labels[is_word])
    torch.testing.assert_close(of_words(outputs, labels), expected)
    torch.testing.assert_close(of_words(outputs, labels[:, :4]), of_words(F.pad(outputs, (0, 0, 0, 3)), labels))
    none = torch.full_like(labels, NO_LABEL)
    assert of_words(outputs, none).item() == 0
    plain = CrossEntropy(LabelSpace("tokens", tuple("abc"), scheme="plain"), (7, 2, 1))
    torch.testing.assert_close(plain(outputs, labels), KINDS["tokens"].loss(outputs, labels))


def test_balanced_is_scikit_learns() -> None:
    rows = np.repeat([0, 1, 2], [90, 9, 1])
    theirs = compute_class_weight("balanced", classes=np.arange(3), y=rows)
    ours = CrossEntropy(THREE, (90, 9, 1), class_weights="balanced").weights_C
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)


def test_a_class_without_a_training_example_takes_nothing_from_the_others() -> None:
    loss = CrossEntropy(THREE, (30, 0, 10), class_weights="balanced", smoothing=0.1)
    theirs = compute_class_weight("balanced", classes=np.array([0, 2]), y=np.repeat([0, 2], [30, 10]))
    assert loss.weights_C.tolist() == pytest.approx([theirs[0], 1.0, theirs[1]])
    assert torch.isfinite(loss(LOGITS, torch.tensor([0, 2, 2, 0])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": (1.0, 2.0)}, r"each of the 3 classes .bad, fair, good., found \[1.0, 2.0\]"),
        ({"class_weights": (1.0, 2.0, 0.0)}, "loss.class_weights: must be one number above 0"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CrossEntropy(THREE, (1, 1, 1), **options)


def test_smoothed_options_are_smoothed_over_those_of_the_row() -> None:
    space, missing = LabelSpace("choice"), LOGITS.clone()
    missing[1, 2] = MISSING
    labels = torch.tensor([[0, 3], [1, 2], [1, 3], [0, 3]])
    each = [
        F.cross_entropy(missing[i : i + 1, :count], torch.tensor([right]), label_smoothing=0.2)
        for i, (right, count) in enumerate(labels.tolist())
    ]
    torch.testing.assert_close(CrossEntropy(space, (), smoothing=0.2)(missing, labels), torch.stack(each).mean())
    torch.testing.assert_close(Focal(space, (), gamma=0.0)(missing, labels), KINDS["choice"].loss(missing, labels))
    for weights in ("balanced", (1.0, 2.0)):
        with pytest.raises(UserError, match="class_weights: must be left out for kind choice"):
            CrossEntropy(space, (), class_weights=weights)  # type: ignore[arg-type]
