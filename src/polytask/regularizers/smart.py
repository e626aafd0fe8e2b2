"""Smoothness: the answers change little when the word vectors are moved a little in the worst direction."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer, RegularizerContext, divergence
from polytask.stream import Layout
from polytask.types import Bounds, NonNegative, UserError

Mode = Literal["paper", "mtdnn"]
GUARD = 1e-6
"""What mt-dnn adds to the norm it divides by."""


class Smart(Regularizer):
    """SMART's smoothness penalty: `weight * l_s(f(x), f(x + d))`, d an adversarial change of the word vectors x.

    l_s is the symmetric KL divergence for classes and yes_no and the squared error for scores; mean over a task's
    examples, times the task's weight. d starts as noise N(0, sigma^2) and takes `steps` steps along the gradient g of
    l_s(f(x + d), f(x)), in which f(x) is fixed. Both passes have the same dropout; filler tokens are never moved.

    mode paper: `d <- clip(d + eta g/|g|, -epsilon, epsilon)`. |g| is the largest entry over the tokens of one sequence
    (the paper does not say over what), so that d does not depend on what else is in the stream; where g is 0, d stays.
    What epsilon 1e-5 changes is far below bf16's resolution, and the penalty mostly rounding: under bf16 use 1e-4.
    mode mtdnn, the authors' code: `d <- u/(max|u| + 1e-6), u = d + eta g`, the maximum over each token's own vector. It
    is never projected, so each token moves by about 1, 10^5 times the paper's epsilon, which is not used. There the
    inner step has a one-sided KL; here l_s is the same throughout.

    The gradient of the penalty is the whole one, on both sides of both KLs. mt-dnn holds one side of each KL fixed,
    with the same value: `fixed_targets: true`. Where f(x) and f(x + d) are close, our gradient by the answers for
    classes and yes_no is twice mt-dnn's at the same `weight`, and that by the model's weights about twice: it has a
    further part that makes the answers surer. For scores there is no difference.

    Paper: Jiang et al., "SMART", 2019: steps 1, sigma and epsilon 1e-5, eta 1e-3, weight 1 to 5. Costs 8/3 of a plain
    step.
    """

    def __init__(
        self,
        context: RegularizerContext,
        *,
        mode: Mode = "paper",
        weight: NonNegative = 1.0,
        steps: Annotated[int, Bounds(1, 100)] = 1,
        epsilon: float = 1e-5,
        sigma: float = 1e-5,
        eta: float = 1e-3,
        fixed_targets: bool = False,
    ) -> None:
        super().__init__(context)
        if steps < 1:
            raise UserError(f"recipe: regularizers: smart: steps: a number from 1 is needed, found {steps}")
        # Without noise the first gradient is that of a smallest value, 0, and nothing would ever be moved.
        for name, value in {"epsilon": epsilon, "sigma": sigma, "eta": eta}.items():
            if value <= 0:
                raise UserError(f"recipe: regularizers: smart: {name}: a number above 0 is needed, found {value:g}")
        self.mode = mode
        self.weight = weight
        self.steps = steps
        self.epsilon = epsilon
        self.sigma = sigma
        self.eta = eta
        self.fixed_targets = fixed_targets

    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        moved_TD = done.words_TD + self.perturbation(model, done)
        moved = model.again(done, moved_TD).outputs
        return self.weight * self.apart(model, done.outputs, moved, self.fixed_targets)

    def perturbation(self, model: MultiTaskModel, done: Pass) -> Tensor:
        """d: what is added to the word vectors, found by a pass and a gradient of these vectors alone for each step."""
        layout = done.stream.layout
        x_TD = done.words_TD.detach()
        clean = {task: outputs.detach() for task, outputs in done.outputs.items()}
        real = max(last for _, last in layout.token_ranges)
        d_TD = torch.zeros_like(x_TD)
        d_TD[:real] = self.sigma * torch.randn_like(x_TD[:real])
        for _ in range(self.steps):
            d_TD.requires_grad_()
            moved = model.again(done, x_TD + d_TD).outputs
            (g_TD,) = torch.autograd.grad(_sum_apart(model, moved, clean), d_TD)
            d_TD = self._step(d_TD.detach(), g_TD, layout)
        return d_TD

    def _step(self, d_TD: Tensor, g_TD: Tensor, layout: Layout) -> Tensor:
        match self.mode:
            case "paper":
                along_TD = g_TD / largest_of_sequence(g_TD, layout).clamp(min=torch.finfo(g_TD.dtype).tiny)
                return (d_TD + self.eta * along_TD).clamp(-self.epsilon, self.epsilon)
            case "mtdnn":
                u_TD = d_TD + self.eta * g_TD
                return u_TD / (u_TD.abs().amax(-1, keepdim=True) + GUARD)


def largest_of_sequence(x_TD: Tensor, layout: Layout) -> Tensor:
    """[T, 1]: for each token the largest absolute entry of all tokens of its sequence."""
    cu_S1 = layout.cu_seqlens_S1.long()
    largest_S = torch.segment_reduce(x_TD.abs().amax(-1), "max", offsets=cu_S1, axis=0, unsafe=True)
    return largest_S.repeat_interleave(cu_S1.diff(), output_size=len(x_TD))[:, None]


def _sum_apart(model: MultiTaskModel, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """Summed over examples and without the tasks' weights: each example's gradient is its own."""
    parts = [len(one[t]) * divergence(one[t], other[t], model.head(t).labels.kind) for t in one]
    return torch.stack(parts).sum()
