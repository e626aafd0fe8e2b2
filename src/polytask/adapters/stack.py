"""Several adapters at once."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, Encoder, LayerAdapter, LinearSite, NormSite, SublayerSite
from polytask.stream import Layout
from polytask.types import MethodChoice, UserError


class _Linear(nn.Module):
    """What a part of the stack gets as its linear map: the layer's own with all earlier parts around it."""

    def __init__(self, apply_earlier: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.apply_earlier = apply_earlier

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.apply_earlier(x_TD)


class _Norm(nn.LayerNorm):
    """The same for a layer norm."""

    def __init__(self, base: nn.LayerNorm, apply_earlier: Callable[[Tensor], Tensor]) -> None:
        super().__init__(base.normalized_shape, base.eps, elementwise_affine=False)
        self.apply_earlier = apply_earlier

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.apply_earlier(x_TD)


class StackLayer(LayerAdapter):
    """At each slot one adapter after another.

    Each part's linear map and norm is the one before it, so that a part can change both the input and the output.
    """

    def __init__(self, parts: list[LayerAdapter]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def _parts(self) -> list[LayerAdapter]:
        return [part for part in self.parts if isinstance(part, LayerAdapter)]

    def start_from(self, encoder: Encoder, index: int) -> None:
        for part in self._parts():
            part.start_from(encoder, index)

    def linear(self, site: LinearSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        *earlier, last = self._parts()
        for part in earlier:
            base = _Linear(partial(part.linear, site, base, layout=layout))
        return last.linear(site, base, x_TD, layout)

    def norm(self, site: NormSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        assert isinstance(base, nn.LayerNorm)
        *earlier, last = self._parts()
        for part in earlier:
            base = _Norm(base, partial(part.norm, site, base, layout=layout))
        return last.norm(site, base, x_TD, layout)

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
        adapters: tuple[MethodChoice, ...] = (MethodChoice("pal"), MethodChoice("conditional_norm")),
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
        self.earlier_options = {name: value for one in made for name, value in one.earlier_options.items()}
        # What an adapter holds for all its layers (PAL's projections) is not in any of them.
        self.shared = nn.ModuleList(
            module for one in made for name, module in one.named_children() if name not in ("embedding", "layers")
        )
