"""Balanced sampling: each task in turn, with batch sizes in proportion to the tasks' sizes."""

from polytask.samplers.base import SamplerContext, StepSampler, divide
from polytask.types import Draw


class Balanced(StepSampler):
    """Task `step mod K` with its own batch size, so that all tasks have the same number of batches per epoch.

        batch_i ~ N_i, at least 1, and their mean is batch_size (largest remainder)

    Every task has the same number of updates, and each example is seen equally often: small tasks have small, noisy
    batches instead of repeated examples.

    A task so small that its batch size is rounded up to 1 is seen more often than its share. The batch of the largest
    task can have almost K * batch_size examples, which must fit in memory.
    """

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        self.batches = divide(context.batch_size * len(self.tasks), context.sizes)

    def draws(self, step: int) -> tuple[Draw, ...]:
        task = self.active[step % len(self.active)]
        return (Draw(task, self.batches[task]),)
