"""Each task in turn."""

from polytask.samplers.base import StepSampler
from polytask.types import Draw


class RoundRobin(StepSampler):
    """Task `step mod K`: equal shares whatever the sizes; small tasks start over as often as necessary.

    Unlike a loop that zips the tasks' data loaders, it does not stop at the end of the smallest task.
    """

    def draws(self, step: int) -> tuple[Draw, ...]:
        task = self.active[step % len(self.active)]
        return (Draw(task, self.context.count(task)),)
