"""SMART: the outputs should change little when the word embeddings change a little in the worst direction."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import torch
from torch import Tensor

from polytask.losses.base import symmetric_distance
from polytask.modes import without_gradients
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.seeds import RandomState
from polytask.settings import Bounds, NonNegative, Positive
from polytask.stream import Layout
from polytask.types import LabelKind, UserError, unknown

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass

Mode = Literal["paper", "mtdnn"]
MTDNN_EPS = 1e-6
"""Added by mt-dnn to the norm it divides by."""


@dataclass(frozen=True)
class Ascent:
    """How the adversarial change d of embeddings is found: by steps along the gradient, from random noise."""

    mode: Mode = "paper"
    """paper, or mtdnn: the authors' code."""
    steps: int = 1
    epsilon: float = 1e-5
    """The largest change of a number, in mode paper."""
    sigma: float = 1e-5
    """The standard deviation of the noise."""
    eta: float = 1e-3
    """The length of a step."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise UserError(unknown("mode", self.mode, get_args(Mode), "mode"))

    def climb(self, distance: Callable[[Tensor], Tensor], d: Tensor, largest: Callable[[Tensor], Tensor]) -> Tensor:
        """Move d along the gradient of `distance(d)`. `largest` is the largest absolute entry of each sequence."""
        for _ in range(self.steps):
            d.requires_grad_()
            (g,) = torch.autograd.grad(distance(d), d)
            d = self._move(d.detach(), g, largest)
        return d

    def _move(self, d: Tensor, g: Tensor, largest: Callable[[Tensor], Tensor]) -> Tensor:
        match self.mode:
            case "paper":
                direction = g / largest(g).clamp(min=torch.finfo(g.dtype).tiny)
                return (d + self.eta * direction).clamp(-self.epsilon, self.epsilon)
            case "mtdnn":
                u = d + self.eta * g
                return u / (u.abs().amax(-1, keepdim=True) + MTDNN_EPS)


def penalty_of(
    forward: Callable[[Tensor], Tensor],
    embeddings_BLD: Tensor,
    kind: LabelKind = "classes",
    *,
    mask_BL: Tensor | None = None,
    ascent: Ascent = Ascent(),  # noqa: B008  (it is frozen)
    fixed_targets: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the outputs `forward(embeddings)` of any model and SMART's penalty `l_s(f(x), f(x + d))` of them.

    `forward` maps word embeddings [B, L, D] to outputs: [B, C] logits for kind classes, [B] logits for yes_no, [B]
    numbers for score. It is called `ascent.steps` + 2 times, always with the same dropout. Where `mask_BL` is 0, the
    embeddings are padding and are not changed. The formula is that of `Smart`, with a weight of 1.
    """
    random = RandomState(embeddings_BLD.device)
    outputs = forward(embeddings_BLD)
    x_BLD, clean = embeddings_BLD.detach(), outputs.detach()
    noise_BLD = ascent.sigma * torch.randn_like(x_BLD)
    if mask_BL is not None:
        noise_BLD = noise_BLD * mask_BL[..., None]

    def rerun(changed_BLD: Tensor) -> Tensor:
        with random.replay():
            return forward(changed_BLD)

    def distance(d_BLD: Tensor) -> Tensor:
        changed_BLD = x_BLD + (d_BLD if mask_BL is None else d_BLD * mask_BL[..., None])
        return len(clean) * symmetric_distance(rerun(changed_BLD), clean, kind)

    d_BLD = ascent.climb(distance, noise_BLD, lambda g_BLD: g_BLD.abs().amax((1, 2), keepdim=True))
    return outputs, symmetric_distance(outputs, rerun(embeddings_BLD + d_BLD), kind, fixed_targets)


class Smart(Regularizer):
    """SMART's smoothness penalty: `weight * l_s(f(x), f(x + d))`, d an adversarial change of the word embeddings x.

    l_s is the symmetric KL divergence for classes and yes_no and the squared error for scores; mean over a task's
    examples, times the task's weight. d starts as noise N(0, sigma^2) and takes `steps` steps along the gradient g of
    l_s(f(x + d), f(x)), in which f(x) is constant. Both passes have the same dropout; filler tokens do not change.

    mode paper: `d <- clip(d + eta g/|g|, -epsilon, epsilon)`. |g| is the largest absolute entry over the tokens of one
    sequence (the paper leaves this open), so d does not depend on the other sequences of the stream; if g is 0, d does
    not change. The effect of epsilon 1e-5 is far below the resolution of bf16, so the penalty is mostly rounding: under
    bf16 use 1e-4.
    mode mtdnn, the authors' code: `d <- u/(max|u| + 1e-6), u = d + eta g`, the maximum over each token's own vector. It
    is never projected, so each token changes by about 1, 10^5 times the paper's epsilon, which is not used. The code's
    inner step has a one-sided KL; here l_s is the same everywhere.

    The penalty's gradient flows through both sides of both KLs. mt-dnn treats one side of each KL as constant, with the
    same value: `fixed_targets: true`. Where f(x) and f(x + d) are close, our gradient with respect to the outputs for
    classes and yes_no is twice mt-dnn's at the same `weight`, and that with respect to the model's weights about twice:
    it has a further term that makes the predictions more confident. For scores there is no difference.

    Paper: Jiang et al., "SMART", 2019: steps 1, sigma and epsilon 1e-5, eta 1e-3, weight 1 to 5. Cost: 8/3 of a plain
    step.
    """

    capturable = True
    divisible = True

    def __init__(
        self,
        context: RegularizerContext,
        *,
        mode: Mode = "paper",
        weight: NonNegative = 1.0,
        steps: Annotated[int, Bounds(1, 100)] = 1,
        epsilon: Positive = 1e-5,
        sigma: Positive = 1e-5,  # without noise the first gradient would be that of the minimum, which is 0
        eta: Positive = 1e-3,
        fixed_targets: bool = False,
    ) -> None:
        super().__init__(context)
        self.weight = weight
        self.ascent = Ascent(mode, steps, epsilon, sigma, eta)
        self.fixed_targets = fixed_targets

    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        perturbed_TD = forward.words_TD + self.perturbation(model, forward)
        perturbed = model.rerun(forward, perturbed_TD).outputs
        return self.weight * self.output_distance(model, forward, perturbed, self.fixed_targets)

    def perturbation(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        """Compute d, with one forward and backward pass per step."""
        layout = forward.stream.layout
        x_TD = forward.words_TD.detach()
        clean = {task: outputs.detach() for task, outputs in forward.outputs.items()}
        real = max(last for _, last in layout.token_ranges)
        noise_TD = torch.zeros_like(x_TD)
        noise_TD[:real] = self.ascent.sigma * forward.stream.normal_like(x_TD[:real])

        def distance(d_TD: Tensor) -> Tensor:
            with without_gradients(model):  # of the weights, which this pass does not need
                perturbed = model.rerun(forward, x_TD + d_TD).outputs
            return _summed_distance(model, perturbed, clean)

        return self.ascent.climb(distance, noise_TD, partial(largest_of_sequence, layout=layout))


def largest_of_sequence(x_TD: Tensor, layout: Layout) -> Tensor:
    """[T, 1]: for each token the largest absolute entry over all tokens of its sequence."""
    cu_S1 = layout.cu_seqlens_S1.long()
    largest_S = torch.segment_reduce(x_TD.abs().amax(-1), "max", offsets=cu_S1, axis=0, unsafe=True)
    return largest_S.repeat_interleave(cu_S1.diff(), output_size=len(x_TD))[:, None]


def _summed_distance(model: "MultiTaskModel", one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """The distance summed over examples (of tags: over words), without the tasks' weights.

    The gradient of each of them then does not depend on how many others there are.
    """
    parts = [
        model.head(task).kind.num_items(outputs)
        * symmetric_distance(outputs, other[task], model.head(task).labels.kind_name)
        for task, outputs in one.items()
    ]
    return torch.stack(parts).sum()
