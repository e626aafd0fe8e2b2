"""A scale and shift of each task in every layer norm."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, NormSite, chosen_layers
from polytask.adapters.grouped import TaskVector, at_once, by_task, vector_at
from polytask.stream import Layout


class ConditionalNormLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, sites: tuple[NormSite, ...]) -> None:
        super().__init__()
        self.scales = nn.ModuleDict({site: TaskVector(context.tasks, context.hidden) for site in sites})
        self.shifts = nn.ModuleDict({site: TaskVector(context.tasks, context.hidden) for site in sites})

    def norm(self, site: NormSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        assert isinstance(base, nn.LayerNorm)
        scale, shift = vector_at(self.scales, site), vector_at(self.shifts, site)
        plain_TD = F.layer_norm(x_TD, base.normalized_shape, eps=base.eps)
        if at_once(x_TD, layout):
            change_TD = torch.addcmul(shift.over(layout), plain_TD, scale.over(layout))
        else:
            change_TD = by_task(plain_TD, layout, lambda k, rows: rows * scale.vectors[k] + shift.vectors[k])
        # Added to the norm's own output, so that zeros leave it as it is to the last bit.
        y_TD: Tensor = base(x_TD) + change_TD
        return y_TD

    def norm_vectors(
        self, site: NormSite, scale_D: Tensor, shift_D: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor] | None:
        if layout.alone is None:
            return None
        scale, shift = vector_at(self.scales, site), vector_at(self.shifts, site)
        sums = _Both.apply(scale_D, shift_D, scale.vectors[layout.alone], shift.vectors[layout.alone])  # type: ignore[no-untyped-call]
        return sums[0], sums[1]


class _Both(torch.autograd.Function):
    """`a + c, b + d`. One kernel each way on a GPU, where torch's own sums are six."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        one, two = torch._foreach_add([a, b], [c, d])
        return one, two

    @staticmethod
    def backward(ctx: Any, one: Tensor, two: Tensor) -> tuple[Tensor, ...]:
        return one, two, *torch._foreach_mul([one, two], 1.0)


class ConditionalNorm(Adapter):
    """Conditional layer norm: `(x - mean)/sqrt(var + eps) * (gamma + gamma_t) + (beta + beta_t)`, in every norm.

    gamma_t and beta_t belong to the task and start at zero. With all layers, the norm of the embeddings takes part too.
    Paper: Pilault et al., "Conditionally Adaptive Multi-Task Learning", 2021, whose gamma_t and beta_t come from a task
    embedding; here they are free, as in the student systems that use the name.
    """

    def __init__(self, context: AdapterContext, *, layers: int | None = None) -> None:
        everywhere = layers is None or layers >= context.layers
        super().__init__(
            ConditionalNormLayer(context, ("embedding",)) if everywhere else LayerAdapter(),
            (
                ConditionalNormLayer(context, ("attention", "ffn")) if here else LayerAdapter()
                for here in chosen_layers(context, layers)
            ),
            context.tasks,
        )
