"""The rows of tasks that are different label columns of one file (`share_rows`): their texts once, and every label."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from polytask.tasks.task import Split
from polytask.text.texts import Texts
from polytask.types import NO_LABEL

MISSING = -1
"""The index of a row in the split of a task that has no label for it."""


@dataclass(frozen=True)
class SharedRows:
    """The rows that have a label of at least one task, in the order of the file."""

    splits: Mapping[str, Split]
    """By task: its labelled rows of the file."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.splits)

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """The row number of each row in the file."""
        return np.unique(np.concatenate([split.rows for split in self.splits.values()]))

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def indices(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """By task: the index of each row in the task's split; MISSING for rows without a label of the task."""
        indices = {}
        for task, split in self.splits.items():
            indices[task] = np.full(len(self), MISSING, np.int64)
            indices[task][self.places(task)] = np.arange(len(split))
        return indices

    def places(self, task: str) -> npt.NDArray[np.int64]:
        """Where the rows of the task's split are among the shared rows."""
        return np.searchsorted(self.rows, self.splits[task].rows)

    @cached_property
    def labels_of(self) -> Mapping[str, npt.NDArray[Any]]:
        """By task: the label of each row as heads learn it; NO_LABEL for rows without one."""
        labels = {}
        for task, split in self.splits.items():
            labels[task] = np.full((len(self), *split.labels.shape[1:]), NO_LABEL, split.labels.dtype)
            labels[task][self.places(task)] = split.labels
        return labels

    @property
    def partly_labelled(self) -> tuple[str, ...]:
        """The tasks that have no label for some of the rows."""
        return tuple(task for task, split in self.splits.items() if len(split) < len(self))

    @property
    def num_unlabelled(self) -> int | None:
        """The number of rows of the file that have no label of any task; None if only some rows were chosen."""
        if any(split.name == "train" and split.spec.rows is not None for split in self.splits.values()):
            return None
        return max(len(split) + split.num_blank for split in self.splits.values()) - len(self)

    @cached_property
    def _owners(self) -> npt.NDArray[np.int64]:
        """The number of the first task that has each row: its split has the text."""
        owners = np.full(len(self), len(self.splits), np.int64)
        for number, task in reversed(list(enumerate(self.splits))):
            owners[self.places(task)] = number
        return owners

    def lengths(self) -> npt.NDArray[np.int64]:
        """Returns the number of tokens of each row's texts: [N, W]."""
        lengths_NW = np.zeros((len(self), len(next(iter(self.splits.values())).spec.text)), np.int64)
        for task, split in self.splits.items():
            lengths_NW[self.places(task)] = split.store.lengths()
        return lengths_NW

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        """Returns the ids of one row's text, or of its two texts, without special tokens."""
        task = self.tasks[self._owners[index]]
        return self.splits[task].tokens(int(self.indices[task][index]))

    def gather(self, indices: npt.ArrayLike) -> Texts:
        """Returns the texts of several rows, with their tags."""
        indices_N = np.asarray(indices, dtype=np.int64)
        owners_N = self._owners[indices_N]
        parts = [
            split.gather(self.indices[task][indices_N[owners_N == number]])
            for number, (task, split) in enumerate(self.splits.items())
        ]
        if (owners_N == 0).all():
            return parts[0]
        return Texts.joined(parts).take(np.argsort(np.argsort(owners_N, kind="stable")))


def shared_rows(splits: Mapping[str, Split]) -> Iterator[tuple[str, SharedRows]]:
    """Yields the name of each group of tasks that share rows, with its rows."""
    groups: dict[tuple[str, str], dict[str, Split]] = {}
    for task, split in splits.items():
        if split.spec.share_rows is not None:
            groups.setdefault((split.spec.share_rows, split.source), {})[task] = split
    for (name, _), members in groups.items():
        yield name, SharedRows(members)
