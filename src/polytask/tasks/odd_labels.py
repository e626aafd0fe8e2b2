"""Findings about labels: classes without rows, one class for nearly all rows, scores that look like classes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from polytask.kinds.names import NUMBER, WRITTEN_NUMBER
from polytask.tasks.describe import classes_and_counts
from polytask.tasks.finding import ROWS_NAMED, Finding, Severity, in_percent, rows_that
from polytask.tasks.task import Split, Task

FEWEST_OF_A_CLASS = 5  # fewer examples than this are memorized rather than learned
ONE_SIDED = 0.95  # always predicting this class is nearly always right
MOST_NUMERIC_CLASSES = 20  # as in `polytask init`: more different numbers than this are scores
FEWEST_OF_A_LABEL = 2  # mean rows per class below which labels look like ids or texts
WHOLE_SCORES = 11  # 0 to 10: this many different integers or fewer may be classes
MANY_WITHOUT_CLASS = 0.5  # more often than this, an empty label may mean that nobody labelled the row
NARROW = 0.25  # of the range that scores use; below it, the squared error is tiny from the start
FAR, MOST_FAR = 10, 0.01  # times the spread of the other scores, and the share of the rows that can be far from them
CLASSES_NAMED = 5

Mask = npt.NDArray[np.bool_]


def odd_labels(name: str, task: Task) -> Iterator[Finding]:
    """Yields the findings about the task's labels, split by split."""
    labelled = {split: data for split, data in task.splits.items() if data.is_labelled}
    if task.labels.kind == "score":
        for data in labelled.values():
            yield from _scores(name, task, data)
    elif task.labels.kind == "choice":
        yield from _options(name, labelled)
    elif task.spec.label is not None:
        yield from _classes(name, replace(task, splits=labelled))
        if task.labels.kind == "multilabel":
            for data in labelled.values():
                yield from _without_class(name, data)


def _classes(name: str, task: Task) -> Iterator[Finding]:
    known = {split: classes_and_counts(data, task.labels) for split, data in task.splits.items()}
    classes = next((names for names, _ in known.values()), ())
    counts = {split: np.array(numbers) for split, (_, numbers) in known.items()}

    def finding(severity: Severity, split: str, what: str, where_C: Mask, sentence: str) -> Iterator[Finding]:
        names = [classes[i] for i in np.flatnonzero(where_C)]
        if names:
            yield Finding(severity, name, split, what, sentence.format(names=_listed(names)), (), len(names))

    learned_C: Mask = np.ones(len(classes), bool)
    if "train" in counts:
        train = counts["train"]
        learned_C = train > 0
        few_C = learned_C & (train < FEWEST_OF_A_CLASS)
        sentence = "no training row has the label {names}, which can therefore not be learned"
        yield from finding("problem", "train", "class_missing", ~learned_C, sentence)
        sentence = f"fewer than {FEWEST_OF_A_CLASS} training rows each: {{names}}"
        yield from finding("warning", "train", "few_examples", few_C, sentence)
        if task.spec.kind == "multilabel":
            yield from _in_nearly_all_rows(name, classes, train, len(task.splits["train"]))
        elif task.spec.kind != "tokens":
            yield from _one_sided(name, classes, train)
        yield from _spelled_alike(name, classes)
        if task.spec.kind == "classes":
            yield from _odd_classes(name, classes, int(train.sum()))
    for split in ("dev", "test"):
        if split in counts:
            severity: Severity = "warning" if split == "dev" else "note"
            sentence = f"no {split} row has the label {{names}}, so the {split} scores do not cover it"
            yield from finding(severity, split, "class_missing", learned_C & (counts[split] == 0), sentence)


def _spelled_alike(name: str, classes: tuple[str, ...]) -> Iterator[Finding]:
    """Reports classes that are one class in two spellings: the model would have to guess the annotator's habit."""
    spellings: dict[str, list[str]] = {}
    for known in classes:
        spellings.setdefault(" ".join(known.casefold().split()), []).append(known)
    alike = [one for several in spellings.values() if len(several) > 1 for one in several]
    if alike:
        sentence = f"classes that differ only in upper and lower case or in spaces: {_listed(alike)}"
        yield Finding("warning", name, "train", "spelled_alike", sentence, (), len(alike))


def _in_nearly_all_rows(
    name: str, classes: tuple[str, ...], counts_C: npt.NDArray[np.int64], rows: int
) -> Iterator[Finding]:
    frequent = [classes[c] for c in np.flatnonzero(counts_C > ONE_SIDED * rows)]
    if frequent:
        sentence = f"more than {ONE_SIDED:.0%} of the rows have the class {_listed(frequent)}, so it says little"
        yield Finding("warning", name, "train", "one_sided", sentence, (), len(frequent))


def _without_class(name: str, split: Split) -> Iterator[Finding]:
    empty = np.flatnonzero(split.labels.sum(axis=1) == 0)
    if len(empty):
        severity: Severity = "warning" if len(empty) > MANY_WITHOUT_CLASS * len(split) else "note"
        meaning = "learned" if split.name == "train" else "scored"
        sentence = rows_that(len(empty), len(split), f"have no class, which is {meaning} as the right answer")
        rows = tuple(split.rows[empty[:ROWS_NAMED]].tolist())
        yield Finding(severity, name, split.name, "without_class", sentence, rows, len(empty))


def _one_sided(name: str, classes: tuple[str, ...], counts_C: npt.NDArray[np.int64]) -> Iterator[Finding]:
    most, total = int(counts_C.argmax()), int(counts_C.sum())
    count = int(counts_C[most])
    if count > ONE_SIDED * total:
        sentence = (
            f"{in_percent(count, total)} of the rows are {classes[most]!r}, so always predicting it gives a high "
            "accuracy; use `metric: f1`"
        )
        yield Finding("warning", name, "train", "one_sided", sentence, (), count)


def _options(name: str, splits: Mapping[str, Split]) -> Iterator[Finding]:
    """Reports an index that is nearly always the right one: the model would learn the place instead of the text."""
    for split in splits.values():
        counts = np.bincount(split.labels[:, 0].astype(np.int64))
        index, count = int(counts.argmax()), int(counts.max())
        if count > ONE_SIDED * len(split) and len(split) > 1:
            sentence = (
                f"the right option has the index {index} in {in_percent(count, len(split))} of the rows; shuffle "
            )
            sentence += "the options of each row, unless their order means something"
            yield Finding("warning", name, split.name, "one_sided", sentence, (), count)


def _odd_classes(name: str, classes: tuple[str, ...], rows: int) -> Iterator[Finding]:
    numbers = all(NUMBER.fullmatch(value) or WRITTEN_NUMBER.fullmatch(value) for value in classes)
    if numbers and (len(classes) > MOST_NUMERIC_CLASSES or any("." in value or "," in value for value in classes)):
        sentence = (
            f"the labels are {len(classes):,} different numbers; with `kind: score`, a prediction of 4 for 5 counts as "
            "nearly right"
        )
        yield Finding("warning", name, "train", "numbers_as_classes", sentence, (), len(classes))
    elif rows < FEWEST_OF_A_LABEL * len(classes):
        sentence = f"{len(classes):,} different labels in {rows:,} rows: is this the label column?"
        yield Finding("warning", name, "train", "labels_like_ids", sentence, (), len(classes))


def _scores(name: str, task: Task, split: Split) -> Iterator[Finding]:
    different, rows = np.unique(split.store.labels), len(split)
    low, high, space = float(different.min(initial=np.inf)), float(different.max(initial=-np.inf)), task.labels

    def finding(severity: Severity, what: str, sentence: str) -> Finding:
        return Finding(severity, name, split.name, what, sentence, (), rows)

    if len(different) < 2:
        if rows > 1:
            yield finding("problem", "constant_score", f"every score is {low:g}: there is nothing to learn or to score")
        return
    if space.bounded and high - low < NARROW * (space.high - space.low):
        given = f"[{space.low:g}, {space.high:g}]"
        yield finding("warning", "narrow_range", f"all scores are in [{low:g}, {high:g}], but `range` is {given}")
    if split.name != "train" or rows <= WHOLE_SCORES:
        return
    yield from _far_scores(name, split)
    if len(different) == 2:
        sentence = f"every score is {low:g} or {high:g}; would `kind: yes_no` or `kind: classes` fit better?"
        yield finding("warning", "two_scores", sentence)
    elif len(different) <= WHOLE_SCORES and (different == np.round(different)).all():
        sentence = f"the scores are {len(different)} integers from {low:g} to {high:g}; `kind: classes` with "
        yield finding("note", "whole_scores", f"{sentence}`loss: ordinal` is an alternative")


def _far_scores(name: str, split: Split) -> Iterator[Finding]:
    """Reports the few scores that nearly all of the standard deviation comes from, by which scores are standardized."""
    scores = split.store.labels.astype(np.float64)
    distances = np.abs(scores - np.median(scores))
    most = max(1, int(MOST_FAR * len(scores)))
    others = scores[np.argsort(distances, kind="stable")[:-most]]
    if 0 < FAR * others.std() < scores.std():
        far = np.flatnonzero(distances > FAR * others.std())
        sentence = rows_that(len(far), len(scores), "have a score far from the others: ")
        sentence += f"the standard deviation is {scores.std():.3g}, and {others.std():.3g} without, so that the "
        sentence += "differences between the other scores hardly count"
        rows = tuple(split.rows[far[:ROWS_NAMED]].tolist())
        yield Finding("warning", name, split.name, "far_scores", sentence, rows, len(far))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - CLASSES_NAMED:,} more" if len(names) > CLASSES_NAMED else ""
    return ", ".join(map(repr, names[:CLASSES_NAMED])) + more
