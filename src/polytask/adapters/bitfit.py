"""Biases of each task."""

from torch import Tensor

from polytask.adapters.base import (
    Adapter,
    AdapterContext,
    LayerAdapter,
    Layers,
    Linear,
    LinearSite,
    NormSite,
    chosen_layers,
    on_layers,
)
from polytask.adapters.per_task import TaskVectors, norm_sizes
from polytask.stream import Layout


class BitFitLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, linears: tuple[LinearSite, ...], norms: tuple[NormSite, ...]) -> None:
        super().__init__()
        sizes: dict[str, int] = {site: context.up_size if site == "up" else context.hidden for site in linears}
        self.biases = TaskVectors(context.tasks, sizes)
        self.shifts = TaskVectors(context.tasks, norm_sizes(context, norms))

    def linear(self, site: LinearSite, base: Linear, x_TD: Tensor, layout: Layout) -> Tensor:
        y_TD = base(x_TD)
        return y_TD + self.biases[site](y_TD, layout) if site in self.biases else y_TD

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return gamma_D, beta_D + self.shifts.vector(site, k)


class BitFit(Adapter):
    """BitFit: `W x + (b + b_t)` in every linear map and `beta + beta_t` in every layer norm.

    b_t and beta_t belong to the task and start at zero; the encoder's own biases stay. With all layers, the norm of the
    embeddings is included. Keys have no b_t: it would add the same number to all scores of a query, which the softmax
    cancels. The pooler's bias is not changed either. Designed for frozen encoders (`train.parts: adapters`).
    Paper: Ben Zaken et al., "BitFit", 2022, which trains the encoder's own biases for one task.
    """

    def __init__(self, context: AdapterContext, *, layers: Layers = None) -> None:
        linears: tuple[LinearSite, ...] = ("query", "value", "attention_output", "up", "down")
        everywhere = all(chosen_layers(context, layers))
        super().__init__(
            BitFitLayer(context, (), ("embedding",)) if everywhere else LayerAdapter(),
            on_layers(context, layers, lambda: BitFitLayer(context, linears, ("attention", "ffn"))),
            context.tasks,
        )
