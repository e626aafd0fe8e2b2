"""Metrics of several classes per row, equal to scikit-learn's. Knows arrays [..., N, C] of 0 and 1, and scores.

Margins are, for each class, the number of rows that have it rightly predicted, predicted, and truly: [..., 3, C].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]


def rows_of_margins(gold_NC: Array, predicted_NC: Array) -> NDArray[np.int64]:
    """Returns each row's part of the margins: [..., N, 3, C]."""
    gold_NC, predicted_NC = gold_NC.astype(np.int64), predicted_NC.astype(np.int64)
    return np.stack([gold_NC * predicted_NC, predicted_NC, gold_NC], axis=-2)


def margins_of_sets(gold_NC: Array, predicted_NC: Array) -> NDArray[np.int64]:
    """Counts, for each class, the rows predicted rightly, predicted, and truly of it: [..., 3, C]."""
    gold, predicted = gold_NC.astype(bool), predicted_NC.astype(bool)
    counts: NDArray[np.int64] = np.stack([(gold & predicted).sum(-2), predicted.sum(-2), gold.sum(-2)], axis=-2)
    return counts


def f1_micro(margins_3C: Array) -> Floats:
    """`2 sum_c TP_c / sum_c (predicted_c + true_c)`."""
    right, predicted, true = np.moveaxis(np.asarray(margins_3C, np.float64), -2, 0)
    return _ratio(2 * right.sum(-1), (predicted + true).sum(-1))


def f1_macro(margins_3C: Array) -> Floats:
    """The plain mean over all classes; a class that is neither true nor predicted anywhere has an F1 of 0."""
    right, predicted, true = np.moveaxis(np.asarray(margins_3C, np.float64), -2, 0)
    return np.asarray(_ratio(2 * right, predicted + true).mean(-1))


def all_right(gold_NC: Array, predicted_NC: Array) -> Floats:
    """Returns 1 for each row with exactly the right classes, else 0; the mean is the subset accuracy."""
    return np.asarray((gold_NC == predicted_NC).all(-1), np.float64)


def wrong_share(gold_NC: Array, predicted_NC: Array) -> Floats:
    """Returns the share of wrong classes of each row; the mean is the Hamming loss."""
    return np.asarray((gold_NC != predicted_NC).mean(-1), np.float64)


def codes_by_class(gold_NC: Array, scores_NC: Array) -> tuple[Array, Array]:
    """Replaces the scores of each class by integers in the same order."""
    columns = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in scores_NC.T]
    return gold_NC, np.stack(columns, axis=1)


def codes_of_all(gold_NC: Array, scores_NC: Array) -> tuple[Array, Array]:
    """Replaces all scores together by integers in the same order."""
    return gold_NC, np.unique(scores_NC, return_inverse=True)[1].reshape(scores_NC.shape)


def average_precision(gold_NC: Array, codes_NC: Array) -> Floats:
    """`sum_t (R_t - R_t-1) P_t` over the different scores t, averaged over classes; 0 for a class without rows."""
    return np.asarray(_precision_at_hits(np.moveaxis(gold_NC, -1, -2), np.moveaxis(codes_NC, -1, -2)).mean(-1))


def average_precision_micro(gold_NC: Array, codes_NC: Array) -> Floats:
    """The average precision of all pairs of a row and a class together."""
    return _precision_at_hits(*(values.reshape(*values.shape[:-2], -1) for values in (gold_NC, codes_NC)))


def _precision_at_hits(gold_N: Array, codes_N: Array) -> Floats:
    """Returns the mean, over the true items, of the precision among all items that score at least as high.

    Counting by score is several times faster than sorting every resample.
    """
    lead, width = gold_N.shape[:-1], int(codes_N.max(initial=0)) + 1
    size = int(np.prod(lead))
    cells = (codes_N.reshape(size, -1) + np.arange(size)[:, None] * width).ravel()
    all_SW = np.bincount(cells, minlength=size * width).reshape(size, width)
    true_SW = np.bincount(cells, gold_N.ravel(), minlength=size * width).reshape(size, width)
    above, hits = (counts[:, ::-1].cumsum(-1)[:, ::-1] for counts in (all_SW, true_SW))
    return _ratio((true_SW * _ratio(hits, above)).sum(-1), true_SW.sum(-1)).reshape(lead)


def _ratio(above: Array, below: Array) -> Floats:
    """Returns above / below, and 0.0 where below is 0."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    return np.divide(above, below, out=np.zeros(above.shape), where=below != 0)
