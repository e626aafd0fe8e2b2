"""Plain text without labels: its heads (`heads.base.TextHead`) define their own outputs and loss."""

from collections.abc import Iterable
from typing import NoReturn

import numpy as np
from torch import Tensor

from polytask.kinds.base import Array, Form, Kind, LabelReader, Meta
from polytask.settings import TaskSpec
from polytask.types import Label, LabelSpace


class PlainText(Kind):
    """No labels. The stored label of every row is 0."""

    name = "text"
    has_labels = False
    has_predictions = False

    def reader(self, spec: TaskSpec, known: LabelSpace | None = None, values: Iterable[object] = ()) -> LabelReader:
        return _Reader()

    def space(self, spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
        return LabelSpace("text", vocabulary=vocabulary)

    def targets(self, labels: LabelSpace, meta: Meta, stored: Array) -> Array:
        return stored.astype(np.int64)

    def label(self, meta: Meta, stored: int | float) -> Label:
        return None

    def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
        return 0.0 * (one - other).sum()  # no labels to compare: zero, but differentiable

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError("heads for plain text must define their own loss")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _no_labels()

    def distillation(self, outputs: Tensor, teacher: Tensor, temperature: float, form: Form) -> Tensor:
        _no_labels()

    def mean_outputs(self, outputs_KB: Tensor) -> Tensor:
        _no_labels()

    def decode(self, outputs: Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
        _no_labels()

    def predicted(self, outputs: Tensor, labels: LabelSpace) -> Array:
        _no_labels()


class _Reader(LabelReader):
    def _read(self, value: object) -> int:
        return 0


def _no_labels() -> NoReturn:
    raise AssertionError("plain text has no labels, so there is nothing to predict, compare or distill")
