"""One of the options of a row: the outputs are one number per option, and their softmax is the probability of each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kinds.base import Array, ClassScores, Form, Kind, LabelReader, Meta
from polytask.kinds.classes import Classes
from polytask.kinds.options import MOST_OPTIONS, option_index
from polytask.settings import TaskSpec
from polytask.types import Label, LabelSpace

MISSING = -1e9
"""The output of an option that a row does not have: its probability is 0. It is finite, so that differences of two
predictions are finite too."""


class Choice(Kind):
    """One option per row, of as many as the row has. Outputs are [B, M], with MISSING where a row has fewer than M.

    Targets are [N, 2]: the index of the right option, and the number of options. A stored label has both in one number.
    """

    name = "choice"
    has_confidence = is_calibrated = True

    # --- labels in files ----------------------------------------------------------------------------------------------
    def reader(self, spec: TaskSpec, known: LabelSpace | None = None, values: Iterable[object] = ()) -> LabelReader:
        return _Reader(spec.options if isinstance(spec.options, tuple) else ())

    def space(self, spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
        return LabelSpace("choice")

    def targets(self, labels: LabelSpace, meta: Meta, stored: Array) -> Array:
        counts_N, indices_N = np.divmod(stored.astype(np.int64), MOST_OPTIONS)
        return np.stack([indices_N, counts_N], axis=1)

    def label(self, meta: Meta, stored: int | float) -> Label:
        """Returns the index of the right option."""
        return int(stored) % MOST_OPTIONS

    def label_of(self, meta: Meta, stored: int | float, texts: Sequence[str]) -> Label:
        """Returns the text of the right option."""
        return texts[1 + int(stored) % MOST_OPTIONS]

    def numbers(self, values: Sequence[Any], classes: Sequence[str]) -> Array:
        return np.array(values, dtype=np.int64)

    def recorded(self, lines: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> tuple[Array, Array]:
        gold, predicted = ([line[name] for line in lines] for name in ("label_index", "index"))
        return self.numbers(gold, classes), self.numbers(predicted, classes)

    # --- outputs of heads ---------------------------------------------------------------------------------------------
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets[:, 0])

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets[:, 0], reduction="none")

    def uninformed(self, targets: Tensor, num_outputs: int) -> Tensor:
        counts_B1 = targets[:, 1:].clamp(min=1)
        is_given_BM = torch.arange(int(counts_B1.max()), device=targets.device) < counts_B1
        return torch.where(is_given_BM, 0.0, MISSING)

    def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
        return Classes().distance(one, other, fixed_targets)

    def distillation(self, outputs: Tensor, teacher: Tensor, temperature: float, form: Form) -> Tensor:
        return Classes().distillation(outputs, teacher, temperature, form)

    def mean_outputs(self, outputs_KB: Tensor) -> Tensor:
        return Classes().mean_outputs(outputs_KB)

    # --- predictions --------------------------------------------------------------------------------------------------
    def decode(self, outputs: Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
        """Names the options by their indices; `Prediction.with_options` gives them their texts."""
        counts = (outputs > MISSING / 1000).sum(-1).tolist()
        decoded: list[tuple[Label, dict[str, float] | None]] = []
        for shares, count in zip(outputs.softmax(-1).tolist(), counts, strict=True):
            given = shares[: max(count, 1)]  # a run that diverged has NaN
            decoded.append((str(given.index(max(given))), {str(index): share for index, share in enumerate(given)}))
        return decoded

    def predicted(self, outputs: Tensor, labels: LabelSpace) -> Array:
        return outputs.argmax(-1).numpy()

    def probabilities(self, outputs: Tensor, labels: LabelSpace) -> Array | None:
        return outputs.double().softmax(-1).numpy()

    def class_scores(self, outputs: Tensor, targets: Array) -> ClassScores:
        return super().class_scores(outputs, targets[:, 0])  # without the numbers of options

    def for_metrics(self, targets: Array, labels: LabelSpace) -> Array:
        """Returns indices of options; those of the right ones have a second column, which is left out."""
        indices: Array = (targets if targets.ndim == 1 else targets[:, 0]).astype(np.int64)
        return indices


class _Reader(LabelReader):
    """Reads a label together with the options of its row."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__()
        self._columns = columns

    def _read(self, value: object) -> int:
        assert isinstance(value, list), "a label of kind choice is read together with its options"
        label, *options = value
        return len(options) * MOST_OPTIONS + option_index(label, options, self._columns)
