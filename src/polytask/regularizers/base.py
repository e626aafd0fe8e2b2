"""A penalty added to the loss of a step. Knows the model as a type; knows no optimizer and no other regularizer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.stream import Stream
from polytask.types import LabelKind, Stage, UserError


@dataclass(frozen=True)
class RegularizerContext:
    """What every regularizer is given beside its options."""

    model: MultiTaskModel
    """As it is before the first step."""
    weights: Mapping[str, float]
    """Factor of each task's loss, and so of what a regularizer asks of its outputs."""
    steps: int
    """Of the whole run."""
    stages: tuple[Stage, ...] = ()
    """Where tasks are learned one after another."""
    examples: Callable[[str, int], Iterable[Stream]] | None = None
    """Some of a task's training examples, so many or all there are, each in a stream of its own; always the same."""
    learned: tuple[str, ...] = ()
    """Tasks that were learned before this run, to which it adds others."""

    def check_stages(self, name: str) -> None:
        """For regularizers that are about what comes after a task."""
        if not self.stages and not self.learned:
            raise UserError(f"recipe: regularizers: {name}: it needs tasks one after another (sampler: in_order)")

    def finished(self, step: int) -> str | None:
        """The task whose stage ends with this step, if another follows."""
        return next((stage.task for stage in self.stages[:-1] if stage.last == step), None)


class Regularizer(ABC):
    """Adds to a step's loss, and may look at the model after the step."""

    needs_examples: ClassVar[bool] = False
    """Asks for examples of the tasks that were learned before the run, whose training files must then be there."""

    def __init__(self, context: RegularizerContext) -> None:
        self.context = context

    @abstractmethod
    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        """A number with a gradient, added to the tasks' losses. `done` is the step's own pass."""

    def start(self, model: MultiTaskModel) -> None:
        """Called once, before the first step of a run that adds tasks to others: see `context.learned`.

        A run that was stopped goes on from `state_dict`, and this is not called again.
        """

    def after_step(self, model: MultiTaskModel, step: int) -> None:
        """Called when the optimizer has moved the weights for the `step`th time, counted from 1."""

    def state_dict(self) -> dict[str, Tensor]:
        """What must be saved to go on exactly from here."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state_dict` gave."""

    def apart(
        self,
        model: MultiTaskModel,
        one: Mapping[str, Tensor],
        other: Mapping[str, Tensor],
        fixed_targets: bool = False,
    ) -> Tensor:
        """How far two passes' outputs lie apart: `divergence` summed over the tasks, each with its loss's factor."""
        parts = [
            self.context.weights[task] * divergence(one[task], other[task], model.head(task).labels.kind, fixed_targets)
            for task in one
        ]
        return torch.stack(parts).sum()


def divergence(one: Tensor, other: Tensor, kind: LabelKind, fixed_targets: bool = False) -> Tensor:
    """Mean over examples of the symmetric KL divergence of class probabilities, or of the squared error of scores.

    `fixed_targets` takes the gradient of KL(q || p) by p alone and that of KL(p || q) by q alone, as mt-dnn does. The
    value is the same. The two whole gradients are each about twice as large: exactly so in the limit of equal p and q.
    """
    # Differences of half-precision numbers would be mostly rounding; double stays double.
    wide = torch.promote_types(one.dtype, torch.float32)
    one, other = one.to(wide), other.to(wide)
    match kind:
        case "classes":
            log_p, log_q = one.log_softmax(-1), other.log_softmax(-1)
            # sum_c p_c grad log p_c = 0, so that only q_c grad log p_c and p_c grad log q_c are left of fixed targets.
            change = log_p.exp() - log_q.exp()
            return ((change.detach() if fixed_targets else change) * (log_p - log_q)).sum(-1).mean()
        case "yes_no":  # two classes with logits x and 0: the same formula, simplified
            change = one.sigmoid() - other.sigmoid()
            return ((change.detach() if fixed_targets else change) * (one - other)).mean()
        case "score":
            return (one - other).square().mean()
        case "text":  # no answers to compare, but a gradient, for those who ask for one
            return 0.0 * (one - other).sum()
