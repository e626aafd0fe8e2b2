"""For classes that have an order: a near miss costs less than a far one."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.losses.base import Loss, precise
from polytask.types import LabelKind, LabelSpace, UserError


class Ordinal(Loss):
    """A near miss costs less than a far one: for classes that stand in an order, as `classes` of the task gives them.

        soft:  -sum_j q_j log p_j,  q_j ~ exp(-slope |j - y|^power)
        emd:   sum_j (P_j - Y_j)^2, P and Y the cumulative probabilities of the outputs and of the label

    The outputs stay class scores. `slope` and `power` are those of soft: the larger, the nearer to plain cross-entropy.

    Papers: Diaz & Marathe, "Soft Labels for Ordinal Regression", 2019 (soft; the distance is theirs to choose by task);
    Hou et al., "Squared Earth Mover's Distance-based Loss for Training Deep Neural Networks", 2016 (emd).
    """

    kinds: ClassVar[tuple[LabelKind, ...]] = ("classes",)

    def __init__(
        self,
        labels: LabelSpace,
        counts: tuple[int, ...],
        *,
        form: Literal["soft", "emd"] = "soft",
        slope: float = 2.0,
        power: float = 1.0,
    ) -> None:
        super().__init__(labels, counts)
        for name, value in {"slope": slope, "power": power}.items():
            if value <= 0:
                raise UserError(f"recipe: loss.{name}: a number above 0 is needed, found {value}")
        self.form = form
        places_C = torch.arange(len(labels.classes), dtype=torch.float64)
        distances_CC = (places_C - places_C[:, None]).abs()
        soft_CC = (-slope * distances_CC**power).softmax(-1)
        reached_CC = (places_C >= places_C[:, None]).double()
        self.targets_CC = soft_CC if form == "soft" else reached_CC
        """What to aim at for each label: probabilities, or cumulative ones."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs = precise(outputs)
        self.targets_CC = self.targets_CC.to(outputs)  # once: afterwards they are where they should be
        if self.form == "soft":
            return F.cross_entropy(outputs, self.targets_CC[labels])
        return (outputs.softmax(-1).cumsum(-1) - self.targets_CC[labels]).square().sum(-1).mean()
