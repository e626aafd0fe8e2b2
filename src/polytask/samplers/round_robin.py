"""Each task in turn."""

from polytask.samplers.base import StepSampler
from polytask.types import Draw


class RoundRobin(StepSampler):
    """Task `step mod K`: equal shares whatever the sizes, small sets starting over as often as needed.

    It never stops at the smallest set, as loops that zip the tasks' loaders do.
    """

    def draws(self, step: int) -> tuple[Draw, ...]:
        return (Draw(self.tasks[step % len(self.tasks)], self.context.batch_size),)
