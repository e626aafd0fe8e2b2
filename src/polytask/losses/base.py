"""What a task learns to make small, where the recipe names something other than its head's own loss.

Knows outputs and labels; knows no model and no other task. Outputs stay what they were ([B, C] class scores, [B] logits
of yes, [B] scores scaled to 0..1), so that predictions, regularizers and evaluation are the same with every loss.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from polytask.types import LabelKind, LabelSpace


class Loss(ABC):
    """Outputs and labels of a task's examples in, their mean loss out."""

    kinds: ClassVar[tuple[LabelKind, ...]]
    """The kinds of label it fits."""

    def __init__(self, labels: LabelSpace, counts: tuple[int, ...]) -> None:
        self.labels = labels
        self.counts = counts
        """Training examples of each class (no, yes for yes_no); empty for scores."""

    @abstractmethod
    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean over the examples, in float32."""
