"""Yes or no: the output is the logit of yes."""

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kinds.base import Array, ClassScores, Form, Kind, LabelReader, Meta
from polytask.kinds.classes import Classes, most_probable
from polytask.kinds.names import class_name, plain_value, yes_or_no
from polytask.settings import TaskSpec
from polytask.types import YES_NO, Label, LabelSpace


class YesNo(Kind):
    """Two fixed classes, no and yes. A stored label and a target are 0 or 1."""

    name = "yes_no"
    has_confidence = is_calibrated = True

    def reader(self, spec: TaskSpec, known: LabelSpace | None = None, values: Iterable[object] = ()) -> LabelReader:
        return _Reader()

    def space(self, spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
        return YES_NO

    def targets(self, labels: LabelSpace, meta: Meta, stored: Array) -> Array:
        return stored.astype(np.float32)

    def label(self, meta: Meta, stored: int | float) -> Label:
        return YES_NO.classes[int(stored)]

    def class_counts(self, labels: LabelSpace, targets: Array) -> tuple[int, ...]:
        return Classes().class_counts(labels, targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")

    def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
        # Two classes with logits x and 0: the formula of classes, simplified.
        change = one.sigmoid() - other.sigmoid()
        return ((change.detach() if fixed_targets else change) * (one - other)).mean()

    def distillation(self, outputs: Tensor, teacher: Tensor, temperature: float, form: Form) -> Tensor:
        p, q = outputs / temperature, teacher / temperature
        if form == "kl":  # two classes with logits x and 0
            p, q = (torch.stack((x, torch.zeros_like(x)), dim=-1) for x in (p, q))
            divergence = F.kl_div(p.log_softmax(-1), q.log_softmax(-1), reduction="batchmean", log_target=True)
            return temperature**2 * divergence
        return temperature**2 * F.binary_cross_entropy_with_logits(p, q.sigmoid())

    def mean_outputs(self, outputs_KB: Tensor) -> Tensor:
        return F.logsigmoid(outputs_KB).logsumexp(0) - F.logsigmoid(-outputs_KB).logsumexp(0)

    def decode(self, outputs: Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
        return most_probable(torch.stack((-outputs, outputs), -1).sigmoid(), labels)

    def predicted(self, outputs: Tensor, labels: LabelSpace) -> Array:
        return (outputs > 0).numpy().astype(np.int64)

    def probabilities(self, outputs: Tensor, labels: LabelSpace) -> Array | None:
        return torch.stack((-outputs, outputs), -1).double().sigmoid().numpy()

    def class_scores(self, outputs: Tensor, targets: Array) -> ClassScores:
        return super().class_scores(torch.stack((torch.zeros_like(outputs), outputs), -1), targets)

    def vote(self, near_NK: Array, weights_NK: Array, labels: LabelSpace) -> tuple[Array, Array | None]:
        return Classes().vote(near_NK, weights_NK, labels)


class _Reader(LabelReader):
    def _read(self, value: object) -> int:
        return yes_or_no(class_name(plain_value(value)))
