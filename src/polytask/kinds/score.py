"""A score: the output is the score, scaled to [0, 1] if it has a range, else standardized by the training scores."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from polytask.kinds.base import Array, Form, Kind, LabelReader, Meta, Pair
from polytask.kinds.names import PLAIN_NUMBER, WRITTEN_NUMBER, LabelProblem, plain_value
from polytask.settings import TaskSpec
from polytask.types import NO_LABEL, Label, LabelSpace, UserError

LARGEST = 1e100  # of a score, whose square must be a number too
LEAST_DEVIATION = 1e-6  # of scores, as a share of their range; with less they are all the same score


class Score(Kind):
    """A number. A stored label is the score; a target is the score scaled to [0, 1].

    Without a range in the recipe, a target is the score minus the mean of the training scores, divided by their
    standard deviation, and a prediction can be any number.
    """

    name = "score"
    stored_type = "float"

    def reader(self, spec: TaskSpec, known: LabelSpace | None = None, values: Iterable[object] = ()) -> LabelReader:
        return _Reader(*score_range(spec))

    def space(self, spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
        """Scores of a task that is not trained are not standardized."""
        if spec.range is None:
            return _standardized(stored)
        low, high = score_range(spec)
        by = standardization(stored, high - low) if spec.standardize and spec.trained and stored is not None else None
        return LabelSpace("score", low=low, high=high, standardized_by=by)

    def targets(self, labels: LabelSpace, meta: Meta, stored: Array) -> Array:
        scaled = ((stored.astype(np.float64) - labels.low) / (labels.high - labels.low)).astype(np.float32)
        scaled[scaled == NO_LABEL] = np.nextafter(np.float32(NO_LABEL), np.float32(0))  # one deviation below the mean
        return scaled

    def label(self, meta: Meta, stored: int | float) -> Label:
        return float(stored)

    def numbers(self, values: Sequence[Any], classes: Sequence[str]) -> Array:
        return np.array(values)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square()

    def uninformed(self, targets: Tensor, num_outputs: int) -> Tensor:
        return targets.mean().expand(len(targets))

    def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
        return (one - other).square().mean()

    def distillation(self, outputs: Tensor, teacher: Tensor, temperature: float, form: Form) -> Tensor:
        return F.mse_loss(outputs, teacher)

    def mean_outputs(self, outputs_KB: Tensor) -> Tensor:
        return outputs_KB.mean(0)

    def decode(self, outputs: Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
        return [(labels.unscaled(value), None) for value in _in_range(outputs, labels).tolist()]

    def predicted(self, outputs: Tensor, labels: LabelSpace) -> Array:
        return _in_range(outputs, labels).numpy()

    def for_metrics(self, targets: Array, labels: LabelSpace) -> Array:
        scores: Array = labels.unscaled(targets.astype(np.float64))
        return scores

    def extremes(self, gold: Array, predicted: Array, labels: LabelSpace) -> tuple[Pair, Pair]:
        ends = np.array([gold.min(), gold.max()], np.float64)
        if ends[0] == ends[1]:
            ends = np.array([labels.low, labels.high])
        return (ends, ends[::-1]), (ends, ends)

    def vote(self, near_NK: Array, weights_NK: Array, labels: LabelSpace) -> tuple[Array, Array | None]:
        return (weights_NK * near_NK).sum(1) / weights_NK.sum(1), None


class _Reader(LabelReader):
    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def _read(self, value: object) -> float:
        plain = plain_value(value)
        try:
            score = math.nan if isinstance(plain, str) and "_" in plain else float(plain)
        except (ValueError, OverflowError):
            score = math.nan
        if not self.low <= score <= self.high or not math.isfinite(score):
            what = "outside the range" if math.isfinite(score) else "not a number"
            limits = f" from {self.low:g} to {self.high:g}" if math.isfinite(self.low) else ""
            is_written = math.isnan(score) and isinstance(plain, str) and WRITTEN_NUMBER.fullmatch(plain.strip())
            form = f", {PLAIN_NUMBER}" if is_written else ""
            raise LabelProblem(f"{what}; expected a number{limits}{form}")
        if abs(score) > LARGEST:
            raise LabelProblem(f"too large; expected a number from {-LARGEST:g} to {LARGEST:g}")
        return score


def _in_range(outputs: Tensor, labels: LabelSpace) -> Tensor:
    return outputs.clamp(0, 1) if labels.bounded else outputs


def _standardized(stored: Array | None) -> LabelSpace:
    """Returns the label space of scores without a range: 0 is the mean of these scores, 1 a standard deviation more."""
    scores = np.zeros(0) if stored is None else stored.astype(np.float64)
    mean = float(scores.mean()) if len(scores) else 0.0
    deviation = float(scores.std()) if len(scores) else 0.0
    same = deviation <= LEAST_DEVIATION * abs(mean)
    return LabelSpace("score", low=mean, high=mean + (1.0 if same else deviation), bounded=False)


def score_range(spec: TaskSpec) -> tuple[float, float]:
    """Returns the recipe's range of scores, checked; infinite if there is none."""
    if spec.range is None:
        return -math.inf, math.inf
    low, high = spec.range
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"task {spec.name!r}: range must be the lowest and the highest score, found {list(spec.range)}")
    return float(low), float(high)


def standardization(scores: Array, span: float) -> tuple[float, float] | None:
    """Returns mean and standard deviation of the training scores; None if they are all the same score."""
    values = scores.astype(np.float64)
    deviation = float(values.std())
    return (float(values.mean()), deviation) if deviation > LEAST_DEVIATION * span else None
