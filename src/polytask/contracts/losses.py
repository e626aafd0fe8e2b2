"""Properties of losses, on six examples: a loss is a mean, is smooth, and is smallest at the true label."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polytask.contracts.claims import require, require_close, require_finite
from polytask.kinds.choice import MISSING
from polytask.losses.base import Loss
from polytask.types import NO_LABEL, YES_NO, LabelKind, LabelSpace

Method = Callable[[LabelSpace, tuple[int, ...]], Loss]
SPACES: dict[LabelKind, LabelSpace] = {
    "classes": LabelSpace("classes", ("a", "b", "c", "d")),
    "yes_no": YES_NO,
    "score": LabelSpace("score", low=0, high=5),
    "multilabel": LabelSpace("multilabel", ("a", "b", "c", "d"), separator="|"),
    "tokens": LabelSpace("tokens", ("a", "b", "c", "d"), scheme="plain"),
    "choice": LabelSpace("choice"),
}
COUNTS: dict[LabelKind, tuple[int, ...]] = {
    "classes": (50, 10, 5, 1),
    "yes_no": (30, 10),
    "score": (),
    "multilabel": (9, 5, 3, 0),
    "tokens": (50, 10, 5, 1),
    "choice": (),
}
LABELS: dict[LabelKind, Tensor] = {
    "classes": torch.tensor([0, 1, 2, 3, 0, 2]),
    "yes_no": torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0]),
    "score": torch.tensor([0.0, 0.2, 0.5, 1.0, 0.7, 0.4]),
    "multilabel": torch.tensor(
        [[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0]], dtype=torch.float32
    ),
    "tokens": torch.tensor([[0, 1], [2, 3], [3, NO_LABEL], [0, 0], [1, NO_LABEL], [2, 0]]),
    "choice": torch.tensor([[0, 4], [3, 4], [2, 3], [1, 2], [1, 4], [2, 4]]),
}


@dataclass(frozen=True)
class Subject:
    """A loss and the kind of label that it is tried with."""

    method: Method
    kind: LabelKind

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        loss = self.method(SPACES[self.kind], COUNTS[self.kind])
        if self.kind == "choice":
            return lambda scores, labels: loss(scores.masked_fill(torch.arange(4) >= labels[:, 1:], MISSING), labels)
        if self.kind != "tokens":
            return loss
        # The last output of a word says that there is one, and is not learned.
        return lambda scores, labels: loss(torch.cat([scores, (labels != NO_LABEL)[..., None].to(scores)], -1), labels)

    @property
    def labels(self) -> Tensor:
        return LABELS[self.kind]

    def outputs(self, **more: Any) -> Tensor:
        torch.manual_seed(0)
        shapes: dict[LabelKind, tuple[int, ...]] = {"classes": (6, 4), "multilabel": (6, 4), "tokens": (6, 2, 4)}
        shapes["choice"] = (6, 4)
        return torch.randn(shapes.get(self.kind, (6,)), **more)


def subjects(kinds: Iterable[LabelKind], method: Method) -> dict[str, Subject]:
    """The loss with each kind of label that it supports."""
    return {f"kind {kind}": Subject(method, kind) for kind in kinds if kind in SPACES}


# --- properties -------------------------------------------------------------------------------------------------------
def float32_from_half_precision(subject: Subject) -> None:
    """The loss of half-precision outputs is a finite float32 scalar with finite gradients, also for large outputs."""
    for scale in (1, 200):  # 200: every probability is 0 or 1
        outputs = (scale * subject.outputs()).bfloat16().requires_grad_()
        loss = subject.loss(outputs, subject.labels)
        require(loss.shape == (), f"the loss must be a scalar, found the shape {tuple(loss.shape)}")
        require(loss.dtype == torch.float32, f"the loss of bf16 outputs must be float32, found {loss.dtype}")
        require_finite(loss, f"the loss of outputs of size {scale}")
        loss.backward()
        require(outputs.grad is not None, "the loss has no gradient")
        assert outputs.grad is not None
        require_finite(outputs.grad, f"the gradient at outputs of size {scale}")
        exact = float(subject.loss(outputs.detach().double(), subject.labels))
        equal = abs(loss.item() - exact) <= 1e-5 * abs(exact) + 1e-12
        require(equal, f"the loss of bf16 outputs is {loss.item()}, that of the same numbers in float64 {exact}")


def gradient_against_finite_differences(subject: Subject) -> None:
    """The gradient is that of the formula."""
    loss = subject.loss
    outputs = subject.outputs(dtype=torch.float64, requires_grad=True)
    dtype = loss(outputs, subject.labels).dtype
    require(dtype == torch.float64, f"the loss of float64 outputs is {dtype}: use at_least_float32 instead of float()")
    try:
        torch.autograd.gradcheck(lambda x: loss(x, subject.labels), outputs)
    except RuntimeError as error:
        raise AssertionError(f"the gradient differs from finite differences: {str(error).splitlines()[0]}") from None


def a_mean_over_the_examples(subject: Subject) -> None:
    """Examples twice, or in another order, have the same loss, which is above 0 for wrong outputs."""
    loss, outputs, labels = subject.loss, subject.outputs(), subject.labels
    once = loss(outputs, labels)
    twice = loss(torch.cat([outputs, outputs]), torch.cat([labels, labels]))
    require_close(twice, once, "the loss must be a mean: examples that occur twice change it", atol=1e-5, rtol=1e-5)
    turned = loss(outputs.flip(0), labels.flip(0))
    require_close(turned, once, "the loss depends on the order of the examples", atol=1e-5, rtol=1e-5)
    require(once > 0, f"the loss of wrong outputs must be above 0, found {float(once)}")


def smallest_at_the_right_answer(subject: Subject) -> None:
    """Outputs that minimize the loss are the labels."""
    loss, labels, kind = subject.loss, subject.labels, subject.kind
    outputs = torch.zeros_like(subject.outputs()).requires_grad_()
    optimizer = torch.optim.Adam([outputs], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss(outputs, labels).backward()
        optimizer.step()
    message = "outputs that minimize the loss do not predict the labels"
    if kind in ("classes", "tokens"):
        require(torch.equal(outputs.argmax(-1)[labels != NO_LABEL], labels[labels != NO_LABEL]), message)
    elif kind == "choice":
        require(torch.equal(outputs.argmax(-1), labels[:, 0]), message)
    elif kind in ("yes_no", "multilabel"):
        require(torch.equal((outputs > 0).float(), labels), message)
    else:
        require_close(outputs.detach(), labels, message, atol=0.05)


PROPERTIES = (
    float32_from_half_precision,
    gradient_against_finite_differences,
    a_mean_over_the_examples,
    smallest_at_the_right_answer,
)
