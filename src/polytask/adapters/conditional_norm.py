"""A scale and shift of each task in every layer norm."""

from torch import Tensor

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, Layers, NormSite, chosen_layers, on_layers
from polytask.adapters.per_task import TaskVectors, norm_sizes


class ConditionalNormLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, sites: tuple[NormSite, ...]) -> None:
        super().__init__()
        self.scales = TaskVectors(context.tasks, norm_sizes(context, sites))
        self.shifts = TaskVectors(context.tasks, norm_sizes(context, sites))

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return gamma_D + self.scales.vector(site, k), beta_D + self.shifts.vector(site, k)


class ConditionalNorm(Adapter):
    """Conditional layer norm: `(x - mean)/sqrt(var + eps) * (gamma + gamma_t) + (beta + beta_t)`, in every norm.

    gamma_t and beta_t belong to the task and start at zero. With all layers, the norm of the embeddings is included.
    Paper: Pilault et al., "Conditionally Adaptive Multi-Task Learning", 2021. There gamma_t and beta_t come from a task
    embedding; here they are free parameters, as in student systems that use this name.
    """

    def __init__(self, context: AdapterContext, *, layers: Layers = None) -> None:
        everywhere = all(chosen_layers(context, layers))
        super().__init__(
            ConditionalNormLayer(context, ("embedding",)) if everywhere else LayerAdapter(),
            on_layers(context, layers, lambda: ConditionalNormLayer(context, ("attention", "ffn"))),
            context.tasks,
        )
