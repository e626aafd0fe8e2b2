"""The interface of a kind of label: how it is read from files, learned from outputs, predicted and scored.

A kind is one file. Heads, losses, regularizers, evaluation and data reading ask it for what differs between kinds, and
know none of them by name where they can avoid it. A stored label is one number per row (`LabelReader.read`); a target
is what heads and metrics take: a number per row, or a row of numbers. Knows arrays; knows no file, no text, no model.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask.kinds.names import MOST_CLASSES
from polytask.settings import TaskSpec
from polytask.types import Label, LabelKind, LabelSpace

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]
"""True and predicted labels."""
Meta = Mapping[str, Any]
"""What a reader says about its numbers (`LabelReader.meta`), as a store of tokens keeps it."""
Form = Literal["kl", "cross_entropy"]


class ClassScores(NamedTuple):
    """The scores and labels of N rows: of examples, of words with a label, or of the classes of each example."""

    scores_NC: npt.NDArray[np.float64]
    """Their softmax is the probability of each class or option; those of no and yes are 0 and the logit."""
    gold_N: npt.NDArray[np.int64]
    example_N: npt.NDArray[np.int64]
    """The example of each row: the text of each word or class."""


class LabelReader(ABC):
    """Turns the raw labels of one split into numbers."""

    names: tuple[str, ...] = ()
    """The classes, each at its number; empty for kinds without classes."""
    options: tuple[object, ...] = ()
    """What the numbers depend on, in addition to the task's description and `names`."""

    def __init__(self) -> None:
        self._seen: dict[str, int | float] = {}

    @property
    def meta(self) -> dict[str, Any]:
        """What is needed to interpret the numbers, as JSON values."""
        return {"names": self.names}

    def read(self, value: object) -> int | float:
        """Returns the label as a number; raises LabelProblem if it cannot be used.

        `value` is that of the label column, or a list with those of several label columns.
        """
        if not isinstance(value, str):
            return self._read(value)
        number = self._seen.get(value)  # a label that was read before need not be parsed again
        if number is None:
            number = self._read(value)
            if len(self._seen) < MOST_CLASSES:
                self._seen[value] = number
        return number

    def read_texts(self, texts: Sequence[str]) -> int:
        """Returns the number that is stored for a row without a label."""
        return 0

    @abstractmethod
    def _read(self, value: object) -> int | float: ...

    def read_words(self, words: Sequence[tuple[int, int]], value: object) -> list[int]:
        """Returns the numbers of the labels of words, for kinds that are `per_word`; raises LabelProblem.

        `words` has the first character of each word of the text, and the one after its last.
        """
        raise NotImplementedError("labels of this kind are those of texts, not of words")


class Kind(ABC):
    """A kind of label. Shapes: B or N examples, C classes, K models."""

    name: ClassVar[LabelKind]
    has_labels: ClassVar[bool] = True
    """Whether the rows of its files have labels."""
    has_predictions: ClassVar[bool] = True
    """Whether it has predictions, which can be written, scored and compared."""
    is_calibrated: ClassVar[bool] = False
    """Whether it has probabilities that a temperature calibrates (`class_scores`)."""
    has_confidence: ClassVar[bool] = False
    """Whether a prediction is one class with a probability (for tags, one for each word), and the probabilities of all
    classes sum to 1: the model may then abstain. (`settings.ABSTAINING` has the same kinds, but needs no torch.)"""
    compared_field: ClassVar[str] = "prediction"
    """What metrics compare with the labels: a field of a file of predictions."""
    stored_type: ClassVar[Literal["int", "float"]] = "int"
    """The type of the numbers that readers return."""
    per_word: ClassVar[bool] = False
    """Whether each word of a text has a label (`LabelReader.read_words`). Stored labels are then [N, W], with NO_LABEL
    behind the last word of a row."""
    form: LabelKind | None = None
    """For a kind of a plug-in: the built-in kind whose form its targets, outputs and predictions have, so that heads,
    losses and metrics of that kind suit it. Default: the kind that it derives from. None for built-in kinds."""
    examples: tuple[Any, ...] = ()
    """For a kind of a plug-in: six or more labels as files write them, for `polytask contract`."""
    version: str = ""
    """For a kind of a plug-in: what changes with its code."""

    # --- labels in files ----------------------------------------------------------------------------------------------
    @abstractmethod
    def reader(self, spec: TaskSpec, known: LabelSpace | None = None, values: Iterable[object] = ()) -> LabelReader:
        """Returns a reader of one split's labels.

        `known` is the task's label space, if it is known from another split: other classes are then refused. `values`
        are the labels of the split, for kinds that guess how they are written; they are read only if needed.
        """

    @abstractmethod
    def space(self, spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
        """Returns the label space of a task from its training rows (from its dev rows if it has none).

        `vocabulary` is the size of the tokenizer's vocabulary, for plain text.
        """

    @abstractmethod
    def targets(self, labels: LabelSpace, meta: Meta, stored: Array) -> Array:
        """Converts stored numbers to what heads learn: [N], or [N, C]."""

    @abstractmethod
    def label(self, meta: Meta, stored: int | float) -> Label:
        """Converts a stored number to the label as files write it."""

    def label_of(self, meta: Meta, stored: int | float, texts: Sequence[str]) -> Label:
        """Converts the stored number of a row with these texts to the label as files write it."""
        return self.label(meta, stored)

    def recorded(self, lines: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> tuple[Array, Array]:
        """Returns the true and the predicted labels of the lines of a file of predictions, as metrics take them."""
        gold, predicted = ([line[name] for line in lines] for name in ("label", self.compared_field))
        return self.compared_values(gold, predicted, classes)

    def numbers(self, values: Sequence[Any], classes: Sequence[str]) -> Array:
        """Converts labels or predictions of a file of predictions to what metrics take."""
        index = {name: number for number, name in enumerate(classes)}
        return np.array([index[value] for value in values])

    def class_counts(self, labels: LabelSpace, targets: Array) -> tuple[int, ...]:
        """Counts the rows of each class; empty for kinds without classes."""
        return ()

    # --- outputs of heads ---------------------------------------------------------------------------------------------
    def num_outputs(self, labels: LabelSpace) -> int:
        """Returns the number of outputs of a head for one example."""
        return 1

    def squeeze(self, outputs_BC: Tensor) -> Tensor:
        """Returns [B] for kinds with one output, [B, C] for the others."""
        return outputs_BC.squeeze(-1)

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean loss over examples."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of each example: [B]."""

    def terms(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the terms of the mean loss (`losses.base.Loss.terms`): losses [B], and their weights [B]."""
        losses_B = self.losses(outputs, targets)
        return losses_B, torch.ones_like(losses_B)

    def num_items(self, outputs: Tensor) -> int | Tensor:
        """Returns what means over outputs are divided by, those of `distance` and `distillation`: the examples."""
        return len(outputs)

    def scaled(self, outputs: Tensor, temperature: float) -> Tensor:
        """Returns outputs whose probabilities have this temperature."""
        return outputs / temperature

    def uninformed(self, targets: Tensor, num_outputs: int) -> Tensor:
        """Returns outputs for these examples that ignore the texts: equal probabilities, or the mean score."""
        return targets.new_zeros((len(targets), num_outputs), dtype=torch.float32).squeeze(-1)

    @abstractmethod
    def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
        """Returns the mean over examples of a symmetric divergence: see `losses.base.symmetric_distance`."""

    @abstractmethod
    def distillation(self, outputs: Tensor, teacher: Tensor, temperature: float, form: Form) -> Tensor:
        """Returns the mean over examples of the distillation loss: see `losses.base.distillation_loss`."""

    @abstractmethod
    def mean_outputs(self, outputs_KB: Tensor) -> Tensor:
        """Returns the outputs whose predictions are the mean of those of several models."""

    # --- predictions --------------------------------------------------------------------------------------------------
    @abstractmethod
    def decode(self, outputs: Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
        """Returns each example's predicted label as files write it, and the probability of each class."""

    @abstractmethod
    def predicted(self, outputs: Tensor, labels: LabelSpace) -> Array:
        """Turns outputs into targets: what the model predicts."""

    def probabilities(self, outputs: Tensor, labels: LabelSpace) -> Array | None:
        """Returns the probability of every class [N, C] in float64; None for kinds without classes."""
        return None

    def class_scores(self, outputs: Tensor, targets: Array) -> ClassScores:
        """Returns the scores and labels of all rows, for kinds that are calibrated."""
        numbers_N = targets.astype(np.int64)
        return ClassScores(outputs.double().numpy(), numbers_N, np.arange(len(numbers_N)))

    def tuned(self, spec: TaskSpec, labels: LabelSpace, outputs: Tensor, targets: Array) -> LabelSpace:
        """Returns the label space with what is chosen after training, from the best weights' outputs on dev."""
        return labels

    def for_metrics(self, targets: Array, labels: LabelSpace) -> Array:
        """Converts targets to what metrics take: class numbers, 0 and 1, or scores in the task's range."""
        return targets.astype(np.int64)

    def compared(self, gold: Array, predicted: Array, labels: LabelSpace) -> tuple[Array, Array]:
        """Converts true and predicted targets to what metrics take."""
        return self.for_metrics(gold, labels), self.for_metrics(predicted, labels)

    def extremes(self, gold: Array, predicted: Array, labels: LabelSpace) -> tuple[Pair, Pair]:
        """Returns the true and the predicted labels of rows that could not be more wrong, and of rows that are right.

        All are what metrics take, as `gold` and `predicted` are.
        """
        present = np.unique(np.concatenate([gold, predicted]))
        if len(present) == 1:
            present = np.array([present[0], (present[0] + 1) % max(2, len(labels.classes))])
        return (present, np.roll(present, 1)), (present, present)

    def compared_values(
        self, gold: Sequence[Any], predicted: Sequence[Any], classes: Sequence[str]
    ) -> tuple[Array, Array]:
        """Converts labels and predictions of a file of predictions to what metrics take."""
        return self.numbers(gold, classes), self.numbers(predicted, classes)

    def vote(self, near_NK: Array, weights_NK: Array, labels: LabelSpace) -> tuple[Array, Array | None]:
        """Predicts targets from those of the nearest training rows, with class probabilities if there are classes."""
        raise NotImplementedError(f"kind {self.name} has no prediction from neighbours")
