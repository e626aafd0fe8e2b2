"""Learning without forgetting: keeps the outputs of earlier tasks on the texts of the current task."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytask.losses.base import distillation_loss
from polytask.regularizers.base import Regularizer, RegularizerContext, frozen_copy
from polytask.regularizers.other_task import as_task, readable_layouts
from polytask.settings import NonNegative, Positive
from polytask.stream import Encoded, Layout

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass

FINISHED = "finished"


class Lwf(Regularizer):
    """Learning without forgetting: `weight sum_j w_j d(f_j(x; old encoder), f_j(x; encoder))`, j the earlier tasks.

    For tasks trained one after another (sampler in_order, or tasks added to a finished run); it needs no examples of
    the earlier ones. When a stage ends, the whole model is copied. From then on the head and adapter of every earlier
    task, taken from the copy, are applied to the step's texts x twice: on the copy's encoder and on the trained one. d
    is `T^2 KL(p_old || p)` of the probabilities at `temperature` T for classes and yes_no, the squared error for
    scores; mean over the texts, w_j the task's weight. The penalty is 0 before the first stage has ended. The copy has
    no dropout and no gradients.

    A head that reads one sequence (linear, cross) reads every sequence of the step, whether it is a text or a pair. A
    head that encodes the texts of a pair separately (bi, cosine) reads the pairs of such heads, and a joint head those
    of joint heads; if the step has none, the task is left out. Plain text has no labels and is left out.

    Paper: Li & Hoiem, "Learning without Forgetting", 2016 (T 2).
    Differences: the paper also trains the earlier heads, and has no T^2. Cost: 4/3 of a plain step; with an adapter,
    4/3 more for every earlier task. The copy is in every checkpoint.
    """

    capturable = True

    def __init__(self, context: RegularizerContext, *, weight: NonNegative = 1.0, temperature: Positive = 2.0) -> None:
        super().__init__(context)
        context.check_stages("lwf")
        self.weight = weight
        self.temperature = temperature
        self.finished = 0
        """The number of stages that have ended."""
        self.copy: MultiTaskModel | None = None

    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        total = torch.zeros((), device=model.device)
        if self.copy is None or not any(p.requires_grad for p in model.encoder.parameters()):
            return total
        # Without an adapter the encoder computes the same for every task, so one pass is enough for all of them.
        shared = None
        if next(model.adapter.parameters(), None) is None:
            shared = self.copy.encode(forward.stream), forward.states[-1]
        for task in self._earlier_tasks():
            layouts = list(readable_layouts(model, forward.stream.layout, task))
            if layouts:
                old, new = self._outputs(model, task, layouts, shared or self._states(model, forward, task))
                distance = distillation_loss(new, old, model.head(task).labels.kind_name, self.temperature, "kl")
                total = total + self.weight * self.context.weights[task] * distance
        return total

    def _earlier_tasks(self) -> list[str]:
        """The tasks that were trained before and have predictions."""
        tasks = [*self.context.learned, *(stage.task for stage in self.context.stages[: self.finished])]
        return [task for task in tasks if self.context.model.head(task).kind.has_predictions]

    def _states(self, model: "MultiTaskModel", forward: "Pass", task: str) -> tuple[Tensor, Tensor]:
        """Encode the stream as if all of it belonged to the task, with the copy's encoder and with the trained one."""
        assert self.copy is not None
        stream = replace(forward.stream, layout=as_task(forward.stream.layout, model.tasks.index(task)))
        return self.copy.encode(stream), model.encode(stream, adapter=self.copy.adapter)

    def _outputs(
        self, model: "MultiTaskModel", task: str, layouts: Sequence[Layout], states: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, ...]:
        """The outputs of the task's head in the copy, for the states of both encoders."""
        assert self.copy is not None
        head, k = self.copy.head(task), model.tasks.index(task)
        return tuple(
            torch.cat([head(Encoded(hidden_TD, layout, k, encoder.pool)) for layout in layouts])
            for hidden_TD, encoder in zip(states, (self.copy.encoder, model.encoder), strict=True)
        )

    def start(self, model: "MultiTaskModel") -> None:
        self._keep_copy(model)

    def _keep_copy(self, model: "MultiTaskModel") -> None:
        self.copy = frozen_copy(model)
        self.phase += 1

    def acts_after(self, step: int) -> bool:
        return self.context.finished_task(step) is not None

    def after_step(self, model: "MultiTaskModel", step: int) -> None:
        if self.context.finished_task(step) is not None:
            self.finished += 1
            self._keep_copy(model)

    def state_dict(self) -> dict[str, Tensor]:
        if self.copy is None:
            return {}
        return {FINISHED: torch.tensor(self.finished), **{f"copy/{n}": t for n, t in self.copy.state_dict().items()}}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.finished, self.copy = 0, None
        self.phase += 1
        if state:
            self.finished, self.copy = int(state[FINISHED]), frozen_copy(self.context.model)
            weights = {name.removeprefix("copy/"): tensor for name, tensor in state.items() if name != FINISHED}
            self.copy.load_state_dict(weights)
