"""Pairs of texts that belong together, without labels: the outputs are the unit vectors u and v of the two texts.

The loss and the metrics compare the first text of a row with the second texts of all rows, so they must know which
texts are the same: a target is the two numbers of a row's texts, and equal texts have the same number.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from polytask.kinds.base import Array, Form, Kind, LabelReader, Meta, Pair
from polytask.settings import TaskSpec
from polytask.types import Label, LabelSpace

TEXT_BITS = 32
BLOCK = 1024
"""Rows that are ranked at once."""


class Match(Kind):
    """Pairs without labels. Outputs are [B, 2, D] unit vectors; targets are [N, 2] numbers of texts.

    A stored label is both numbers in one: the first one times 2^32, plus the second one.
    """

    name = "match"
    has_labels = False
    compared_field = "rank"

    # --- labels in files ----------------------------------------------------------------------------------------------
    def reader(self, spec: TaskSpec, known: LabelSpace | None = None, values: Iterable[object] = ()) -> LabelReader:
        return _Reader()

    def space(self, spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
        return LabelSpace("match")

    def targets(self, labels: LabelSpace, meta: Meta, stored: Array) -> Array:
        numbers = stored.astype(np.int64)
        return np.stack([numbers >> TEXT_BITS, numbers & (2**TEXT_BITS - 1)], axis=1)

    def label(self, meta: Meta, stored: int | float) -> Label:
        return None

    # --- outputs of heads ---------------------------------------------------------------------------------------------
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError("the head match defines the loss, because it has the temperature")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError("the loss of a pair depends on the other pairs of the batch")

    def uninformed(self, targets: Tensor, num_outputs: int) -> Tensor:
        """Returns the same vector for all texts, which makes all candidates equally probable."""
        return torch.ones(len(targets), 2, 1)

    def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
        return _squared_distance(one, other)

    def distillation(self, outputs: Tensor, teacher: Tensor, temperature: float, form: Form) -> Tensor:
        return _squared_distance(outputs, teacher)

    def mean_outputs(self, outputs_KB: Tensor) -> NoReturn:
        raise AssertionError("the vectors of different models cannot be averaged")

    # --- predictions --------------------------------------------------------------------------------------------------
    def decode(self, outputs: Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
        u_BD, v_BD = outputs.unbind(1)
        return [(cosine, None) for cosine in (u_BD * v_BD).sum(-1).clamp(-1, 1).tolist()]

    def predicted(self, outputs: Tensor, labels: LabelSpace) -> Array:
        return outputs.numpy()

    def compared(self, gold: Array, predicted: Array, labels: LabelSpace) -> tuple[Array, Array]:
        """Returns ones, and the rank of each row: see `ranks_of_pairs`."""
        ranks_N = ranks_of_pairs(gold, predicted)
        return np.ones_like(ranks_N), ranks_N

    def extremes(self, gold: Array, predicted: Array, labels: LabelSpace) -> tuple[Pair, Pair]:
        return (gold, np.full_like(gold, len(gold))), (gold, gold)

    def compared_values(
        self, gold: Sequence[Any], predicted: Sequence[Any], classes: Sequence[str]
    ) -> tuple[Array, Array]:
        return np.ones(len(predicted), np.int64), np.array(predicted, np.int64)


class _Reader(LabelReader):
    """Numbers the texts in the order in which they appear."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, int] = {}

    def read_texts(self, texts: Sequence[str]) -> int:
        first, second = (self._numbers.setdefault(text, len(self._numbers)) for text in texts)
        return (first << TEXT_BITS) + second

    def _read(self, value: object) -> NoReturn:
        raise AssertionError("pairs that belong together have no label column")


def _squared_distance(one_B2D: Tensor, other_B2D: Tensor) -> Tensor:
    """Returns the mean over pairs of `|u - u'|^2 + |v - v'|^2`."""
    return (one_B2D - other_B2D).square().sum((1, 2)).mean()


def ranks_of_pairs(texts_N2: Array, vectors_N2D: Array) -> Array:
    """Returns the rank of each row's first right candidate among all distinct second texts, from 1 on: [N].

    Candidates are sorted by their cosine with the row's first text. Right are the second texts of all rows with the
    same first text. A wrong candidate with the same cosine, or with one that is NaN, counts as placed before it.
    """
    queries_N = np.unique(texts_N2[:, 0], return_inverse=True)[1].reshape(-1)
    _, places_M, answers_N = np.unique(texts_N2[:, 1], return_index=True, return_inverse=True)
    answers_N = answers_N.reshape(-1)
    order_N = np.argsort(queries_N, kind="stable")
    starts = np.searchsorted(queries_N[order_N], np.arange(queries_N.max(initial=-1) + 2))
    vectors = torch.from_numpy(np.ascontiguousarray(vectors_N2D, np.float32))
    candidates_MD = vectors[torch.from_numpy(places_M), 1]
    ranks_N = np.empty(len(texts_N2), np.int64)
    for first in range(0, len(texts_N2), BLOCK):
        cosines_BM = (vectors[first : first + BLOCK, 0] @ candidates_MD.T).numpy()
        is_right_BM = np.zeros(cosines_BM.shape, bool)
        for row, query in enumerate(queries_N[first : first + BLOCK]):
            is_right_BM[row, answers_N[order_N[starts[query] : starts[query + 1]]]] = True
        best_B1 = np.where(is_right_BM, cosines_BM, -np.inf).max(1, keepdims=True)
        ranks_N[first : first + BLOCK] = 1 + (~(cosines_BM < best_B1) & ~is_right_BM).sum(1)
    return ranks_N
