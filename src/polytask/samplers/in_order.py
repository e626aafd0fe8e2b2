"""Tasks one after another over the whole run: the setting of continual learning."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from polytask.samplers.base import SamplerContext, Shares, StepSampler, divide
from polytask.types import Draw, Stage, UserError, unknown


class InOrder(StepSampler):
    """A sequence of tasks: all steps of the first one, then all of the second, and so on.

        steps_i ~ N_i (`shares: sizes`) or equal (`shares: equal`), at least 1; they sum to the steps of the whole run

    `order` lists the tasks; left out, it is the recipe's order. With `sizes`, a run of n epochs goes through the
    examples of each task n times, up to rounding to whole steps. All tasks are evaluated before the first step and at
    the end of each stage, and the summary and the report show what was forgotten. Recommended with it:
    `train.select: last`, because the best mean over tasks is not the goal of a sequence, and
    `train.schedule: constant`, because any other schedule gives the last task the smallest learning rate.

    Paper: Lopez-Paz and Ranzato, "Gradient Episodic Memory", 2017, whose setting this is (with one epoch).
    """

    def __init__(
        self, context: SamplerContext, *, order: tuple[str, ...] | None = None, shares: Shares = "sizes"
    ) -> None:
        super().__init__(context)
        tasks = order or self.tasks
        _check(tasks, self.tasks)
        steps = context.steps_per_epoch * context.epochs
        if steps < len(tasks):
            raise UserError(
                f"recipe: sampler: in_order: {len(tasks)} tasks need at least {len(tasks)} steps, found {steps}; raise "
                "train.epochs or train.steps_per_epoch"
            )
        sizes = {task: context.step_sizes[task] if shares == "sizes" else 1 for task in tasks}
        self.stages = _stages(divide(steps, sizes))

    def draws(self, step: int) -> tuple[Draw, ...]:
        stage = next((stage for stage in self.stages if step < stage.last), self.stages[-1])
        return (Draw(stage.task, self.context.count(stage.task)),)


def _stages(steps: Mapping[str, int]) -> tuple[Stage, ...]:
    ends = accumulate(steps.values())
    return tuple(Stage(task, end - count + 1, end) for (task, count), end in zip(steps.items(), ends, strict=True))


def _check(order: Sequence[str], tasks: Sequence[str]) -> None:
    where = "recipe: sampler.order"
    for task in order:
        if task not in tasks:
            raise UserError(unknown(where, task, tasks, "trained task or group"))
    if sorted(order) != sorted(tasks):
        raise UserError(f"{where}: must list every task once ({', '.join(tasks)}), found {', '.join(order)}")
