"""What every head is: a task's pooled sequences in, its outputs, loss and predictions out.

A head's own file says how vectors become outputs; what the outputs mean (their loss, and the answers decoded from them)
follows from the task's kind of label, and stands here. Knows no other task, and of the encoder what `Encoded` holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.stream import Encoded, Pooling
from polytask.types import LabelKind, LabelSpace, Prediction, UserError


class Head(nn.Module, ABC):
    """Outputs are [B, C] class scores, [B] logits of yes, or [B] scores scaled to 0..1."""

    apart: ClassVar[bool] = False
    """A pair's texts go through the encoder as two sequences rather than one."""
    texts: ClassVar[tuple[int, ...]] = (1, 2)
    """How many texts an example may have."""
    kinds: ClassVar[tuple[LabelKind, ...]] = ("classes", "yes_no", "score")
    """The kinds of label it fits."""
    copies: ClassVar[int] = 1
    """How often each example's texts go into the stream."""
    masked: float | None = None
    """The share of an example's tokens that is hidden before it goes into the stream."""
    pretrained: ClassVar[Mapping[str, str]] = {}
    """Own parameters, and their names in the files of encoders that come with such a head."""

    def __init__(self, task: str, labels: LabelSpace) -> None:
        super().__init__()
        self.task = task
        self.labels = labels

    @property
    def num_outputs(self) -> int:
        return len(self.labels.classes) if self.labels.kind == "classes" else 1

    def set_norm_eps(self, eps: float) -> None:
        """Called when the model is made, with the eps of the encoder's layer norms. Heads without a norm ignore it."""

    @abstractmethod
    def forward(self, encoded: Encoded) -> Tensor:
        """The task's outputs for its examples in a stream, in order."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean over the examples: cross-entropy, binary cross-entropy, or squared error on scores scaled to 0..1."""
        match self.labels.kind:
            case "classes":
                return F.cross_entropy(outputs.float(), labels)
            case "yes_no":
                return F.binary_cross_entropy_with_logits(outputs.float(), labels)
            case "score":
                return F.mse_loss(outputs.float(), labels)
            case "text":
                raise NotImplementedError("heads of plain text have losses of their own")

    def decode(self, outputs: Tensor) -> list[Prediction]:
        """Each example's prediction in the task's own words: a class name, yes or no, or a score of its range."""
        outputs = outputs.float()
        if self.labels.kind == "score":
            values = outputs.clamp(0, 1).tolist()
            return [Prediction(self.task, self.labels.unscaled(value)) for value in values]
        probabilities = (
            torch.stack((-outputs, outputs), -1).sigmoid() if self.labels.kind == "yes_no" else outputs.softmax(-1)
        )
        return [
            Prediction(
                self.task, self.labels.classes[row.index(max(row))], dict(zip(self.labels.classes, row, strict=True))
            )
            for row in probabilities.tolist()
        ]

    def squeeze(self, outputs_BC: Tensor) -> Tensor:
        """[B, 1] -> [B] for kinds with one output."""
        return outputs_BC if self.labels.kind == "classes" else outputs_BC.squeeze(-1)


class PooledHead(Head):
    """Dropout and one linear map on one vector for each example."""

    def __init__(self, task: str, labels: LabelSpace, features: int, pooling: Pooling, dropout: float) -> None:
        super().__init__(task, labels)
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(features, self.num_outputs)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def features(self, encoded: Encoded) -> Tensor:
        """[B, features]: by default the pooled sequence."""
        return encoded.pool(self.pooling)

    def forward(self, encoded: Encoded) -> Tensor:
        return self.squeeze(self.output(self.dropout(self.features(encoded))))


class TextHead(Head):
    """Plain text: nothing to predict, but how surprising a text is. Outputs are what `surprise` needs, [B, ...]."""

    texts: ClassVar[tuple[int, ...]] = (1,)
    kinds: ClassVar[tuple[LabelKind, ...]] = ("text",)

    @abstractmethod
    def surprise(self, outputs: Tensor) -> Tensor:
        """[B, 2]: for each text, the sum of -log p over what was asked of it, and how much was asked."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over all that was asked; 0 where nothing was."""
        total, asked = self.surprise(outputs).sum(0).unbind()
        return total / asked.clamp(min=1)

    def decode(self, outputs: Tensor) -> list[Prediction]:
        raise UserError(f"task {self.task} is plain text: it has no labels, so there is nothing to predict")
