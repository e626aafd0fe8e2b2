"""The rows that a task is trained on: its labelled rows, followed by the rows that only a teacher labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from polytask.kinds.tokens import same_width
from polytask.tasks.task import Split, Task
from polytask.text.texts import Texts
from polytask.types import Example


@dataclass(frozen=True)
class TrainingRows:
    """Two splits of a task as one. Examples of the second have the label NO_LABEL."""

    labelled: Split
    unlabelled: Split

    @cached_property
    def labels(self) -> npt.NDArray[Any]:
        one: npt.NDArray[Any] = self.labelled.labels
        other: npt.NDArray[Any] = self.unlabelled.labels
        if one.ndim == 2:
            one, other = same_width(one, other)
        return np.concatenate([one, other])

    def __len__(self) -> int:
        return len(self.labelled) + len(self.unlabelled)

    def lengths(self) -> npt.NDArray[np.int64]:
        """Returns the number of tokens of each example's texts: [N, W]."""
        width = max(split.store.width for split in (self.labelled, self.unlabelled))
        both = (self.labelled.lengths(), self.unlabelled.lengths())
        return np.concatenate([np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in both])

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        """Returns the ids of one example's texts, without special tokens."""
        first = len(self.labelled)
        return self.labelled.tokens(index) if index < first else self.unlabelled.tokens(index - first)

    def gather(self, indices: npt.ArrayLike) -> Texts:
        """Returns the texts of several examples, with their tags."""
        indices_N = np.asarray(indices, dtype=np.int64)
        is_labelled_N = indices_N < len(self.labelled)
        width = max(split.store.width for split in (self.labelled, self.unlabelled))  # they differ in options only
        one = self.labelled.gather(indices_N[is_labelled_N]).widened(width)
        other = self.unlabelled.gather(indices_N[~is_labelled_N] - len(self.labelled)).widened(width)
        places_N = np.argsort(np.argsort(~is_labelled_N, kind="stable"))
        return Texts.joined([one, other]).take(places_N)

    def examples(self) -> Iterator[Example]:
        """Reads the texts of all examples from their sources again, in order."""
        return chain(self.labelled.examples(), self.unlabelled.examples())


def training_rows(task: Task) -> Split | TrainingRows:
    """Returns the rows that steps are drawn from."""
    labelled = task.splits["train"]
    return TrainingRows(labelled, task.splits["unlabelled"]) if "unlabelled" in task.splits else labelled
