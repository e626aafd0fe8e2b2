"""Each step from one task, by weights the recipe gives."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from polytask.samplers.base import ChanceSampler, SamplerContext
from polytask.types import UserError, unknown


class Weights(ChanceSampler):
    """p_i ~ w_i, given by task name: `sampler: {name: weights, weights: {sst: 1, quora: 3}}`.

    A weight is a share of the steps; a task's own `weight` in the recipe is another thing, the factor of its loss.
    0 leaves a task out. No weights at all: equal ones, drawn by chance, where round_robin takes turns.
    """

    def __init__(self, context: SamplerContext, *, weights: Mapping[str, float] | None = None) -> None:
        super().__init__(context)
        given = dict.fromkeys(self.tasks, 1.0) if weights is None else weights
        _check(given, self.tasks)
        numbers = np.array([given[task] for task in self.tasks], dtype=np.float64)
        self.shares: npt.NDArray[np.float64] = numbers / numbers.sum()

    def chances(self, step: int) -> npt.NDArray[np.float64]:
        return self.shares


def _check(weights: Mapping[str, float], tasks: tuple[str, ...]) -> None:
    where = "recipe: sampler.weights"
    for task in weights:
        if task not in tasks:
            raise UserError(unknown(where, task, tasks, "task"))
    missing = [task for task in tasks if task not in weights]
    if missing:
        raise UserError(f"{where}: no weight for {', '.join(missing)}; 0 leaves a task out")
    for task, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise UserError(f"{where}.{task}: a number of 0 or more is needed, found {weight}")
    if not any(weights.values()):
        raise UserError(f"{where}: every weight is 0; at least one task needs more")
