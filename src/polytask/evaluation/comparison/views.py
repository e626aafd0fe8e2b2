"""Views and pairs: a task or the mean of the tasks, and two variants on the seeds they are compared by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polytask.evaluation.comparison.records import TaskData
from polytask.evaluation.comparison.statistics import Floats, Runs


@dataclass(frozen=True)
class View:
    """One task, or all of them for their mean."""

    name: str
    tasks: tuple[TaskData, ...]
    indices: tuple[int, ...]
    """The indices of these tasks among all tasks of the study."""
    greater_is_better: bool

    @property
    def signs(self) -> list[float]:
        """-1 for tasks that count in the mean with a minus sign, because their metric is better when lower."""
        return [1.0 if task.measure.greater_is_better == self.greater_is_better else -1.0 for task in self.tasks]

    @property
    def examples(self) -> int:
        return sum(len(task.gold) for task in self.tasks)

    @property
    def range(self) -> tuple[float, float]:
        ends = np.array([sorted(sign * end for end in t.range) for t, sign in zip(self.tasks, self.signs, strict=True)])
        low, high = ends.mean(0).tolist()
        return low, high

    def of(self, runs: Sequence[Runs]) -> list[Runs]:
        """Selects the runs of this view's tasks out of those of all tasks."""
        return [
            Runs(sign * runs[t].scores_S, sign * runs[t].influence_SN)
            for t, sign in zip(self.indices, self.signs, strict=True)
        ]


@dataclass(frozen=True)
class Pair:
    """A variant and the reference, on the seeds that can be compared."""

    variant: str
    reference: str
    sides: tuple[list[Runs], list[Runs]]
    """For each task, the runs that are compared."""
    paired: bool

    def groups(self, view: View) -> list[list[Runs]]:
        """Returns the runs in the groups that `statistics.noise` takes."""
        first, second = (view.of(side) for side in self.sides)
        if self.paired:
            return [[a - b for a, b in zip(first, second, strict=True)]]
        return [first, [Runs(-runs.scores_S, -runs.influence_SN) for runs in second]]

    def parts(self, view: View) -> list[Floats]:
        """Returns, for each task [N], each example's contribution to the difference, which is their mean."""
        pairs = zip(*(view.of(side) for side in self.sides), strict=True)
        return [
            first.scores_S.mean() - second.scores_S.mean() + first.influence_SN.mean(0) - second.influence_SN.mean(0)
            for first, second in pairs
        ]
