"""Weighted sums, and distances between two models' outputs for each kind of label."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from scipy.stats import entropy
from torch import Tensor

from polytask.heads import HEADS
from polytask.losses import LOSSES
from polytask.losses.base import (
    distillation_loss,
    label_terms,
    mean_of_labelled,
    mean_of_terms,
    symmetric_distance,
    weighted_sum,
)
from polytask.types import YES_NO, LabelSpace


def test_weighted_sum() -> None:
    losses = {"a": torch.tensor(2.0), "b": torch.tensor(3.0)}
    assert weighted_sum(losses, {"a": 0.5, "b": 10.0, "c": 100.0}).item() == 31


# --- examples without a label -----------------------------------------------------------------------------------------
KINDS: dict[str, LabelSpace] = {
    "classes": LabelSpace("classes", tuple("abcd")),
    "yes_no": YES_NO,
    "score": LabelSpace("score", low=0, high=5),
}
NAMED = [
    ("cross_entropy", "classes", {}),
    ("cross_entropy", "classes", {"smoothing": 0.1, "class_weights": "balanced"}),
    ("cross_entropy", "yes_no", {"smoothing": 0.1, "class_weights": (1.0, 3.0)}),
    ("focal", "classes", {"class_weights": "balanced"}),
    ("focal", "yes_no", {}),
    ("ordinal", "classes", {"form": "soft"}),
    ("ordinal", "classes", {"form": "emd"}),
    *((None, kind, {}) for kind in KINDS),
]


@pytest.mark.parametrize(("name", "kind", "options"), NAMED)
def test_terms_and_the_mean_over_labelled_examples(name: str | None, kind: str, options: dict[str, Any]) -> None:
    """The loss of the labelled examples alone, times their share; the other examples have no gradient."""
    torch.manual_seed(0)
    outputs = torch.randn((8, 4) if kind == "classes" else (8,), requires_grad=True)
    labels = {"classes": torch.arange(8) % 4, "yes_no": (torch.arange(8) % 2).float(), "score": torch.rand(8)}[kind]
    space = KINDS[kind]
    loss: Any = HEADS["linear"]("t", space, 4).loss
    terms = label_terms(outputs, labels, space.kind)
    if name is not None:
        loss = LOSSES[name](space, (5, 4, 3, 2)[: len(space.classes)], **options)
        terms = loss.terms(outputs, labels)
    assert mean_of_terms(*terms).item() == pytest.approx(loss(outputs, labels).item(), rel=1e-6)
    labelled = torch.tensor([True, False, True, True, False, False, True, True])
    found = mean_of_labelled(*terms, labelled, of_all=True)
    assert found.item() == pytest.approx(5 / 8 * loss(outputs[labelled], labels[labelled]).item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(found, outputs)
    assert (gradient[~labelled] == 0).all()
    assert (gradient[labelled] != 0).any()


def test_without_labelled_examples_the_loss_is_0() -> None:
    outputs = torch.randn(3, requires_grad=True)
    loss = mean_of_labelled(*label_terms(outputs, torch.zeros(3), "yes_no"), torch.zeros(3, dtype=torch.bool))
    assert loss.item() == 0
    assert torch.autograd.grad(loss, outputs)[0].tolist() == [0, 0, 0]


# --- symmetric distance -----------------------------------------------------------------------------------------------
def test_classes_and_yes_no_are_the_symmetric_kl_symmetric_distance() -> None:
    torch.manual_seed(0)
    a, b = 3 * torch.randn(6, 4, dtype=torch.float64), 3 * torch.randn(6, 4, dtype=torch.float64)
    p, q = softmax(a.numpy(), -1), softmax(b.numpy(), -1)
    expected = (entropy(p, q, axis=-1) + entropy(q, p, axis=-1)).mean()
    assert symmetric_distance(a, b, "classes").item() == pytest.approx(expected)
    yes = [expit(logits[:, 0].numpy()) for logits in (a, b)]
    p, q = (np.stack([y, 1 - y], -1) for y in yes)
    expected = (entropy(p, q, axis=-1) + entropy(q, p, axis=-1)).mean()
    assert symmetric_distance(a[:, 0], b[:, 0], "yes_no").item() == pytest.approx(expected)


def test_by_hand() -> None:
    """Probabilities (3/4, 1/4) and (1/2, 1/2): (3/4 - 1/2) ln(3/2) + (1/4 - 1/2) ln(1/2) = ln(3)/4."""
    one, other = torch.tensor([[3.0, 1.0]]).log(), torch.zeros(1, 2)
    assert symmetric_distance(one, other, "classes").item() == pytest.approx(np.log(3) / 4)
    assert symmetric_distance(torch.tensor([np.log(3.0)]), torch.zeros(1), "yes_no").item() == pytest.approx(
        np.log(3) / 4
    )
    scores = torch.tensor([0.5, 1.0]), torch.tensor([0.0, 0.8])
    assert symmetric_distance(*scores, "score").item() == pytest.approx((0.25 + 0.04) / 2)


def mtdnn(one: Tensor, other: Tensor) -> Tensor:
    """mt-dnn's symmetric KL, by its definition: the target of each KL is a constant."""
    total = torch.zeros((), dtype=one.dtype)
    for outputs, targets in ((one, other), (other, one)):
        log_p, q = outputs.log_softmax(-1), targets.detach().softmax(-1)
        total = total + torch.nn.functional.kl_div(log_p, q, reduction="batchmean")
    return total


@pytest.mark.parametrize("kind", ["classes", "yes_no", "score"])
def test_fixed_targets_are_mt_dnns(kind: Any) -> None:
    torch.manual_seed(0)
    shape = (6, 4) if kind == "classes" else (6,)
    a, b = (3 * torch.randn(shape, dtype=torch.float64).requires_grad_() for _ in range(2))
    if kind == "classes":
        expected = mtdnn(a, b)
    elif kind == "yes_no":
        expected = mtdnn(torch.stack([a, torch.zeros_like(a)], -1), torch.stack([b, torch.zeros_like(b)], -1))
    else:
        expected = torch.nn.functional.mse_loss(a, b)
    found = symmetric_distance(a, b, kind, fixed_targets=True)
    assert found.item() == pytest.approx(expected.item())
    assert found.item() == pytest.approx(symmetric_distance(a, b, kind).item())
    for one, two in zip(torch.autograd.grad(found, (a, b)), torch.autograd.grad(expected, (a, b)), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(("kind", "ratio"), [("classes", 2.0), ("yes_no", 2.0), ("score", 1.0)])
def test_for_similar_outputs_the_gradient_is_twice_that_of_fixed_targets(kind: Any, ratio: float) -> None:
    torch.manual_seed(0)
    a = torch.randn((6, 4) if kind == "classes" else (6,), dtype=torch.float64)
    b = a + 1e-6 * torch.randn_like(a)
    a.requires_grad_(), b.requires_grad_()
    whole, half = (torch.autograd.grad(symmetric_distance(a, b, kind, fixed), (a, b)) for fixed in (False, True))
    for one, two in zip(whole, half, strict=True):
        torch.testing.assert_close(one, ratio * two, rtol=1e-4, atol=1e-4 * one.abs().max().item())


def test_confident_predictions_have_finite_gradients() -> None:
    one = torch.tensor([[200.0, -200.0]], requires_grad=True)
    symmetric_distance(one, -one.detach(), "classes").backward()
    assert torch.isfinite(one.grad).all()  # type: ignore[arg-type]


# --- distillation -----------------------------------------------------------------------------------------------------
def cross_entropy(outputs: Tensor, targets: Tensor, kind: Any, temperature: float) -> Tensor:
    return distillation_loss(outputs, targets, kind, temperature, "cross_entropy")


def kl(outputs: Tensor, targets: Tensor, kind: Any, temperature: float) -> Tensor:
    return distillation_loss(outputs, targets, kind, temperature, "kl")


def test_cross_entropy_of_classes_by_hand() -> None:
    # The teacher's probabilities are 2/3 and 1/3 (logits ln 2 and 0), the student's 1/2 and 1/2.
    student, teacher = torch.zeros(1, 2), torch.tensor([[2.0, 1.0]]).log()
    assert cross_entropy(student, teacher, "classes", 1.0).item() == pytest.approx(0.693147, rel=1e-5)
    # The student's 1/4 and 3/4: -(2/3 ln 1/4 + 1/3 ln 3/4).
    student = torch.tensor([[1.0, 3.0]]).log()
    assert cross_entropy(student, teacher, "classes", 1.0).item() == pytest.approx(1.020090, rel=1e-5)
    # At temperature 2, logits of ln 4 and ln 9 become ln 2 and ln 3: the same values, times 4.
    softened = cross_entropy(torch.tensor([[1.0, 9.0]]).log(), torch.tensor([[4.0, 1.0]]).log(), "classes", 2.0)
    assert softened.item() == pytest.approx(4 * 1.020090, rel=1e-5)


def test_cross_entropy_of_yes_no_by_hand() -> None:
    # Teacher 0.8, student 0.6: -(0.8 ln 0.6 + 0.2 ln 0.4); temperature 2 halves logits that are twice as large.
    student, teacher = torch.tensor([0.6]).logit(), torch.tensor([0.8]).logit()
    assert cross_entropy(student, teacher, "yes_no", 1.0).item() == pytest.approx(0.591919, rel=1e-5)
    assert cross_entropy(2 * student, 2 * teacher, "yes_no", 2.0).item() == pytest.approx(4 * 0.591919, rel=1e-5)


def test_scores_are_squared_errors_at_any_temperature() -> None:
    student, teacher = torch.tensor([0.2, 0.9]), torch.tensor([0.5, 0.8])
    for temperature in (1.0, 3.0):
        assert cross_entropy(student, teacher, "score", temperature).item() == pytest.approx((0.09 + 0.01) / 2)


@pytest.mark.parametrize("form", ["kl", "cross_entropy"])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_gradient_is_zero_if_the_student_equals_the_teacher(temperature: float, form: Any) -> None:
    torch.manual_seed(0)
    for kind, shape in (("classes", (6, 5)), ("yes_no", (6,)), ("score", (6,))):
        teacher = 2 * torch.randn(shape)
        student = teacher.clone().requires_grad_()
        distillation_loss(student, teacher, kind, temperature, form).backward()
        assert student.grad is not None
        torch.testing.assert_close(student.grad, torch.zeros(shape), atol=1e-6, rtol=0)


def test_distillation_is_float32_from_half_precision() -> None:
    for kind, shape in (("classes", (6, 5)), ("yes_no", (6,)), ("score", (6,))):
        outputs = torch.ones(shape, dtype=torch.bfloat16)
        assert cross_entropy(outputs, outputs, kind, 1.0).dtype == torch.float32


def test_kl_of_classes_at_a_temperature() -> None:
    new, old = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    q = torch.tensor([0.0, 0.0, 2.0]).softmax(-1)  # half the logits
    p = torch.tensor([1.0, 0.0, 0.0]).softmax(-1)
    expected = 4 * (q * (q / p).log()).sum() / 2
    assert kl(new, old, "classes", 2.0).item() == pytest.approx(expected.item(), rel=1e-5)


def test_kl_of_yes_no_and_scores() -> None:
    p, q = torch.tensor(0.5).sigmoid(), torch.tensor(-1.0).sigmoid()
    expected = 4 * (q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log())
    assert kl(torch.tensor([1.0]), torch.tensor([-2.0]), "yes_no", 2.0).item() == pytest.approx(
        expected.item(), rel=1e-5
    )
    assert kl(torch.tensor([0.5, 0.0]), torch.tensor([0.1, 0.0]), "score", 2.0).item() == pytest.approx(0.08)
