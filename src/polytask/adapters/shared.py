"""One adapter for all tasks."""

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

ALL_TASKS = ("all tasks",)


class SharedLayer(LayerAdapter):
    """A layer adapter for which every stream is one of a single task."""

    def __init__(self, inner: LayerAdapter) -> None:
        super().__init__()
        self.inner = inner

    def start_from(self, encoder: Encoder, index: int) -> None:
        self.inner.start_from(encoder, index)

    def linear(self, site: LinearSite, base: Linear, x_TD: Tensor, layout: Layout) -> Tensor:
        return self.inner.linear(site, base, x_TD, layout.as_one_task)

    def attend(self, base: Attend, q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout) -> Tensor:
        return self.inner.attend(base, q_THd, k_THd, v_THd, layout.as_one_task)

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return self.inner.affine(site, gamma_D, beta_D, 0)

    def sublayer(self, site: SublayerSite, y_TD: Tensor, layout: Layout) -> Tensor:
        return self.inner.sublayer(site, y_TD, layout.as_one_task)

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        return self.inner.parallel(x_TD, layout.as_one_task)

    def output(self, h_TD: Tensor, layout: Layout) -> Tensor:
        return self.inner.output(h_TD, layout.as_one_task)


class Shared(Adapter):
    """Another adapter with one set of parameters that all tasks share, instead of one for each task.

    `adapter: {name: shared, adapter: {name: pal, size: 96}}`. The control for every adapter: if it does as well as the
    adapter itself, more parameters help and not those of each task. No paper; in the code of one published system with
    PALs the task never reaches the encoder, so that all tasks use the first PAL, which is the same.
    """

    def __init__(self, context: AdapterContext, *, adapter: MethodChoice = MethodChoice("pal")) -> None:  # noqa: B008
        if context.make is None or adapter.name in ("none", "own_encoder", "shared"):
            raise UserError(
                f"recipe: adapter: shared: needs an adapter such as pal, which has parameters for each task, found "
                f"{adapter.name}"
            )
        inner = context.make(adapter, ALL_TASKS)
        layers = (SharedLayer(inner.layer(index)) for index in range(context.layers))
        super().__init__(SharedLayer(inner.embedding), layers, context.tasks)
        self.plain_at_start = inner.plain_at_start
        self.earlier_options = dict(inner.earlier_options)
        # Modules that the adapter shares among its layers (PAL's projections) are children of the adapter itself.
        children = {name: module for name, module in inner.named_children() if name not in ("embedding", "layers")}
        self.shared = nn.ModuleDict(children)

    def task_state(self, task: str) -> dict[str, nn.Parameter]:
        """No parameter belongs to one task."""
        return {}
