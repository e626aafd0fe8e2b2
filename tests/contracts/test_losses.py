"""Every loss of the table: supports the kinds it declares, is a mean, is smooth, and is smallest at the true label."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.build import make_loss
from polytask.losses import LOSSES
from polytask.losses.base import Loss
from polytask.settings import MethodChoice, TaskSpec
from polytask.types import YES_NO, LabelKind, LabelSpace, UserError

SPACES: dict[LabelKind, LabelSpace] = {
    "classes": LabelSpace("classes", ("a", "b", "c", "d")),
    "yes_no": YES_NO,
    "score": LabelSpace("score", low=0, high=5),
    "multilabel": LabelSpace("multilabel", ("a", "b", "c", "d"), separator="|"),
}
COUNTS: dict[LabelKind, tuple[int, ...]] = {
    "classes": (50, 10, 5, 1),
    "yes_no": (30, 10),
    "score": (),
    "multilabel": (9, 5, 3, 0),
}
LABELS: dict[LabelKind, Tensor] = {
    "classes": torch.tensor([0, 1, 2, 3, 0, 2]),
    "yes_no": torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0]),
    "score": torch.tensor([0.0, 0.2, 0.5, 1.0, 0.7, 0.4]),
    "multilabel": torch.tensor(
        [[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0]]
    ).float(),
}
OPTIONS: dict[str, list[dict[str, Any]]] = {  # in addition to the defaults
    "cross_entropy": [{"smoothing": 0.1}, {"class_weights": "balanced"}],
    "focal": [{"gamma": 0.5}, {"class_weights": "balanced"}],
    "ordinal": [{"form": "emd"}, {"slope": 0.5, "power": 2.0}],
}
CASES = [
    pytest.param(name, kind, options, id=f"{name}-{kind}-{'-'.join(options) or 'plain'}")
    for name, method in LOSSES.items()
    for kind in method.kinds
    for options in [{}, *OPTIONS.get(name, [])]
]


def spec(kind: LabelKind, loss: MethodChoice | None) -> TaskSpec:
    return TaskSpec("t", kind, ("text",), "label", "train.csv", "dev.csv", loss=loss)


def made(name: str, kind: LabelKind, options: dict[str, Any]) -> Loss:
    loss = make_loss(spec(kind, MethodChoice(name, options)), SPACES[kind], COUNTS[kind])
    assert loss is not None
    return loss


def some_outputs(kind: LabelKind, **more: Any) -> Tensor:
    torch.manual_seed(0)
    return torch.randn((6, 4) if kind in ("classes", "multilabel") else (6,), **more)


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n in LOSSES for k in SPACES if k not in LOSSES[n].kinds])
def test_other_kinds_are_refused_with_those_that_fit(name: str, kind: LabelKind) -> None:
    fits = [other for other, method in LOSSES.items() if kind in method.kinds]
    others = f"choose one of: {', '.join(fits)}" if fits else "leave it out"
    message = f"tasks.t.loss: {name} does not support kind {kind}; {others}"
    for options in [{}, *OPTIONS.get(name, [])]:
        with pytest.raises(UserError, match=message):
            make_loss(spec(kind, MethodChoice(name, options)), SPACES[kind], COUNTS[kind])


def test_no_loss_is_the_heads_own() -> None:
    assert make_loss(spec("classes", None), SPACES["classes"], COUNTS["classes"]) is None


@pytest.mark.parametrize(("name", "kind", "options"), CASES)
def test_float32_from_half_precision(name: str, kind: LabelKind, options: dict[str, Any]) -> None:
    for scale in (1, 200):  # 200: every probability is 0 or 1
        outputs = (scale * some_outputs(kind)).bfloat16().requires_grad_()
        loss = made(name, kind, options)(outputs, LABELS[kind])
        loss.backward()
        assert loss.dtype == torch.float32
        assert loss.shape == ()
        assert torch.isfinite(loss)
        assert outputs.grad is not None
        assert torch.isfinite(outputs.grad).all()
        exact = made(name, kind, options)(outputs.detach().double(), LABELS[kind])
        assert loss.item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize(("name", "kind", "options"), CASES)
def test_gradient_against_finite_differences(name: str, kind: LabelKind, options: dict[str, Any]) -> None:
    loss = made(name, kind, options)
    outputs = some_outputs(kind, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: loss(x, LABELS[kind]), outputs)


@pytest.mark.parametrize(("name", "kind", "options"), CASES)
def test_a_mean_over_the_examples_in_any_order(name: str, kind: LabelKind, options: dict[str, Any]) -> None:
    loss, outputs, labels = made(name, kind, options), some_outputs(kind), LABELS[kind]
    once = loss(outputs, labels)
    torch.testing.assert_close(loss(torch.cat([outputs, outputs]), torch.cat([labels, labels])), once)
    torch.testing.assert_close(loss(outputs.flip(0), labels.flip(0)), once)
    assert once > 0


@pytest.mark.parametrize(("name", "kind", "options"), CASES)
def test_smallest_at_the_right_answer(name: str, kind: LabelKind, options: dict[str, Any]) -> None:
    loss, labels = made(name, kind, options), LABELS[kind]
    outputs = torch.zeros_like(some_outputs(kind)).requires_grad_()
    optimizer = torch.optim.Adam([outputs], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss(outputs, labels).backward()
        optimizer.step()
    if kind == "classes":
        assert torch.equal(outputs.argmax(-1), labels)
    elif kind in ("yes_no", "multilabel"):
        assert torch.equal((outputs > 0).float(), labels)
    else:
        torch.testing.assert_close(outputs.detach(), labels, atol=0.05, rtol=0)
