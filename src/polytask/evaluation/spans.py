"""Metrics of spans and of the tags of words, equal to seqeval's. Knows counts, no tags and no texts.

Margins are [..., 3, C + 2]: for each class of spans the numbers of right, of predicted and of true spans, and two
columns about words (`kinds.tokens.tallies`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polytask.evaluation import intervals
from polytask.evaluation.intervals import Ends
from polytask.kinds.schemes import WORDS

Array = NDArray[Any]
Floats = NDArray[np.float64]


def rows_of_tallies(gold: Array, predicted: Array) -> Array:
    """Returns each row's part of the margins: [..., N, 3, C + 2]."""
    return gold + predicted


def over_tallies(from_margins: Callable[[Array], Floats]) -> Callable[[Array, Array], Floats]:
    """Returns a metric's function of the two arrays of tallies."""
    return lambda gold, predicted: from_margins(rows_of_tallies(gold, predicted).sum(-3))


def precision(margins: Array) -> Floats:
    """The share of the predicted spans that are right: same words and same class."""
    right, predicted, _ = _spans(margins)
    return _ratio(right.sum(-1), predicted.sum(-1))


def recall(margins: Array) -> Floats:
    """The share of the true spans that are predicted."""
    right, _, true = _spans(margins)
    return _ratio(right.sum(-1), true.sum(-1))


def f1(margins: Array) -> Floats:
    """`2 sum_c right_c / sum_c (predicted_c + true_c)`."""
    right, predicted, true = _spans(margins)
    return _ratio(2 * right.sum(-1), (predicted + true).sum(-1))


def f1_macro(margins: Array) -> Floats:
    """The plain mean of F1 over the classes of spans that occur, as true or as predicted ones."""
    right, predicted, true = _spans(margins)
    each = _ratio(2 * right, predicted + true)
    return _ratio(each.sum(-1), (predicted + true > 0).sum(-1))


def accuracy(margins: Array) -> Floats:
    """The share of the words with the right tag."""
    right, _, true = np.moveaxis(np.asarray(margins, np.float64)[..., -WORDS:], -2, 0)
    return _ratio(right.sum(-1), true.sum(-1))


def tally_ends(
    functions: Mapping[str, Callable[[Array], Floats]], gold: Array, predicted: Array, seed: int
) -> dict[str, Ends]:
    """Returns intervals over texts, by drawing the weight of each text (`intervals.of_label_sets`).

    A text of the usual number of spans, or of words, in which all are wrong or right is the one more row.
    """
    rows = rows_of_tallies(gold, predicted)
    ends: dict[str, Ends] = {}
    for of_words in (False, True):
        part = rows[..., -WORDS:] if of_words else rows[..., :-WORDS]
        usual = max(part[:, 2].sum() / len(part), 1e-9)
        chosen = {name: function for name, function in functions.items() if (name == "accuracy") is of_words}
        padded = {name: _with_other_columns(function, of_words) for name, function in chosen.items()}
        if chosen and part.any():
            ends |= intervals.of_label_sets(padded, part / usual, seed)
        else:
            ends |= dict.fromkeys(chosen, (0.0, 1.0))
    return ends


def _with_other_columns(function: Callable[[Array], Floats], of_words: bool) -> Callable[[Array], Floats]:
    if of_words:
        return function
    return lambda margins: function(np.concatenate([margins, np.zeros((*margins.shape[:-1], WORDS))], axis=-1))


def _spans(margins: Array) -> Array:
    return np.moveaxis(np.asarray(margins, np.float64)[..., :-WORDS], -2, 0)


def _ratio(above: Array, below: Array) -> Floats:
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    return np.divide(above, below, out=np.zeros(above.shape), where=below != 0)
