"""Checks the data of all tasks before training, and reports what would mislead or is likely a mistake.

Texts are compared by hashes of their token ids, whole splits at once, so that a million rows take seconds. Knows tasks
and their stores; knows no model. Row numbers are those of the files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import combinations, permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from polytask.kinds.table import KINDS
from polytask.kinds.tokens import same_width
from polytask.tasks.finding import ROWS_NAMED, SEVERITIES, Finding, Severity, rows_that
from polytask.tasks.odd_labels import odd_labels
from polytask.tasks.odd_texts import odd_texts
from polytask.tasks.sameness import (
    PIECE,
    Hashes,
    Mask,
    first_places,
    in_any_order,
    in_order,
    is_among,
    repeats,
    spreads,
    text_hashes,
)
from polytask.tasks.task import Split, Task
from polytask.text.packing import InputFormat, Packer

LEAK_SHARE = 0.01  # one leaked dev row in a hundred changes a score by up to a point
DUPLICATE_SHARE = 0.01  # more than occurs by chance: a program has copied rows
CONTRADICTION_SHARE = 0.01  # this share of rows can never be predicted right
SCORE_TOLERANCE = 0.25  # of the range: two careful annotators differ by less
SAME_PAIR_SHARE = 0.5  # of pairs with one text twice: the recipe may name one column twice, or the wrong ones
CUT_SHARE = 0.1  # if fewer are truncated, a longer `max_length` costs more than it gains
EMPTY_SHARE = 0.01  # more than a slip: the column, or the encoder, does not suit these texts
UNKNOWN_SHARE = 0.05  # English text in an English vocabulary has about one in a thousand


def examine(
    tasks: Mapping[str, Task],
    packer: Packer,
    forms: Mapping[str, InputFormat] | None = None,
    unknown_id: int | None = None,
) -> list[Finding]:
    """Returns the findings about the tasks' data, the worst first.

    `packer` knows how long sequences are, and may be; `forms` has the sequences of each task (default: joined);
    `unknown_id` is the token of words that are not in the vocabulary.
    """
    forms = forms or {}
    tasks = {name: _without_unused(task) for name, task in tasks.items()}
    hashed = {
        name: {split: _HashedSplit(name, task, data) for split, data in task.splits.items()}
        for name, task in tasks.items()
    }
    findings: list[Finding] = []
    for name, splits in hashed.items():
        findings += odd_labels(name, tasks[name])
        for split in splits.values():
            findings += _copies(split)
            findings += _columns(split)
            findings += _lengths(split, packer, forms.get(name, InputFormat()), unknown_id)
            findings += odd_texts(name, split.data)
        for learned, scored in (("train", "dev"), ("train", "test"), ("dev", "test")):
            if learned in splits and scored in splits:
                findings += _leaks(splits[learned], splits[scored])
    findings += _between_tasks(hashed)
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _without_unused(task: Task) -> Task:
    """Drops the training rows of a task that is not trained: dev rows among them are no leak."""
    if task.spec.trained:
        return task
    return replace(task, splits={name: split for name, split in task.splits.items() if name != "train"})


class _HashedSplit:
    """A split with hashes of its texts."""

    def __init__(self, name: str, task: Task, data: Split) -> None:
        self.task, self.name, self.data, self.labels = name, data.name, data, task.labels
        self.group = data.spec.share_rows
        self.lengths_NW = data.store.lengths().astype(np.int32)  # half the memory of int64, for many rows
        self.texts_NW: Hashes = text_hashes(data.store)
        self.has_text_N: Mask = self.lengths_NW.max(axis=1, initial=0) > 0
        """Rows without any token are a finding of their own, not copies of each other."""
        self.ordered_N = in_order(self.texts_NW)
        self.either_N = in_any_order(self.texts_NW) if data.spec.is_pair else self.ordered_N

    @cached_property
    def known_texts(self) -> Hashes:
        """The hashes of all texts (of pairs, of each text), sorted and without repetition."""
        return np.unique(self.texts_NW)

    @property
    def label_tolerance(self) -> float:
        """The largest difference of two labels that count as the same."""
        return SCORE_TOLERANCE if self.labels.kind == "score" else 0.0

    @property
    def label_codes(self) -> npt.NDArray[Any]:
        """One number per row: the label, or the number of its set of classes."""
        labels = self.data.labels
        return labels if labels.ndim == 1 else np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)

    def finding(self, severity: Severity, what: str, sentence: str, where_N: Mask) -> Finding:
        """Returns a finding about these rows; the sentence continues `12 of 400 rows`."""
        count = int(where_N.sum())
        sentence = rows_that(count, len(where_N), sentence)
        rows = tuple(self.data.rows[np.flatnonzero(where_N)[:ROWS_NAMED]].tolist())
        return Finding(severity, self.task, self.name, what, sentence, rows, count)


# --- the same text more than once -------------------------------------------------------------------------------------
def _copies(split: _HashedSplit) -> Iterator[Finding]:
    again = repeats(split.either_N) & split.has_text_N
    if again.any():
        swapped = int((again & ~repeats(split.ordered_N)).sum()) if split.data.spec.is_pair else 0
        order = f", {swapped:,} of them with the two texts in the other order" if swapped else ""
        severity: Severity = "warning" if again.mean() >= DUPLICATE_SHARE else "note"
        yield split.finding(severity, "duplicates", f"repeat an earlier row{order}", again)
    if not split.data.is_labelled or not len(split.data):
        return
    labels, tolerance = split.label_codes, split.label_tolerance
    contrary = (spreads(split.ordered_N, labels) > tolerance) & split.has_text_N
    if contrary.any():
        severity = "problem" if contrary.mean() >= CONTRADICTION_SHARE else "warning"
        of = "the range" if split.labels.bounded else "the scores' standard deviation"
        other = f"labels that differ by more than {tolerance:.0%} of {of}" if tolerance else "different labels"
        sentence = f"have the text of another row, but {other}: one of them is wrong"
        yield split.finding(severity, "contradictions", sentence, contrary)
    if not split.data.spec.is_pair:
        return
    turned = (spreads(split.either_N, labels) > tolerance) & split.has_text_N & ~contrary
    if turned.any():
        sentence = "appear also with the two texts in the other order and another label: a mistake, unless the order "
        yield split.finding("note", "turned_labels", sentence + "matters, as for premise and hypothesis", turned)


def _leaks(learned: _HashedSplit, scored: _HashedSplit) -> Iterator[Finding]:
    leaked = (first_places(learned.either_N, scored.either_N) >= 0) & scored.has_text_N
    if not leaked.any():
        return
    name = {"train": "training", "dev": "dev"}[learned.name]
    severity: Severity = "problem" if leaked.mean() >= LEAK_SHARE and learned.name == "train" else "warning"
    sentence = f"are also in the {name} rows, which makes {scored.name} scores too good"
    yield scored.finding(severity, "leak" if learned.name == "train" else "leak_from_dev", sentence, leaked)
    if not scored.data.is_labelled:
        return
    exact = first_places(learned.ordered_N, scored.ordered_N)
    learned_labels: npt.NDArray[Any] = learned.data.labels
    scored_labels: npt.NDArray[Any] = scored.data.labels
    if scored_labels.ndim == 2:
        learned_labels, scored_labels = same_width(learned_labels, scored_labels)
    difference = np.abs(learned_labels[exact].astype(np.float64) - scored_labels)
    difference = difference if difference.ndim == 1 else difference.max(axis=1)
    contrary = (exact >= 0) & scored.has_text_N & (difference > scored.label_tolerance)
    if contrary.any():
        sentence = f"are also in the {name} rows, with another label: one of the two is wrong"
        yield scored.finding("warning", "other_label", sentence, contrary)


def _between_tasks(hashed: Mapping[str, Mapping[str, _HashedSplit]]) -> Iterator[Finding]:
    """Reports texts that two tasks share, each text of a pair separately."""
    for one, other in permutations(hashed, 2):
        for name in ("dev", "test"):
            if name in hashed[one] and "train" in hashed[other]:
                split = hashed[one][name]
                shared = _shared(split, hashed[other]["train"])
                if shared.any():
                    sentence = f"have a text that task {other} is trained on, which may improve the scores of {one}"
                    yield split.finding("note", "leak_between_tasks", sentence, shared)
    for one, other in combinations(hashed, 2):
        if "train" in hashed[one] and "train" in hashed[other]:
            split = hashed[one]["train"]
            if split.group is not None and split.group == hashed[other]["train"].group:
                continue  # they are meant to have the same rows
            shared = _shared(split, hashed[other]["train"])
            if shared.any():
                sentence = f"have a text that task {other} is also trained on: fine if intended"
                yield split.finding("note", "shared_texts", sentence, shared)


def _shared(split: _HashedSplit, other: _HashedSplit) -> Mask:
    shared: Mask = (is_among(split.texts_NW, other.known_texts) & (split.lengths_NW > 0)).sum(axis=1) > 0
    return shared


# --- columns of text and their lengths --------------------------------------------------------------------------------
def _columns(split: _HashedSplit) -> Iterator[Finding]:
    if len(split.data) < 2:
        return
    for column, hashes in zip(split.data.spec.text, split.texts_NW.T, strict=False):  # options may well be the same
        if (hashes == hashes[0]).all():
            sentence = f"column {column!r} has the same text in every row"
            yield Finding("problem", split.task, split.name, "constant_text", sentence, (), len(split.data))
    if split.data.spec.is_pair:
        same = (split.texts_NW[:, 0] == split.texts_NW[:, 1]) & split.has_text_N
        if same.any():
            severity: Severity = "problem" if same.mean() >= SAME_PAIR_SHARE else "note"
            yield split.finding(severity, "same_texts", "have the same text twice", same)


def _lengths(split: _HashedSplit, packer: Packer, form: InputFormat, unknown_id: int | None) -> Iterator[Finding]:
    empty = split.lengths_NW[:, : len(split.data.spec.text)].min(axis=1) == 0
    if empty.any():
        severity: Severity = "problem" if empty.mean() >= EMPTY_SHARE else "warning"
        sentence = "have a text without any token (of zero-width characters, for example)"
        yield split.finding(severity, "empty_texts", sentence, empty)
    per_word = KINDS[split.labels.kind].per_word
    limit = packer.max_length if per_word else packer.longest(form)
    cut = packer.full_lengths(split.lengths_NW, form.reading) > limit
    if cut.any():
        severity = "warning" if cut.mean() >= CUT_SHARE and not per_word else "note"
        fate = "read in overlapping windows" if per_word else "truncated"
        longest = f"max_length ({limit} tokens)"
        if form.windows is not None:
            longest = f"windows.most windows together ({limit:,} tokens)"
        sentence = f"are longer than {longest} and will be {fate}"
        yield split.finding(severity, "cut", sentence, cut)
    if unknown_id is not None:
        yield from _unknown(split, unknown_id)


def _unknown(split: _HashedSplit, unknown_id: int) -> Iterator[Finding]:
    counts = [_count(tokens == unknown_id, offsets) for tokens, offsets in split.data.store.pieces(PIECE)]
    unknown_NW = np.concatenate([*counts, np.zeros(0, np.int32)]).reshape(split.lengths_NW.shape)
    share = unknown_NW.sum() / max(split.lengths_NW.sum(), 1)
    if share >= UNKNOWN_SHARE:
        sentence = (
            f"have words that are not in the encoder's vocabulary ({share:.0%} of all tokens): another language, "
        )
        sentence += "or not words at all"
        yield split.finding("warning", "unknown_words", sentence, unknown_NW.max(axis=1, initial=0) > 0)


def _count(marked: Mask, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Counts the marked tokens of each text."""
    sums = np.concatenate([[0], np.cumsum(marked)])
    counts: npt.NDArray[np.int32] = (sums[offsets[1:]] - sums[offsets[:-1]]).astype(np.int32)
    return counts
