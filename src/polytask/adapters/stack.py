"""Several adapters at once."""

import torch
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, LinearSite, NormSite, SublayerSite, Trunk
from polytask.stream import Layout
from polytask.types import Swap, UserError


class _Linear(nn.Module):
    """Stands for a linear map whose output is there already."""

    def __init__(self, y_TD: Tensor) -> None:
        super().__init__()
        self.y_TD = y_TD

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.y_TD


class _Norm(nn.LayerNorm):
    """Stands for a layer norm whose output is there already."""

    def __init__(self, base: nn.LayerNorm, y_TD: Tensor) -> None:
        super().__init__(base.normalized_shape, base.eps, elementwise_affine=False)
        self.y_TD = y_TD

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.y_TD


class StackLayer(LayerAdapter):
    """At each slot one adapter after another, each given what the one before it made."""

    def __init__(self, parts: list[LayerAdapter]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def _parts(self) -> list[LayerAdapter]:
        return [part for part in self.parts if isinstance(part, LayerAdapter)]

    def start_from(self, trunk: Trunk, index: int) -> None:
        for part in self._parts():
            part.start_from(trunk, index)

    def linear(self, site: LinearSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        first, *rest = self._parts()
        y_TD = first.linear(site, base, x_TD, layout)
        for part in rest:
            y_TD = part.linear(site, _Linear(y_TD), x_TD, layout)
        return y_TD

    def norm(self, site: NormSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        assert isinstance(base, nn.LayerNorm)
        first, *rest = self._parts()
        y_TD = first.norm(site, base, x_TD, layout)
        for part in rest:
            y_TD = part.norm(site, _Norm(base, y_TD), x_TD, layout)
        return y_TD

    def sublayer(self, site: SublayerSite, y_TD: Tensor, layout: Layout) -> Tensor:
        for part in self._parts():
            y_TD = part.sublayer(site, y_TD, layout)
        return y_TD

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        branches = [part.parallel(x_TD, layout) for part in self._parts()]
        there = [branch for branch in branches if branch is not None]
        if len(there) < 2:
            return there[0] if there else None
        return torch.stack(there).sum(0)

    def plain_linear(self, site: LinearSite) -> bool:
        return all(part.plain_linear(site) for part in self._parts())

    def plain_sublayer(self, site: SublayerSite) -> bool:
        return all(part.plain_sublayer(site) for part in self._parts())

    def norm_vectors(
        self, site: NormSite, scale_D: Tensor, shift_D: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor] | None:
        vectors: tuple[Tensor, Tensor] | None = scale_D, shift_D
        for part in self._parts():
            vectors = vectors and part.norm_vectors(site, *vectors, layout)
        return vectors


class Stack(Adapter):
    """Several adapters at once: at every slot one after another, in the order given; their parallel branches add up.

    `adapter: {name: stack, adapters: [pal, {name: conditional_norm}]}`. No paper: a way to try combinations.
    """

    def __init__(
        self,
        context: AdapterContext,
        *,
        adapters: tuple[Swap, ...] = (Swap("pal"), Swap("conditional_norm")),
    ) -> None:
        if len(adapters) < 2 or context.make is None:
            raise UserError("recipe: adapter: a stack needs two or more adapters, as `adapters: [pal, lhuc]`")
        made = [context.make(swap) for swap in adapters]
        for swap, one in list(zip(adapters, made, strict=True))[1:]:
            if one.stand_ins():
                raise UserError(
                    f"recipe: adapter: {swap.name} must come first in a stack: it stands in for the layers' own maps, "
                    "so what an adapter before it does there would be lost"
                )
        super().__init__(
            StackLayer([one.embedding for one in made]),
            (StackLayer([one.layer(index) for one in made]) for index in range(context.layers)),
            context.tasks,
        )
        self.plain_at_start = all(one.plain_at_start for one in made)
        # What an adapter holds for all its layers (PAL's projections) is not in any of them.
        self.shared = nn.ModuleList(
            module for one in made for name, module in one.named_children() if name not in ("embedding", "layers")
        )
