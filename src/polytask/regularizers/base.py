"""The interface of regularizers: a penalty added to the loss of a step.

A regularizer knows the model as a type; it knows no optimizer and no other regularizer.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from polytask.losses.base import symmetric_distance, weighted_sum
from polytask.stream import Stream
from polytask.types import Stage, UserError

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class RegularizerContext:
    """What every regularizer is given in addition to its options."""

    model: "MultiTaskModel"
    """The model before the first step."""
    weights: Mapping[str, float]
    """The weight of each trained task's loss, with its scale. It also weights the terms that compare the task's
    outputs."""
    steps: int
    """The number of steps of the whole run."""
    stages: tuple[Stage, ...] = ()
    """The stages of a run that trains its tasks one after another."""
    examples: Callable[[str, int], Iterable[Stream]] | None = None
    """Returns up to this many training examples of a task, each in a stream of its own; always the same ones."""
    learned: tuple[str, ...] = ()
    """Tasks that were trained before this run, which adds others to them."""

    def check_stages(self, name: str) -> None:
        """Raise a UserError if no task is trained after another one."""
        if not self.stages and not self.learned:
            raise UserError(
                f"recipe: regularizers: {name}: requires tasks that are trained one after another (sampler: in_order)"
            )

    def finished_task(self, step: int) -> str | None:
        """Return the task whose stage ends with this step, if another stage follows."""
        return next((stage.task for stage in self.stages[:-1] if stage.last == step), None)


class Pull(NamedTuple):
    """A quadratic penalty of one weight: `strength/2 sum_i f_i (w_i - c_i)^2` over its elements."""

    weight: nn.Parameter
    strength: float
    centre: Tensor | None = None
    """c, or None for zero."""
    factor: Tensor | None = None
    """f, or None for one."""


class Followers(NamedTuple):
    """Tensors that follow weights: `f <- f + rate (w - f)` after each step."""

    tensors: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    rate: Callable[[int], float]
    """By step, counted from 1."""

    @torch.no_grad()
    def move(self, step: int) -> None:
        torch._foreach_lerp_(self.tensors, self.weights, self.rate(step))


class Regularizer(ABC):
    """Adds a penalty to a step's loss, and may read the model after the step."""

    capturable: ClassVar[bool] = False
    """Whether `penalty` can be captured in a CUDA graph. It must run the same tensor operations in every step: it reads
    no number from a tensor, no lengths from the layout, and uses no Python number that changes from step to step. Each
    class declares this for itself; a subclass does not inherit it, because it may override `penalty`."""
    not_capturable: str | None = None
    """Why `penalty` with these options cannot be captured although the class is capturable."""
    phase: int = 0
    """Changes when `penalty` starts to run other operations or to read other tensors, so that captured steps of the
    phase before are not replayed."""
    of_weights: ClassVar[bool] = False
    """Whether the penalty is a function of the weights themselves, which must then be the float32 ones."""
    followers: Followers | None = None
    """What `after_step` moves, if it does nothing else: captured steps then do it on the device, and `after_step` is
    not called."""
    divisible: ClassVar[bool] = False
    """Whether several processes can divide a step: the penalties of the parts of a step's stream must then sum to that
    of the whole stream. A mean is multiplied by the part's share of the step (`Stream.share`), as `output_distance`
    does; a penalty of weights (`of_weights`) is computed by one process. Each class declares this for itself."""
    not_divisible: str | None = None
    """Why several processes cannot divide a step with these options although the class is divisible."""
    needs_labels: bool = False
    """Whether `penalty` with these options needs the label of every example: tasks with rows without labels are then
    refused."""
    needs_examples: ClassVar[bool] = False
    """Whether it needs examples of the tasks in `context.learned`, whose training files must then exist."""

    def __init__(self, context: RegularizerContext) -> None:
        self.context = context

    @abstractmethod
    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        """Return a differentiable scalar that is added to the tasks' losses. `forward` is the step's forward pass."""

    def pulls(self, model: "MultiTaskModel", forward: "Pass") -> list[Pull]:
        """Return pulls whose sum is the penalty, if it is such a sum, else none.

        A captured step then adds their gradient in one pass over the weights instead of differentiating `penalty`. A
        subclass does not inherit this, because it may override `penalty`.
        """
        return []

    def start(self, model: "MultiTaskModel") -> None:
        """Called once, before the first step of a run that adds tasks to those in `context.learned`.

        A resumed run calls `load_state_dict` instead.
        """

    def after_step(self, model: "MultiTaskModel", step: int) -> None:
        """Called after the optimizer's update of each step; `step` is counted from 1."""

    def acts_after(self, step: int) -> bool:
        """Whether `after_step` does something after this step, so that the next step cannot be launched before."""
        return type(self).after_step is not Regularizer.after_step

    def state_dict(self) -> dict[str, Tensor]:
        """Return what must be saved to resume exactly from here."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""

    @property
    def compared_tasks(self) -> Collection[str]:
        """The tasks whose examples in a step the penalty compares with each other: processes do not divide them."""
        return ()

    def output_distance(
        self,
        model: "MultiTaskModel",
        forward: "Pass",
        other: Mapping[str, Tensor],
        fixed_targets: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> Tensor:
        """`symmetric_distance` of the outputs of a step's pass and of another one, summed over the tasks with these
        weights, by default those of their losses."""
        distances = {
            task: symmetric_distance(outputs, other[task], model.head(task).labels.kind_name, fixed_targets)
            for task, outputs in forward.outputs.items()
        }
        return weighted_sum(forward.of_whole_step(distances), self.context.weights if weights is None else weights)


def frozen_copy(model: Module) -> Module:
    """Return a copy of the model in eval mode whose parameters have no gradients."""
    return copy.deepcopy(model).eval().requires_grad_(False)
