"""An encoder of each task's own, started from the shared one."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import (
    Adapter,
    AdapterContext,
    Encoder,
    LayerAdapter,
    LinearSite,
    NormSite,
    TaskSpecific,
    chosen_layers,
)
from polytask.adapters.grouped import TaskLinear, TaskVector, at_once, by_task, vector_at
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
            "up": (hidden, ffn),
            "down": (ffn, hidden),
        }
        self.maps = nn.ModuleDict({site: TaskLinear(tasks, *size, nn.init.zeros_) for site, size in sizes.items()})
        self.scales = nn.ModuleDict({site: TaskVector(tasks, hidden) for site in NORMS})
        self.shifts = nn.ModuleDict({site: TaskVector(tasks, hidden) for site in NORMS})

    @torch.no_grad()
    def start_from(self, encoder: Encoder, index: int) -> None:
        for site, own in self.maps.items():
            base = encoder.linear(index, site)
            self._copy(own, base.weight, base.bias)
        for site in NORMS:
            norm = encoder.layer_norm(index, site)
            self._copy(self.scales[site], norm.weight)
            self._copy(self.shifts[site], norm.bias)

    def _copy(self, part: nn.Module, *values: Tensor) -> None:
        assert isinstance(part, TaskSpecific)
        for k in range(self.num_tasks):
            for own, value in zip(part.own(k), values, strict=True):
                own.copy_(value)

    def linear(self, site: LinearSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        y_TD: Tensor = self.maps[site](x_TD, layout)
        return y_TD

    def norm(self, site: NormSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        assert isinstance(base, nn.LayerNorm)
        scale, shift = vector_at(self.scales, site), vector_at(self.shifts, site)
        size, eps = base.normalized_shape, base.eps
        if at_once(x_TD, layout):
            return F.layer_norm(x_TD, size, eps=eps) * scale.over(layout) + shift.over(layout)
        return by_task(x_TD, layout, lambda k, rows: F.layer_norm(rows, size, scale.vectors[k], shift.vectors[k], eps))

    def norm_vectors(
        self, site: NormSite, scale_D: Tensor, shift_D: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor] | None:
        if layout.alone is None:
            return None
        scale, shift = vector_at(self.scales, site), vector_at(self.shifts, site)
        return scale.vectors[layout.alone], shift.vectors[layout.alone]


class OwnEncoder(Adapter):
    """An encoder for each task: its own copy of every linear map and layer norm of the layers, `W_t = W` at the start.

    Embeddings and pooler stay shared. The encoder's own layers then take no part and get no gradient. With `layers: n`
    the last n layers are the tasks' own and those below are shared. Outputs start as plain BERT's to rounding: each
    task's rows are a product by themselves. Takes the memory of an encoder for each task; `train.layer_decay` does not
    reach the copies, which learn at the optimizer's rate. In a stack it comes first.
    For soft sharing (Duong et al. 2015) with the regularizer soft_sharing; without one, one model for each task.
    """

    plain_at_start = False

    def __init__(self, context: AdapterContext, *, layers: int | None = None) -> None:
        super().__init__(
            LayerAdapter(),
            (OwnLayer(context) if here else LayerAdapter() for here in chosen_layers(context, layers)),
            context.tasks,
        )
