"""Tasks one after another within each epoch."""

from bisect import bisect_right
from itertools import accumulate

from polytask.samplers.base import SamplerContext, Shares, StepSampler, divide
from polytask.types import Draw


class Sequential(StepSampler):
    """In each epoch all steps of the first task, then all of the second, in the recipe's order.

        steps_i ~ N_i (`shares: sizes`) or equal (`shares: equal`), at least 1; they sum to steps_per_epoch

    With equal numbers of steps, small tasks start over. With the default epoch and shares, each task goes through its
    examples once per epoch, up to rounding to whole steps. If an epoch has fewer steps than tasks, the tasks take one
    step each, in turn.

    This is a loop over datasets, in which later tasks overwrite earlier ones: the setting of Lopez-Paz and Ranzato,
    "Gradient Episodic Memory", 2017, repeated every epoch.
    """

    def __init__(self, context: SamplerContext, *, shares: Shares = "sizes") -> None:
        super().__init__(context)
        self.round = max(context.steps_per_epoch, len(self.tasks))
        sizes = {task: size if shares == "sizes" else 1 for task, size in context.step_sizes.items()}
        self.ends = list(accumulate(divide(self.round, sizes).values()))

    def draws(self, step: int) -> tuple[Draw, ...]:
        task = self.tasks[bisect_right(self.ends, step % self.round)]
        return (Draw(task, self.context.count(task)),)
