"""What earlier tasks need of the encoder stays where they left it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.types import Count, NonNegative, Share, UserError

WHERE = "recipe: regularizers: ewc"


class Ewc(Regularizer):
    """Elastic weight consolidation: `weight/2 sum_i F_i (theta_i - theta*_i)^2` over the encoder's weights that learn.

    For tasks one after another (sampler in_order, or added to a finished run). When a task's stage ends, theta* becomes
    the weights of now, and `F <- decay F + mean_x g(x)^2`: the diagonal of the task's Fisher information, by `samples`
    of its training examples, one by one; g is the gradient of the example's loss with its given label (the head's own
    loss, whatever `loss` the task names, times the task's weight), without dropout. 0 before the first stage has ended.
    With decay 1 every earlier task counts the same; below 1, older ones less. Heads and adapters are tasks' own, and
    nothing moves those of earlier tasks. The right weight follows the gradients' size: try factors of ten. F and theta*
    are two encoders' worth of memory, and in every checkpoint.

    Papers: Kirkpatrick et al., "Overcoming Catastrophic Forgetting in Neural Networks", 2017, which keeps a theta* for
    each task; one theta* and the sum of the F: Schwarz et al., "Progress & Compress", 2018. Costs the reading of three
    encoders' weights a step, and a small pass and gradient for each of the samples at the end of a stage.
    """

    needs_examples = True

    def __init__(
        self, context: RegularizerContext, *, weight: NonNegative = 100_000.0, samples: Count = 200, decay: Share = 1.0
    ) -> None:
        super().__init__(context)
        context.check_stages("ewc")
        if samples < 1:
            raise UserError(f"{WHERE}: samples: at least 1 is needed, found {samples}")
        if not 0 <= decay <= 1:
            raise UserError(f"{WHERE}: decay: a number from 0 to 1 is needed, found {decay:g}")
        self.weight = weight
        self.samples = samples
        self.decay = decay
        self.encoder = {name: p for name, p in context.model.encoder.named_parameters() if p.requires_grad}
        self.fisher: dict[str, Tensor] = {}
        self.centre: dict[str, Tensor] = {}
        """theta*; both are empty before the first stage has ended."""

    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        parts = [(f * (self.encoder[n] - self.centre[n]).square()).sum() for n, f in self.fisher.items()]
        return self.weight / 2 * torch.stack(parts).sum() if parts else torch.zeros((), device=model.device)

    def start(self, model: MultiTaskModel) -> None:
        self._consolidate(model, self.context.learned)

    def after_step(self, model: MultiTaskModel, step: int) -> None:
        task = self.context.finished(step)
        if task is not None:
            self._consolidate(model, [task])

    def _consolidate(self, model: MultiTaskModel, tasks: Sequence[str]) -> None:
        """These tasks are learned: from here on they are held."""
        self.fisher = {name: self.decay * f for name, f in self.fisher.items()}
        for task in tasks:
            for name, found in self.information(model, task).items():
                self.fisher[name] = self.fisher[name] + found if name in self.fisher else found
        self.centre = {name: p.detach().clone() for name, p in self.encoder.items()}

    def information(self, model: MultiTaskModel, task: str) -> dict[str, Tensor]:
        """The diagonal of the task's Fisher information, by the encoder's weights."""
        assert self.context.examples is not None
        if not self.encoder:
            return {}
        weights = list(self.encoder.values())
        sums, count = [torch.zeros_like(p) for p in weights], 0
        was_training = model.training
        model.eval()
        for stream in self.context.examples(task, self.samples):
            outputs, labels = model(stream.to(model.device))[task], stream.labels[task].to(model.device)
            loss = self.context.weights[task] * model.head(task).loss(outputs, labels)
            for total, gradient in zip(sums, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
                if gradient is not None:  # the pooler has none where no head asks for it
                    total.addcmul_(gradient, gradient)
            count += 1
        model.train(was_training)
        return {name: total / count for name, total in zip(self.encoder, sums, strict=True)}

    def state_dict(self) -> dict[str, Tensor]:
        parts = {"fisher": self.fisher, "centre": self.centre}
        return {f"{part}/{name}": tensor for part, found in parts.items() for name, tensor in found.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        def part(of: str) -> dict[str, Tensor]:
            # In the order of the weights, whatever that of the file: the penalty's sum is to be the same to the bit.
            there = {name: p for name, p in self.encoder.items() if f"{of}/{name}" in state}
            return {name: state[f"{of}/{name}"].to(p.device, copy=True) for name, p in there.items()}

        self.fisher, self.centre = part("fisher"), part("centre")
