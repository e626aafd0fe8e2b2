"""Elastic weight consolidation: keeps the weights that matter for earlier tasks where they were."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polytask.fused_forms import fusible
from polytask.modes import eval_mode
from polytask.regularizers.base import Pull, Regularizer, RegularizerContext
from polytask.settings import Count, NonNegative, Share
from polytask.types import UserError

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass


class Ewc(Regularizer):
    """Elastic weight consolidation: `weight/2 sum_i F_i (theta_i - theta*_i)^2` over the encoder's trainable weights.

    For tasks trained one after another (sampler in_order, or tasks added to a finished run). When a task's stage ends,
    `theta* <- theta` and `F <- decay F + mean_x g(x)^2`, the diagonal of the task's Fisher information, estimated from
    `samples` training examples x, one by one. g is the gradient of the example's loss for its given label (the head's
    own loss, whatever `loss` the task names, times the task's weight), without dropout. The penalty is 0 before the
    first stage has ended. With decay 1 all earlier tasks count equally; with less, older ones count less. Heads and
    adapters belong to single tasks and do not change after their stage. The right weight depends on the magnitude of
    the gradients: try factors of ten. F and theta* take the memory of two encoders, also in every checkpoint.

    Paper: Kirkpatrick et al., "Overcoming Catastrophic Forgetting in Neural Networks", 2017.
    Difference: one theta* and the sum of the F, as in Schwarz et al., "Progress & Compress", 2018; the first paper
    keeps a theta* for each task. Cost: reading three encoders' weights per step, and at the end of a stage a small
    forward and backward pass for each sample.
    """

    capturable = True
    of_weights = True
    divisible = True
    needs_examples = True

    def __init__(
        self, context: RegularizerContext, *, weight: NonNegative = 100_000.0, samples: Count = 200, decay: Share = 1.0
    ) -> None:
        super().__init__(context)
        context.check_stages("ewc")
        for task in (*context.learned, *(stage.task for stage in context.stages[:-1])):
            if context.model.head(task).labels.kind == "match":
                raise UserError(
                    f"recipe: regularizers: ewc: cannot measure what task {task} of kind match depends on: the loss of "
                    "one pair without others is 0; choose lwf or l2_sp"
                )
        self.weight = weight
        self.samples = samples
        self.decay = decay
        self.encoder = {name: p for name, p in context.model.encoder.named_parameters() if p.requires_grad}
        self.fisher: dict[str, Tensor] = {}
        self.centre: dict[str, Tensor] = {}
        """theta*. Both are empty before the first stage has ended."""

    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        if not self.fisher:
            return torch.zeros((), device=model.device)
        weights, centres = [self.encoder[n] for n in self.fisher], [self.centre[n] for n in self.fisher]
        return self.weight / 2 * weighted_distance(weights, centres, list(self.fisher.values()))

    def pulls(self, model: "MultiTaskModel", forward: "Pass") -> list[Pull]:
        return [Pull(self.encoder[n], self.weight, self.centre[n], f) for n, f in self.fisher.items()]

    def start(self, model: "MultiTaskModel") -> None:
        self._consolidate(model, self.context.learned)

    def acts_after(self, step: int) -> bool:
        return self.context.finished_task(step) is not None

    def after_step(self, model: "MultiTaskModel", step: int) -> None:
        task = self.context.finished_task(step)
        if task is not None:
            self._consolidate(model, [task])

    def _consolidate(self, model: "MultiTaskModel", tasks: Sequence[str]) -> None:
        """Update F and theta* after these tasks have been trained."""
        self.fisher = {name: self.decay * f for name, f in self.fisher.items()}
        for task in tasks:
            for name, f in self.fisher_information(model, task).items():
                self.fisher[name] = self.fisher[name] + f if name in self.fisher else f
        self.centre = {name: p.detach().clone() for name, p in self.encoder.items()}
        self.phase += 1

    def fisher_information(self, model: "MultiTaskModel", task: str) -> dict[str, Tensor]:
        """The diagonal of the task's Fisher information for each of the encoder's weights."""
        assert self.context.examples is not None
        if not self.encoder:
            return {}
        weights = list(self.encoder.values())
        squares, count = [torch.zeros_like(p) for p in weights], 0
        with eval_mode(model):
            for stream in self.context.examples(task, self.samples):
                outputs, labels = model(stream.to(model.device))[task], stream.labels[task].to(model.device)
                loss = self.context.weights[task] * model.head(task).loss(outputs, labels)
                for square, g in zip(squares, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
                    if g is not None:  # the pooler has no gradient if no head uses it
                        square.addcmul_(g, g)
                count += 1
        return {name: square / count for name, square in zip(self.encoder, squares, strict=True)}

    def state_dict(self) -> dict[str, Tensor]:
        parts = {"fisher": self.fisher, "centre": self.centre}
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        # In the order of the encoder's weights, not of the file, so that the penalty's sum is bit-identical.
        self.fisher, self.centre = (
            {n: state[f"{part}/{n}"].to(p.device, copy=True) for n, p in self.encoder.items() if f"{part}/{n}" in state}
            for part in ("fisher", "centre")
        )
        self.phase += 1


@fusible
def weighted_distance(weights: Sequence[Tensor], centres: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    """`sum_i f_i (w_i - c_i)^2` over all elements of all tensors."""
    terms = zip(weights, centres, factors, strict=True)
    return torch.stack([(f * (w - c).square()).sum() for w, c, f in terms]).sum()
