"""Sampling by weights given in the recipe."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from polytask.samplers.base import RandomSampler, SamplerContext
from polytask.settings import NonNegative
from polytask.types import UserError, unknown


class Weights(RandomSampler):
    """p_i ~ w_i, given by task name: `sampler: {name: weights, weights: {sst: 1, quora: 3}}`.

    These weights are shares of the steps; a task's `weight` in the recipe is something else, the weight of its loss.
    0 leaves a task out. The default is equal weights: tasks are drawn at random, while round_robin takes turns.
    """

    def __init__(self, context: SamplerContext, *, weights: Mapping[str, NonNegative] | None = None) -> None:
        super().__init__(context)
        given = dict.fromkeys(self.tasks, 1.0) if weights is None else weights
        _check(given, self.tasks)
        weights_K = np.array([given[task] for task in self.tasks], dtype=np.float64)
        self.shares: npt.NDArray[np.float64] = weights_K / weights_K.sum()

    def probabilities(self, step: int) -> npt.NDArray[np.float64]:
        return self.shares


def _check(weights: Mapping[str, float], tasks: tuple[str, ...]) -> None:
    where = "recipe: sampler.weights"
    for task in weights:
        if task not in tasks:
            raise UserError(unknown(where, task, tasks, "trained task or group"))
    missing = [task for task in tasks if task not in weights]
    if missing:
        raise UserError(f"{where}: no weight for {', '.join(missing)}; a weight of 0 leaves a task out")
    if not any(weights.values()):
        raise UserError(f"{where}: at least one weight must be above 0, found only zeros")
