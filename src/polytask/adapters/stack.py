"""Several adapters at once."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from polytask.adapters.base import (
    Adapter,
    AdapterContext,
    Attend,
    Encoder,
    LayerAdapter,
    Linear,
    LinearSite,
    NormSite,
    SublayerSite,
)
from polytask.settings import MethodChoice
from polytask.stream import Layout
from polytask.types import UserError


class StackLayer(LayerAdapter):
    """At each slot, one adapter after another: what a part gets as its base is the layer with all earlier parts."""

    def __init__(self, parts: list[LayerAdapter]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def adapters(self) -> list[LayerAdapter]:
        return [part for part in self.parts if isinstance(part, LayerAdapter)]

    def start_from(self, encoder: Encoder, index: int) -> None:
        for part in self.adapters():
            part.start_from(encoder, index)

    def linear(self, site: LinearSite, base: Linear, x_TD: Tensor, layout: Layout) -> Tensor:
        for part in self.adapters():
            base = partial(part.linear, site, base, layout=layout)
        return base(x_TD)

    def attend(self, base: Attend, q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout) -> Tensor:
        for part in self.adapters():
            base = partial(part.attend, base)
        return base(q_THd, k_THd, v_THd, layout)

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, k: int) -> tuple[Tensor, Tensor]:
        for part in self.adapters():
            gamma_D, beta_D = part.affine(site, gamma_D, beta_D, k)
        return gamma_D, beta_D

    def sublayer(self, site: SublayerSite, y_TD: Tensor, layout: Layout) -> Tensor:
        for part in self.adapters():
            y_TD = part.sublayer(site, y_TD, layout)
        return y_TD

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        return sum_branches(part.parallel(x_TD, layout) for part in self.adapters())

    def output(self, h_TD: Tensor, layout: Layout) -> Tensor:
        for part in self.adapters():
            h_TD = part.output(h_TD, layout)
        return h_TD


def sum_branches(branches: Iterable[Tensor | None]) -> Tensor | None:
    """The sum of the branches that are there, or None."""
    present = [branch_TD for branch_TD in branches if branch_TD is not None]
    if len(present) < 2:
        return present[0] if present else None
    return torch.stack(present).sum(0)


class Stack(Adapter):
    """Several adapters at once: at every slot one after another, in the given order; parallel branches are summed.

    `adapter: {name: stack, adapters: [pal, {name: conditional_norm}]}`. No paper: a way to try combinations.
    """

    def __init__(
        self,
        context: AdapterContext,
        *,
        adapters: tuple[MethodChoice, ...] = (MethodChoice("pal"), MethodChoice("conditional_norm")),
    ) -> None:
        if len(adapters) < 2 or context.make is None:
            raise UserError("recipe: adapter: a stack needs two or more adapters, as in `adapters: [pal, lhuc]`")
        if any(choice.name == "shared" for choice in adapters):
            raise UserError(
                "recipe: adapter: a stack cannot have shared parts; a stack itself can be shared, as in "
                "{name: shared, adapter: {name: stack, adapters: [pal, lhuc]}}"
            )
        parts = [context.make(choice) for choice in adapters]
        for choice, part in list(zip(adapters, parts, strict=True))[1:]:
            if part.replacements():
                raise UserError(
                    f"recipe: adapter: {choice.name} must come first in a stack: it replaces the layers' own maps, "
                    "so changes that an earlier adapter makes to them would be lost"
                )
        super().__init__(
            StackLayer([part.embedding for part in parts]),
            (StackLayer([part.layer(index) for part in parts]) for index in range(context.layers)),
            context.tasks,
        )
        self.plain_at_start = all(part.plain_at_start for part in parts)
        self.earlier_options = {name: value for part in parts for name, value in part.earlier_options.items()}
        # Modules that an adapter shares among its layers (PAL's projections) are children of the adapter itself.
        self.shared = nn.ModuleList(
            module for part in parts for name, module in part.named_children() if name not in ("embedding", "layers")
        )
