"""A look at the data of all tasks before anything is trained: what would mislead, what is likely a mistake.

Texts are compared by hashes of their token ids, whole splits at once, so that a million rows take seconds. Knows tasks
and their stores; knows no model. Row numbers are those of the files.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt

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

LEAK_SHARE = 0.01  # one dev row in a hundred that was learned moves a score by up to a point
DUPLICATE_SHARE = 0.01  # more than chance gives: some program has copied rows
CONTRADICTION_SHARE = 0.01  # as many can never be learned, nor scored right
SCORES_APART = 0.25  # of the range: two careful people differ by less
SAME_PAIR_SHARE = 0.5  # of pairs with one text twice: the recipe may name one column twice, or the wrong ones
CUT_SHARE = 0.1  # where fewer are cut, a longer `max_length` costs more than it gives
EMPTY_SHARE = 0.01  # more than a slip: the column, or the encoder, is not for these texts
UNKNOWN_SHARE = 0.05  # English in an English vocabulary has about one in a thousand


def examine(
    tasks: Mapping[str, Task], max_length: int, apart: Collection[str] = (), unknown_id: int | None = None
) -> list[Finding]:
    """What the tasks' data has, the worst first.

    `max_length` is that of a sequence with its special tokens; tasks in `apart` have a sequence for each text of a
    pair; `unknown_id` is the token of words that the vocabulary does not have.
    """
    looks = {
        name: {split: _Look(name, task, data) for split, data in task.splits.items()} for name, task in tasks.items()
    }
    found: list[Finding] = []
    for name, splits in looks.items():
        found += odd_labels(name, tasks[name])
        for look in splits.values():
            found += _copies(look)
            found += _columns(look)
            found += _lengths(look, max_length, look.task in apart, unknown_id)
            found += odd_texts(name, look.data)
        for learned, scored in (("train", "dev"), ("train", "test"), ("dev", "test")):
            if learned in splits and scored in splits:
                found += _leaks(splits[learned], splits[scored])
    found += _between_tasks(looks)
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


class _Look:
    """A split with its texts hashed."""

    def __init__(self, name: str, task: Task, data: Split) -> None:
        self.task, self.split, self.data, self.labels = name, data.name, data, task.labels
        self.lengths_NW = data.store.lengths().astype(np.int32)  # many rows are held at once: half the memory
        self.texts_NW: Hashes = text_hashes(data.store)
        self.has_text_N: Mask = self.lengths_NW.max(axis=1, initial=0) > 0
        """Rows without any token are told by themselves, not as copies of each other."""
        self.ordered_N = in_order(self.texts_NW)
        self.either_N = in_any_order(self.texts_NW) if data.spec.is_pair else self.ordered_N

    @cached_property
    def known_texts(self) -> Hashes:
        """Every text once, in order; those of pairs one by one."""
        return np.unique(self.texts_NW)

    @property
    def apart(self) -> float:
        """How far two labels may be from each other and still be the same one."""
        return SCORES_APART if self.labels.kind == "score" else 0.0

    def told(self, severity: Severity, what: str, sentence: str, where_N: Mask) -> Finding:
        """A finding about these rows; the sentence goes on after `12 of 400 rows`."""
        count = int(where_N.sum())
        sentence = rows_that(count, len(where_N), sentence)
        rows = tuple(self.data.rows[np.flatnonzero(where_N)[:ROWS_NAMED]].tolist())
        return Finding(severity, self.task, self.split, what, sentence, rows, count)

    def about(self, severity: Severity, what: str, sentence: str) -> Finding:
        """A finding about the whole split."""
        return Finding(severity, self.task, self.split, what, sentence, (), len(self.data))


# --- the same text more than once -------------------------------------------------------------------------------------
def _copies(look: _Look) -> Iterator[Finding]:
    again = repeats(look.either_N) & look.has_text_N
    if again.any():
        swapped = int((again & ~repeats(look.ordered_N)).sum()) if look.data.spec.is_pair else 0
        order = f", {swapped:,} of them with the two texts in the other order" if swapped else ""
        severity: Severity = "warning" if again.mean() >= DUPLICATE_SHARE else "note"
        yield look.told(severity, "duplicates", f"say the same as an earlier row{order}", again)
    if look.labels.kind == "text" or not len(look.data):
        return
    labels = look.data.labels
    contrary = (spreads(look.ordered_N, labels) > look.apart) & look.has_text_N
    if contrary.any():
        severity = "problem" if contrary.mean() >= CONTRADICTION_SHARE else "warning"
        far = f"labels more than {SCORES_APART:.0%} of the range apart" if look.apart else "different labels"
        yield look.told(severity, "contradictions", f"have the text of another row, but {far}: one is wrong", contrary)
    if not look.data.spec.is_pair:
        return
    turned = (spreads(look.either_N, labels) > look.apart) & look.has_text_N & ~contrary
    if turned.any():
        sentence = "stand there with the two texts in the other order too, and with another label: a mistake, unless "
        yield look.told("note", "turned_labels", sentence + "the order matters, as for premise and hypothesis", turned)


def _leaks(learned: _Look, scored: _Look) -> Iterator[Finding]:
    place = first_places(learned.either_N, scored.either_N)
    leaked = (place >= 0) & scored.has_text_N
    if not leaked.any():
        return
    name = {"train": "training", "dev": "dev"}[learned.split]
    severity: Severity = "problem" if leaked.mean() >= LEAK_SHARE and learned.split == "train" else "warning"
    sentence = f"are among the {name} rows too, which makes {scored.split} scores too good"
    yield scored.told(severity, "leak" if learned.split == "train" else "leak_from_dev", sentence, leaked)
    if scored.labels.kind == "text":
        return
    exact = first_places(learned.ordered_N, scored.ordered_N)
    other = learned.data.labels[exact].astype(np.float64) - scored.data.labels
    contrary = (exact >= 0) & scored.has_text_N & (np.abs(other) > scored.apart)
    if contrary.any():
        sentence = f"are among the {name} rows with another label: one of the two is wrong"
        yield scored.told("warning", "other_label", sentence, contrary)


def _between_tasks(looks: Mapping[str, Mapping[str, _Look]]) -> Iterator[Finding]:
    """Texts that two tasks share, each text of a pair by itself."""
    for one, other in permutations(looks, 2):
        for split in ("dev", "test"):
            if split in looks[one] and "train" in looks[other]:
                look = looks[one][split]
                shared = _shared(look, looks[other]["train"])
                if shared.any():
                    sentence = f"have a text that task {other} is trained on: scores of {one} may gain by it"
                    yield look.told("note", "leak_between_tasks", sentence, shared)
    for one, other in combinations(looks, 2):
        if "train" in looks[one] and "train" in looks[other]:
            look = looks[one]["train"]
            shared = _shared(look, looks[other]["train"])
            if shared.any():
                sentence = f"have a text that task {other} is trained on too: fine, if that is meant"
                yield look.told("note", "shared_texts", sentence, shared)


def _shared(look: _Look, other: _Look) -> Mask:
    found: Mask = (is_among(look.texts_NW, other.known_texts) & (look.lengths_NW > 0)).sum(axis=1) > 0
    return found


# --- columns of text and their lengths --------------------------------------------------------------------------------
def _columns(look: _Look) -> Iterator[Finding]:
    if len(look.data) < 2:
        return
    for column, hashes in zip(look.data.spec.text, look.texts_NW.T, strict=True):
        if (hashes == hashes[0]).all():
            yield look.about("problem", "constant_text", f"column {column!r} has the same text in every row")
    if look.texts_NW.shape[1] == 2:
        same = (look.texts_NW[:, 0] == look.texts_NW[:, 1]) & look.has_text_N
        if same.any():
            severity: Severity = "problem" if same.mean() >= SAME_PAIR_SHARE else "note"
            yield look.told(severity, "same_texts", "have the same text twice", same)


def _lengths(look: _Look, max_length: int, apart: bool, unknown_id: int | None) -> Iterator[Finding]:
    empty = look.lengths_NW.min(axis=1) == 0
    if empty.any():
        severity: Severity = "problem" if empty.mean() >= EMPTY_SHARE else "warning"
        sentence = "have a text of which the tokenizer leaves nothing (characters without width, say)"
        yield look.told(severity, "empty_texts", sentence, empty)
    together = look.lengths_NW.shape[1] == 2 and not apart
    lengths = look.lengths_NW.sum(axis=1, dtype=np.int32) if together else look.lengths_NW.max(axis=1, initial=0)
    cut = lengths > max_length - (3 if together else 2)
    if cut.any():
        severity = "warning" if cut.mean() >= CUT_SHARE else "note"
        sentence = f"are longer than max_length ({max_length} tokens): the rest is not read"
        yield look.told(severity, "cut", sentence, cut)
    if unknown_id is not None:
        yield from _unknown(look, unknown_id)


def _unknown(look: _Look, unknown_id: int) -> Iterator[Finding]:
    counts = [_count(tokens == unknown_id, borders) for tokens, borders in look.data.store.pieces(PIECE)]
    unknown_NW = np.concatenate([*counts, np.zeros(0, np.int32)]).reshape(look.lengths_NW.shape)
    share = unknown_NW.sum() / max(look.lengths_NW.sum(), 1)
    if share >= UNKNOWN_SHARE:
        sentence = f"have words that the encoder's vocabulary does not have ({share:.0%} of all tokens): another "
        sentence += "language, or no words at all"
        yield look.told("warning", "unknown_words", sentence, unknown_NW.max(axis=1, initial=0) > 0)


def _count(marked: Mask, borders: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    sums = np.concatenate([[0], np.cumsum(marked)])
    found: npt.NDArray[np.int32] = (sums[borders[1:]] - sums[borders[:-1]]).astype(np.int32)
    return found
