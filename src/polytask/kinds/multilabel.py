"""Several classes per row: the outputs are one logit per class, and each sigmoid is the probability of its class."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kinds.base import Array, ClassScores, Form, Kind, LabelReader, Meta, Pair
from polytask.kinds.names import (
    SEPARATORS,
    ClassNumbers,
    LabelProblem,
    check_number_of_classes,
    class_name,
    given_classes,
    guess_separator,
    plain_value,
    sorted_classes,
    split_names,
    yes_or_no,
)
from polytask.settings import TaskSpec
from polytask.types import Label, LabelSpace

HALF = 0.5
"""The threshold of a class whose threshold is not chosen on dev."""


class MultiLabel(Kind):
    """Any number of classes per row, also none. A stored label is the number of a set of classes; targets are [N, C].

    The loss is the binary cross-entropy, averaged over classes. A class is predicted if its probability reaches the
    threshold of the class.
    """

    name = "multilabel"
    is_calibrated = True

    # --- labels in files ----------------------------------------------------------------------------------------------
    def reader(self, spec: TaskSpec, known: LabelSpace | None = None, values: Iterable[object] = ()) -> LabelReader:
        if isinstance(spec.label, tuple):
            return _ColumnsReader(spec.label)
        separator = spec.separator or (known.separator if known is not None else guess_separator(values))
        return _ListReader(ClassNumbers(spec, known), separator)

    def space(self, spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
        classes = tuple(meta["names"]) if isinstance(spec.label, tuple) else given_classes(spec)
        classes = classes or sorted_classes(meta["names"])
        check_number_of_classes(spec, classes)
        separators = [mark for mark in (meta["separator"], *SEPARATORS) if not any(mark in name for name in classes)]
        thresholds = () if spec.thresholds == "tuned" else (spec.thresholds,) * len(classes)
        return LabelSpace("multilabel", classes, separator=[*separators, SEPARATORS[0]][0], thresholds=thresholds)

    def targets(self, labels: LabelSpace, meta: Meta, stored: Array) -> Array:
        index = {name: number for number, name in enumerate(labels.classes)}
        sets_MC = np.zeros((max(1, len(meta["sets"])), len(labels.classes)), dtype=np.float32)
        for row_C, numbers in zip(sets_MC, meta["sets"], strict=False):  # rows without labels have no sets
            row_C[[index[meta["names"][number]] for number in numbers]] = 1
        return sets_MC[stored.astype(np.int64)]

    def label(self, meta: Meta, stored: int | float) -> Label:
        return tuple(meta["names"][number] for number in meta["sets"][int(stored)])

    def numbers(self, values: Sequence[Any], classes: Sequence[str]) -> Array:
        index = {name: number for number, name in enumerate(classes)}
        rows_NC = np.zeros((len(values), len(classes)), dtype=np.int64)
        for row_C, names in zip(rows_NC, values, strict=True):
            row_C[[index[name] for name in names]] = 1
        return rows_NC

    def class_counts(self, labels: LabelSpace, targets: Array) -> tuple[int, ...]:
        return tuple(targets.sum(0, dtype=np.float64).astype(np.int64).tolist())

    # --- outputs of heads ---------------------------------------------------------------------------------------------
    def num_outputs(self, labels: LabelSpace) -> int:
        return len(labels.classes)

    def squeeze(self, outputs_BC: Tensor) -> Tensor:
        return outputs_BC

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-1)

    def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
        # For each class the symmetric divergence of yes and no; summed over the classes.
        change = one.sigmoid() - other.sigmoid()
        return ((change.detach() if fixed_targets else change) * (one - other)).sum(-1).mean()

    def distillation(self, outputs: Tensor, teacher: Tensor, temperature: float, form: Form) -> Tensor:
        # Averaged over the classes like the loss, so that labels and teachers have the same scale.
        p, q = outputs / temperature, teacher / temperature
        cross_entropy = F.binary_cross_entropy_with_logits(p, q.sigmoid())
        if form == "kl":
            entropy = F.binary_cross_entropy_with_logits(q, q.sigmoid())
            return temperature**2 * (cross_entropy - entropy)
        return temperature**2 * cross_entropy

    def mean_outputs(self, outputs_KB: Tensor) -> Tensor:
        return F.logsigmoid(outputs_KB).logsumexp(0) - F.logsigmoid(-outputs_KB).logsumexp(0)

    # --- predictions --------------------------------------------------------------------------------------------------
    def decode(self, outputs: Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
        chosen, names = self.predicted(outputs, labels), labels.classes
        return [
            (tuple(names[c] for c in np.flatnonzero(row)), dict(zip(names, probabilities, strict=True)))
            for row, probabilities in zip(chosen, outputs.sigmoid().tolist(), strict=True)
        ]

    def predicted(self, outputs: Tensor, labels: LabelSpace) -> Array:
        thresholds_C = np.array(labels.thresholds) if labels.thresholds else HALF
        chosen: Array = (self.probabilities(outputs, labels) >= thresholds_C).astype(np.int64)
        return chosen

    def probabilities(self, outputs: Tensor, labels: LabelSpace) -> Array:
        return outputs.detach().cpu().to(torch.float64).sigmoid().numpy()

    def class_scores(self, outputs: Tensor, targets: Array) -> ClassScores:
        """Returns a row for each class of each example, with the scores of no (0) and yes (the logit)."""
        logits_M = outputs.double().numpy().reshape(-1)
        example_M = np.arange(len(targets)).repeat(targets.shape[1])
        scores_M2 = np.stack([np.zeros_like(logits_M), logits_M], 1)
        return ClassScores(scores_M2, targets.reshape(-1).astype(np.int64), example_M)

    def extremes(self, gold: Array, predicted: Array, labels: LabelSpace) -> tuple[Pair, Pair]:
        return (gold, 1 - gold), (gold, gold)

    def vote(self, near_NK: Array, weights_NK: Array, labels: LabelSpace) -> tuple[Array, Array | None]:
        """Returns the classes with at least half the weight, and each class's share of the weight."""
        shares_NC = (weights_NK[:, :, None] * near_NK).sum(1) / weights_NK.sum(1)[:, None]
        return (shares_NC >= HALF).astype(np.int64), shares_NC

    def tuned(self, spec: TaskSpec, labels: LabelSpace, outputs: Tensor, targets: Array) -> LabelSpace:
        """Chooses the threshold of each class that maximizes its F1, unless the recipe gives a threshold."""
        if spec.thresholds != "tuned":
            return labels
        columns = zip(self.probabilities(outputs, labels).T, targets.T > 0, strict=True)
        return replace(labels, thresholds=tuple(best_threshold(p_N, true_N) for p_N, true_N in columns))


def calibrated_thresholds(thresholds: Sequence[float], temperature: float) -> tuple[float, ...]:
    """Returns the thresholds of calibrated probabilities that choose the same classes: sigmoid(logit(t) / T)."""
    if temperature == 1:
        return tuple(thresholds)
    return tuple(t if t in (0, 1) else 1 / (1 + (1 / t - 1) ** (1 / temperature)) for t in thresholds)


def best_threshold(p_N: Array, true_N: Array) -> float:
    """Returns the threshold with the highest F1 of one class: `F1 = 2 TP / (TP + FP + P)`, predicted where p >= t.

    All thresholds between two neighbouring probabilities have the same F1; 0.5 stands for its own interval, and the
    middle for every other one. Of several thresholds with the highest F1, the one nearest to 0.5 is chosen.
    """
    edges = np.unique(p_N[np.isfinite(p_N)])
    candidates_M = np.unique([HALF, *((edges[1:] + edges[:-1]) / 2), *(edges[:1] / 2)])
    order_N = np.argsort(-p_N, kind="stable")
    hits_N1 = np.concatenate([[0], np.cumsum(true_N[order_N])])
    chosen_M = np.searchsorted(-p_N[order_N], -candidates_M, side="right")
    f1_M = 2 * hits_N1[chosen_M] / np.maximum(chosen_M + int(true_N.sum()), 1)
    best = candidates_M[f1_M == f1_M.max()]
    return float(best[np.argmin(np.abs(best - HALF))])


# --- reading ----------------------------------------------------------------------------------------------------------
class _SetReader(LabelReader):
    """Numbers the different sets of classes in the order of their appearance."""

    separator = SEPARATORS[-1]

    def __init__(self) -> None:
        super().__init__()
        self._sets: dict[tuple[int, ...], int] = {}

    @property
    def meta(self) -> dict[str, Any]:
        return {"names": self.names, "sets": [list(numbers) for numbers in self._sets], "separator": self.separator}

    def _number(self, classes: tuple[int, ...]) -> int:
        return self._sets.setdefault(classes, len(self._sets))


class _ListReader(_SetReader):
    """Reads one column with a list of classes."""

    def __init__(self, numbers: ClassNumbers, separator: str) -> None:
        super().__init__()
        self._numbers, self.separator, self.options = numbers, separator, (separator,)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._numbers.names

    def _read(self, value: object) -> int:
        return self._number(tuple(self._numbers.number(name) for name in split_names(value, self.separator)))


class _ColumnsReader(_SetReader):
    """Reads one column of 0 and 1 for each class; the names of the columns are the classes."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        super().__init__()
        self.names = columns

    def _read(self, value: object) -> int:
        assert isinstance(value, list)
        chosen = []
        for number, (column, cell) in enumerate(zip(self.names, value, strict=True)):
            try:
                if yes_or_no(class_name(plain_value(cell))):
                    chosen.append(number)
            except LabelProblem as problem:
                raise LabelProblem(f"column {column!r}: {problem}") from None
        return self._number(tuple(chosen))
