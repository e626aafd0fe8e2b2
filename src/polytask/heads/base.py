"""The interface of heads: a task's part of the encoder's output in, the task's outputs, loss and predictions out.

A head's own file says how hidden states become outputs. What the outputs mean (their loss, and the predictions decoded
from them) follows from the task's kind of label and is defined here. A head knows no other task, and it sees only the
part of the encoder's output that `Encoded` holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from polytask.kinds.base import Kind
from polytask.kinds.table import kind_of
from polytask.settings import Windows
from polytask.stream import Encoded, Pooling, Reading
from polytask.types import LabelKind, LabelSpace, Prediction, UserError


class Head(nn.Module, ABC):
    """Maps the encoder's output to [B, C] class scores or logits, [B] logits of yes, [B] scaled scores, or [B, M]
    scores of options."""

    reading: ClassVar[Reading] = "joined"
    """The sequences of several texts that are encoded."""
    texts: ClassVar[tuple[int, ...]] = (1, 2)
    """How many texts an example may have, without options."""
    kinds: ClassVar[tuple[LabelKind, ...]] = ("classes", "yes_no", "score", "multilabel")
    """The kinds of label it supports."""
    needs_range: ClassVar[bool] = False
    """Whether scores must have a range, because the head's outputs have one."""
    copies: ClassVar[int] = 1
    """How many times each example's texts are put into the stream."""
    pretrained: ClassVar[tuple[Mapping[str, str], ...]] = ()
    """For each kind of encoder files that include such a head: the head's parameters -> their names there."""
    pooling: Pooling | None = None
    """How the head pools each sequence into one vector, which must then be all that it reads of the sequence; None: the
    head reads the hidden states of all tokens. Prediction, export and some regularizers depend on it."""
    mask_share: float | None = None
    """The share of an example's tokens that is masked before it is encoded; None: no masking."""
    compares_examples: ClassVar[bool] = False
    """Whether the loss of an example depends on the other examples of the step."""
    stride: int | None = None
    """For heads with an output for each word: see `text.packing.InputFormat.stride`. None: one output per example."""

    windows: Windows | None = None
    """How the task's long texts are cut into windows (its `windows` in the recipe); None: they are truncated."""

    def __init__(self, task: str, labels: LabelSpace) -> None:
        super().__init__()
        self.task = task
        self.labels = labels
        self.kind: Kind = kind_of(labels)
        """The kind of the task's labels, which defines what outputs mean."""

    @property
    def num_outputs(self) -> int:
        return self.kind.num_outputs(self.labels)

    def set_norm_eps(self, eps: float) -> None:
        """Called when the model is built, with the eps of the encoder's layer norms. Heads without a norm ignore it."""

    @abstractmethod
    def forward(self, encoded: Encoded) -> Tensor:
        """Return the task's outputs for its examples in a stream, in order."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean over the examples of cross-entropy, binary cross-entropy, or squared error of scaled scores."""
        return self.kind.loss(outputs.float(), labels)

    @property
    def is_divisible(self) -> bool:
        """Whether the loss is a mean whose weight is known, so that several processes can compute parts of it."""
        known = type(self).loss is Head.loss or type(self).loss_weight is not Head.loss_weight
        return known and not self.compares_examples

    def loss_weight(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return what `loss` is divided by: the number of examples, or of words that have a label.

        A head that overrides `loss` must override this too; otherwise processes do not divide its examples.
        """
        return self.kind.terms(outputs.float(), labels)[1].sum()

    def decode(self, outputs: Tensor) -> list[Prediction]:
        """Return each example's prediction as the task's files write it: a class name, yes or no, or a score."""
        return [Prediction(self.task, *decoded) for decoded in self.kind.decode(outputs.float(), self.labels)]

    def squeeze(self, outputs_BC: Tensor) -> Tensor:
        """[B, 1] -> [B] for kinds with one output."""
        return self.kind.squeeze(outputs_BC)

    def uninformed_outputs(self, labels: Tensor) -> Tensor:
        """Return outputs for examples with these labels that ignore the texts: equal probabilities, or the mean score.

        `train.loss_scale: even` divides the task's loss by the loss of these outputs.
        """
        return self.kind.uninformed(labels, self.num_outputs)


class PooledHead(Head):
    """Dropout and one linear layer on one vector per example.

    If the task's scores are standardized, the linear layer's output z is a standardized score, and the head's output is
    the score `mean + deviation z`, scaled to [0, 1] like every head's: an untrained head predicts the mean.
    """

    pooling: Pooling

    def __init__(self, task: str, labels: LabelSpace, features: int, pooling: Pooling, dropout: float) -> None:
        super().__init__(task, labels)
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(features, self.num_outputs)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def features(self, encoded: Encoded) -> Tensor:
        """Return [B, features]: by default the pooled sequence."""
        return encoded.pool(self.pooling)

    def forward(self, encoded: Encoded) -> Tensor:
        return self.project(self.features(encoded))

    def project(self, features_BF: Tensor) -> Tensor:
        """Apply dropout and the linear layer: return class scores, logits of yes, or scores scaled to [0, 1]."""
        outputs = self.squeeze(self.output(self.dropout(features_BF)))
        if self.labels.standardized_by is None:
            return outputs
        scores: Tensor = self.labels.from_standardized(outputs.float())
        return scores


class TextHead(Head):
    """A head for plain text, which predicts no label but measures how probable a text is.

    Outputs are whatever `surprise` needs, [B, ...].
    """

    texts: ClassVar[tuple[int, ...]] = (1,)
    kinds: ClassVar[tuple[LabelKind, ...]] = ("text",)

    @abstractmethod
    def uninformed_outputs(self, labels: Tensor) -> Tensor:
        """Return outputs for as many texts as there are labels (all 0) that ignore the texts."""

    @abstractmethod
    def surprise(self, outputs: Tensor) -> Tensor:
        """Return [B, 2]: for each text the sum of -log p over its predicted items, and the number of these items."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean of -log p over all predicted items; 0 if there are none."""
        total, count = self.surprise(outputs).sum(0).unbind()
        return total / count.clamp(min=1)

    def loss_weight(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the number of predicted items."""
        return self.surprise(outputs)[:, 1].sum()

    def decode(self, outputs: Tensor) -> list[Prediction]:
        raise UserError(f"task {self.task} is plain text: it has no labels, so there is nothing to predict")
