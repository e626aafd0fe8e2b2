"""Each task in turn, in batches as large as the task."""

from polytask.samplers.base import SamplerContext, StepSampler, divided
from polytask.types import Draw


class Balanced(StepSampler):
    """Task `step mod K` with a batch size of its own, so that all tasks have equally many batches in an epoch.

        batch_i ~ N_i, at least 1, and their mean is batch_size (largest remainder)

    Every task moves the weights equally often, and still each example is seen equally often: small tasks learn from
    small, noisy batches instead of from repetition.

    Differences: a task so small that its batch is rounded up to 1 is seen more often than its share. The largest
    task's batch can come near K * batch_size examples; memory must hold it.
    """

    def __init__(self, context: SamplerContext) -> None:
        super().__init__(context)
        self.batches = divided(context.batch_size * len(self.tasks), context.sizes)

    def draws(self, step: int) -> tuple[Draw, ...]:
        task = self.tasks[step % len(self.tasks)]
        return (Draw(task, self.batches[task]),)
