"""An encoder for each task, started from the shared one."""

import torch
from torch import Tensor, nn

from polytask.adapters.base import (
    Adapter,
    AdapterContext,
    Encoder,
    LayerAdapter,
    Layers,
    Linear,
    LinearSite,
    NormSite,
    TaskSpecific,
    norm_shift,
    on_layers,
)
from polytask.adapters.per_task import TaskLinear, TaskVectors
from polytask.stream import Layout

NORMS: tuple[NormSite, ...] = ("attention", "ffn")


class OwnLayer(LayerAdapter):
    replaces = True

    def __init__(self, context: AdapterContext) -> None:
        super().__init__()
        self.num_tasks = len(context.tasks)
        tasks, hidden, ffn = context.tasks, context.hidden, context.ffn
        sizes: dict[LinearSite, tuple[int, int]] = {
            "query": (hidden, hidden),
            "key": (hidden, hidden),
            "value": (hidden, hidden),
            "attention_output": (hidden, hidden),
            "up": (hidden, context.up_size),
            "down": (ffn, hidden),
        }
        self.maps = nn.ModuleDict({site: TaskLinear(tasks, *size, nn.init.zeros_) for site, size in sizes.items()})
        self.scales = TaskVectors(tasks, dict.fromkeys(NORMS, hidden))
        self.shifts = TaskVectors(tasks, dict.fromkeys(NORMS, hidden))

    @torch.no_grad()
    def start_from(self, encoder: Encoder, index: int) -> None:
        for site, own in self.maps.items():
            base = encoder.linear(index, site)
            # A map without a bias gets one that starts at zero.
            bias = torch.zeros(len(base.weight)) if base.bias is None else base.bias
            self._copy(own, base.weight, bias)
        for site in NORMS:
            norm = encoder.layer_norm(index, site)
            self._copy(self.scales[site], norm.weight)
            self._copy(self.shifts[site], norm_shift(norm))

    def _copy(self, part: nn.Module, *values: Tensor) -> None:
        assert isinstance(part, TaskSpecific)
        for k in range(self.num_tasks):
            for own, value in zip(part.own(k), values, strict=True):
                own.copy_(value)

    def linear(self, site: LinearSite, base: Linear, x_TD: Tensor, layout: Layout) -> Tensor:
        y_TD: Tensor = self.maps[site](x_TD, layout)
        return y_TD

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return self.scales.vector(site, k), self.shifts.vector(site, k)


class OwnEncoder(Adapter):
    """An encoder for each task: its own copy of every linear map and layer norm of the layers, `W_t = W` at the start.

    Embeddings and pooler stay shared. The encoder's own layers are not used and get no gradient. With `layers: n` the
    last n layers are per task, with `layers: [0, 2]` those two (counted from 0), and the others are shared. Outputs
    equal plain BERT's at the start up to rounding, because each task's rows are a product of their own. Needs the
    memory of one encoder per task; `train.layer_decay` does not apply to the copies, which use the optimizer's
    learning rate. In a stack it must come first.
    Use it with the regularizer soft_sharing for soft sharing (Duong et al. 2015); without it, it is one model per task.
    """

    plain_at_start = False

    def __init__(self, context: AdapterContext, *, layers: Layers = None) -> None:
        super().__init__(LayerAdapter(), on_layers(context, layers, lambda: OwnLayer(context)), context.tasks)
