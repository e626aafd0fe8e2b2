"""One of several classes: the outputs are class scores, and their softmax is the probability of each class."""

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kinds.base import Array, Form, Kind, LabelReader, Meta
from polytask.kinds.names import (
    ClassNumbers,
    check_number_of_classes,
    class_name,
    given_classes,
    plain_value,
    sorted_classes,
)
from polytask.settings import TaskSpec
from polytask.types import Label, LabelSpace


class Classes(Kind):
    """One class per row. A stored label is a class's number, in order of appearance or in the recipe's order."""

    name = "classes"
    has_confidence = is_calibrated = True

    def reader(self, spec: TaskSpec, known: LabelSpace | None = None, values: Iterable[object] = ()) -> LabelReader:
        return _Reader(ClassNumbers(spec, known))

    def space(self, spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
        classes = given_classes(spec) or sorted_classes(meta["names"])
        check_number_of_classes(spec, classes)
        return LabelSpace("classes", classes)

    def targets(self, labels: LabelSpace, meta: Meta, stored: Array) -> Array:
        indices = np.array([labels.classes.index(name) for name in meta["names"]], dtype=np.int64)
        return indices[stored.astype(np.int64)]

    def label(self, meta: Meta, stored: int | float) -> Label:
        name: str = meta["names"][int(stored)]
        return name

    def class_counts(self, labels: LabelSpace, targets: Array) -> tuple[int, ...]:
        return tuple(np.bincount(targets.astype(np.int64), minlength=len(labels.classes)).tolist())

    def num_outputs(self, labels: LabelSpace) -> int:
        return len(labels.classes)

    def squeeze(self, outputs_BC: Tensor) -> Tensor:
        return outputs_BC

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
        log_p, log_q = one.log_softmax(-1), other.log_softmax(-1)
        # sum_c p_c grad log p_c = 0, so detaching p - q leaves only q_c grad log p_c and p_c grad log q_c.
        change = log_p.exp() - log_q.exp()
        return ((change.detach() if fixed_targets else change) * (log_p - log_q)).sum(-1).mean()

    def distillation(self, outputs: Tensor, teacher: Tensor, temperature: float, form: Form) -> Tensor:
        p, q = outputs / temperature, teacher / temperature
        if form == "kl":
            divergence = F.kl_div(p.log_softmax(-1), q.log_softmax(-1), reduction="batchmean", log_target=True)
            return temperature**2 * divergence
        return temperature**2 * F.cross_entropy(p, q.softmax(-1))

    def mean_outputs(self, outputs_KB: Tensor) -> Tensor:
        return outputs_KB.log_softmax(-1).logsumexp(0) - math.log(len(outputs_KB))

    def decode(self, outputs: Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
        return most_probable(outputs.softmax(-1), labels)

    def predicted(self, outputs: Tensor, labels: LabelSpace) -> Array:
        return outputs.argmax(-1).numpy()

    def probabilities(self, outputs: Tensor, labels: LabelSpace) -> Array | None:
        return outputs.double().softmax(-1).numpy()

    def vote(self, near_NK: Array, weights_NK: Array, labels: LabelSpace) -> tuple[Array, Array | None]:
        """Returns the class with most weight, and each class's share of the weight plus one vote spread over all."""
        votes = np.zeros((len(near_NK), len(labels.classes)))
        np.add.at(votes, (np.arange(len(votes))[:, None], near_NK.astype(np.int64)), weights_NK)
        shares = (votes + 1 / votes.shape[1]) / (votes.sum(1, keepdims=True) + 1)
        return shares.argmax(1), shares


class _Reader(LabelReader):
    def __init__(self, numbers: ClassNumbers) -> None:
        super().__init__()
        self._numbers = numbers

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._numbers.names

    def _read(self, value: object) -> int:
        return self._numbers.number(class_name(plain_value(value)))


def most_probable(probabilities_BC: torch.Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
    """Returns each row's most probable class, and the probability of every class."""
    return [
        (labels.classes[row.index(max(row))], dict(zip(labels.classes, row, strict=True)))
        for row in probabilities_BC.tolist()
    ]
