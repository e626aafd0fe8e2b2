"""Task after task over the whole run: what continual learning is measured on."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

from polytask.samplers.base import SamplerContext, StepSampler, divided
from polytask.types import Draw, Stage, UserError, unknown

Shares = Literal["sizes", "equal"]


class InOrder(StepSampler):
    """A sequence of tasks: all steps of the first one, then all of the second, never coming back.

        steps_i ~ N_i (`shares: sizes`) or the same (`shares: equal`), at least 1; their sum is that of the whole run

    `order` names the tasks in turn; left out, it is the recipe's. With `sizes` a run of n epochs goes through each
    task's examples n times, up to the rounding to whole steps. Every task is scored before the first step and at the
    end of each stage, and the summary and the report say what was forgotten. Beside it: `train.select: last`, because
    the best mean over tasks is not what a sequence asks for, and `train.schedule: constant`, because any other gives
    the last task the smallest learning rate.

    Paper: Lopez-Paz and Ranzato, "Gradient Episodic Memory", 2017, whose setting it is (there, one pass).
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
                f"recipe: sampler: in_order: a stage for each of {len(tasks)} tasks needs as many steps, and the run "
                f"has {steps} (train.epochs, train.steps_per_epoch)"
            )
        sizes = {task: context.sizes[task] if shares == "sizes" else 1 for task in tasks}
        self.stages = _stages(divided(steps, sizes))

    def draws(self, step: int) -> tuple[Draw, ...]:
        stage = next((stage for stage in self.stages if step < stage.last), self.stages[-1])
        return (Draw(stage.task, self.context.batch_size),)


def _stages(steps: Mapping[str, int]) -> tuple[Stage, ...]:
    ends = accumulate(steps.values())
    return tuple(Stage(task, end - count + 1, end) for (task, count), end in zip(steps.items(), ends, strict=True))


def _check(order: Sequence[str], tasks: Sequence[str]) -> None:
    where = "recipe: sampler.order"
    for task in order:
        if task not in tasks:
            raise UserError(unknown(where, task, tasks, "task"))
    if sorted(order) != sorted(tasks):
        raise UserError(f"{where}: every task once is needed ({', '.join(tasks)}), found {', '.join(order)}")
