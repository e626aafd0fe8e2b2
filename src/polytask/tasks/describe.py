"""Describes a split in numbers: rows per label, lengths, and the score of a constant prediction."""

from typing import Any

import numpy as np
import numpy.typing as npt

from polytask.evaluation.metrics import Metric
from polytask.kinds.schemes import WORDS, span_classes
from polytask.kinds.table import KINDS, kind_of
from polytask.tasks.task import Split
from polytask.text.packing import InputFormat, Packer
from polytask.types import NO_LABEL, LabelSpace

SHOWN_BROKEN_ROWS = 50
MOST_CONSTANT = 50
"""Of several classes per row: the largest set that is tried as a constant prediction."""


def describe_split(split: Split, labels: LabelSpace, packer: Packer, form: InputFormat) -> dict[str, Any]:
    """Returns the numbers of rows and of rows that were left out, rows per label, and lengths with special tokens."""
    text_lengths = split.store.lengths()
    max_length = packer.max_length if form.windows is None else packer.longest(form)
    lengths = packer.full_lengths(text_lengths, form.reading)
    truncated = np.minimum(lengths, max_length)
    counts, edges = np.histogram(truncated, bins=min(20, max_length), range=(0, max_length))
    return {
        "rows": len(split),
        "skipped": split.num_broken,
        **({"blank": split.num_blank} if split.num_blank else {}),
        "skipped_rows": [
            {"row": b.row, "column": b.column, "value": b.value, "problem": b.problem}
            for b in split.broken[:SHOWN_BROKEN_ROWS]
        ],
        "labels": label_balance(split, labels),
        "lengths": {
            "edges": edges.tolist(),
            "counts": counts.tolist(),
            "mean": float(truncated.mean()),
            "max": int(lengths.max()),
            "truncated": int((lengths > packer.longest(form)).sum()),
        },
        **({} if not form.has_windows else {"windows": describe_windows(packer.window_counts(text_lengths, form))}),
    }


def describe_windows(windows_NW: npt.NDArray[np.int64]) -> dict[str, int]:
    """Returns the number of rows with more than one window per text, and the most windows of a text."""
    return {"rows": int((windows_NW > 1).any(1).sum()), "most": int(windows_NW.max(initial=1))}


def label_balance(split: Split, labels: LabelSpace) -> dict[str, Any]:
    if not split.is_labelled:
        return {}
    if labels.kind == "score":
        # Without a range, the ends are those of the scores as they are in the file: scaled ones are rounded.
        scores = split.store.labels.astype(np.float64)
        counts, edges = np.histogram(scores, 10, (labels.low, labels.high) if labels.bounded else None)
        return {"edges": edges.tolist(), "counts": counts.tolist()}
    if labels.kind == "choice":
        counts = np.bincount(split.labels[:, 0])
        places, offered = [f"option {index}" for index in range(len(counts))], split.labels[:, 1]
        return {"names": places, "counts": counts.tolist(), "options": [int(offered.min()), int(offered.max())]}
    names, rows = classes_and_counts(split, labels)
    balance: dict[str, Any] = {"names": list(names), "counts": list(rows)}
    if labels.kind == "multilabel":
        balance |= {"without_class": int((split.labels.sum(1) == 0).sum())}
    return balance


def classes_and_counts(split: Split, labels: LabelSpace) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the classes with the number of their rows; of tags of words, the classes of spans with that of spans."""
    if labels.scheme is None:
        return labels.classes, class_counts(split, labels)
    true, _ = KINDS[labels.kind].compared(split.labels, split.labels, labels)
    return span_classes(labels.classes, labels.scheme), tuple(true[:, 2].sum(0).tolist()[:-WORDS])


def class_counts(split: Split, labels: LabelSpace) -> tuple[int, ...]:
    """Counts the rows of each class (no, yes for yes_no); empty for scores and plain text."""
    return kind_of(labels).class_counts(labels, split.labels)


def baseline(split: Split, labels: LabelSpace, metric: Metric) -> dict[str, Any]:
    """Scores the best constant prediction by this metric: one class, one score, or the classes' shares.

    Pairs of kind match have none: a random order of the candidates is scored, of which one is right.
    """
    if labels.kind == "match":
        ranks = np.arange(1, len(np.unique(split.labels[:, 1])) + 1)
        value, what = float(metric.function(np.ones_like(ranks), ranks)), f"a random order of {len(ranks):,} candidates"
        return {"metric": metric.name, "value": value, "what": what}
    if labels.kind == "score":
        gold = labels.unscaled(split.labels.astype(np.float64))
        middle = np.median(gold) if metric.name == "mae" else gold.mean()
        value = float(metric.function(gold, np.full(len(split), middle)))
        return {"metric": metric.name, "value": value, "what": "always the same score"}
    gold = split.labels.astype(np.int64)
    if labels.kind == "choice":
        return _constant_option(gold, metric)
    if labels.kind == "multilabel":
        return _constant_set(gold, labels, metric)
    if labels.kind == "tokens":
        return _constant_tag(gold, labels, metric)
    counts = np.bincount(gold, minlength=len(labels.classes))
    if metric.columns is not None:
        shares = np.tile(counts / len(gold), (len(gold), 1))
        value = float(metric.function(*metric.columns(gold, shares)))
        return {"metric": metric.name, "value": value, "what": "always the shares of the classes"}
    by_count = np.argsort(-counts, kind="stable")
    # No constant beats the most frequent class, unless the metric depends on one class only, as f1 on yes.
    candidates = by_count if labels.kind == "yes_no" or metric.own else by_count[:1]
    values = [float(metric.function(gold, np.full(len(gold), candidate))) for candidate in candidates]
    best = int(np.argmax(values) if metric.greater_is_better else np.argmin(values))
    return {"metric": metric.name, "value": values[best], "what": f"always '{labels.classes[candidates[best]]}'"}


def _constant_option(gold_N2: npt.NDArray[np.int64], metric: Metric) -> dict[str, Any]:
    """Scores the best constant index of an option, or equal probabilities of all options of a row."""
    gold_N, counts_N = gold_N2.T
    if metric.columns is not None:
        options_M = np.arange(counts_N.max())
        shares_NM = np.where(options_M < counts_N[:, None], 1 / counts_N[:, None], 0.0)
        value = float(metric.function(*metric.columns(gold_N, shares_NM)))
        return {"metric": metric.name, "value": value, "what": "always equal probabilities"}
    values = [float(metric.function(gold_N, np.full_like(gold_N, index))) for index in range(gold_N.max() + 1)]
    best = int(np.argmax(values) if metric.greater_is_better else np.argmin(values))
    return {"metric": metric.name, "value": values[best], "what": f"always option {best}"}


def _constant_tag(gold_NW: npt.NDArray[np.int64], labels: LabelSpace, metric: Metric) -> dict[str, Any]:
    """Scores the most frequent tag as the tag of every word."""
    kind = KINDS[labels.kind]
    most = int(np.argmax(kind.class_counts(labels, gold_NW)))
    predicted_NW = np.where(gold_NW == NO_LABEL, NO_LABEL, most)
    value = float(metric.function(*kind.compared(gold_NW, predicted_NW, labels)))
    return {"metric": metric.name, "value": value, "what": f"always '{labels.classes[most]}'"}


def _constant_set(gold_NC: npt.NDArray[np.int64], labels: LabelSpace, metric: Metric) -> dict[str, Any]:
    """Scores the best constant set of classes: no class, or the most frequent ones."""
    counts_C, rows = gold_NC.sum(0), len(gold_NC)
    if metric.columns is not None:
        value = float(metric.function(*metric.columns(gold_NC, np.tile(counts_C / rows, (rows, 1)))))
        return {"metric": metric.name, "value": value, "what": "always the shares of the classes"}
    by_count, values = np.argsort(-counts_C, kind="stable"), []
    predicted = np.zeros_like(gold_NC)
    for number in [None, *by_count[:MOST_CONSTANT]]:
        if number is not None:
            predicted[:, number] = 1
        values.append(float(metric.function(gold_NC, predicted)))
    best = int(np.argmax(values) if metric.greater_is_better else np.argmin(values))
    names = " and ".join(repr(labels.classes[number]) for number in by_count[:best])
    what = f"always {names}" if best <= 3 else f"always the {best} most frequent classes"
    return {"metric": metric.name, "value": values[best], "what": what if best else "always no class"}
