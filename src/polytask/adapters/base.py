"""The slots at which task-specific parts enter the encoder. The defaults are the identity: plain BERT.

A layer adapter sees the layout as an argument and keeps no notion of an "active" task, so one call serves a stream that
holds one task or many. The encoder knows this file and no concrete adapter.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from polytask.stream import Layout
from polytask.types import MethodChoice, UserError

LinearSite = Literal["query", "key", "value", "attention_output", "up", "down"]
NormSite = Literal["embedding", "attention", "ffn"]
SublayerSite = Literal["attention", "ffn"]


@dataclass(frozen=True)
class AdapterContext:
    """What every adapter is given beside its options."""

    tasks: tuple[str, ...]
    """In the order of the layout's task ids."""
    layers: int
    hidden: int
    heads: int
    ffn: int
    dropout: float
    make: "Callable[[MethodChoice], Adapter] | None" = None
    """Makes another adapter for the same encoder and tasks."""


class Encoder(Protocol):
    """What an adapter may start from."""

    def linear(self, layer: int, site: str) -> nn.Linear:
        """A layer's linear map."""

    def layer_norm(self, layer: int, site: str) -> nn.LayerNorm:
        """A layer's norm."""


class LayerAdapter(nn.Module):
    """What one layer of the encoder (or its embeddings) asks at each of its slots."""

    replaces: bool = False
    """Stands in for the layer's own linear maps and norms, which then take no part."""

    def start_from(self, encoder: Encoder, index: int) -> None:
        """Called once, when the model is made, with the number of the layer it is on."""

    def linear(self, site: LinearSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        """In place of each of the layer's linear maps."""
        y_TD: Tensor = base(x_TD)
        return y_TD

    def norm(self, site: NormSite, base: nn.Module, x_TD: Tensor, layout: Layout) -> Tensor:
        """In place of each LayerNorm."""
        y_TD: Tensor = base(x_TD)
        return y_TD

    def sublayer(self, site: SublayerSite, y_TD: Tensor, layout: Layout) -> Tensor:
        """On the output of attention or of the feed-forward part, before the residual sum."""
        return y_TD

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        """A branch beside the whole layer, fed with the layer's input and added before its last LayerNorm."""
        return None

    # What a slot comes to, for an encoder that computes several things at once (encoder/swift.py). An adapter that says
    # nothing here is asked at the slots it has; one that says something says the same as its slot does.

    def plain_linear(self, site: LinearSite) -> bool:
        """Whether it leaves this linear map as it is."""
        return type(self).linear is LayerAdapter.linear

    def plain_sublayer(self, site: SublayerSite) -> bool:
        """Whether it leaves this sublayer's output as it is."""
        return type(self).sublayer is LayerAdapter.sublayer

    def sublayer_sum(
        self, site: SublayerSite, y_TD: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What `sublayer` comes to, as summands where it is a sum anyway: two of all tokens, and a vector."""
        return self.sublayer(site, y_TD, layout), None, None

    def norm_vectors(
        self, site: NormSite, scale_D: Tensor, shift_D: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor] | None:
        """If `norm` comes to a LayerNorm on this stream, its scale and shift, given the encoder's own."""
        return (scale_D, shift_D) if type(self).norm is LayerAdapter.norm else None


class Adapter(nn.Module):
    """The task-specific parts of a whole encoder: one layer adapter for the embeddings and one for each layer."""

    plain_at_start: bool = True
    """Before the first step, outputs are those of plain BERT to the last bit."""
    earlier_options: Mapping[str, Any] = MappingProxyType({})
    """For options added later whose default changes the method: the values of models that were saved without them."""

    def __init__(self, embedding: LayerAdapter, layers: Iterable[LayerAdapter], tasks: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.tasks = tasks
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)

    def layer(self, index: int) -> LayerAdapter:
        adapter = self.layers[index]
        assert isinstance(adapter, LayerAdapter)
        return adapter

    def start_from(self, encoder: Encoder) -> None:
        """Called once, when the model is made; saved weights, where there are any, are loaded afterwards."""
        for index in range(len(self.layers)):
            self.layer(index).start_from(encoder, index)

    def stand_ins(self) -> dict[int, LayerAdapter]:
        """By number, the layers whose own linear maps and norms take no part, with what stands in for them."""
        return {
            index: part
            for index, layer in enumerate(self.layers)
            for part in layer.modules()
            if isinstance(part, LayerAdapter) and part.replaces
        }

    def task_parameters(self, task: str) -> list[nn.Parameter]:
        """The parameters that belong to this task alone: modules with task-specific parts say which by `own`."""
        return list(self.task_state(task).values())

    def task_state(self, task: str) -> dict[str, nn.Parameter]:
        """The same with names that do not say which of the tasks it is, so that they fit it at another place too."""
        if task not in self.tasks:
            return {}
        k = self.tasks.index(task)
        state: dict[str, nn.Parameter] = {}
        modules: Iterable[tuple[str, nn.Module]] = self.named_modules()
        for path, part in modules:
            if isinstance(part, TaskSpecific):
                names = {id(parameter): f"{path}.{name}" for name, parameter in part.named_parameters()}
                # A list of parameters names each by its number: `weights.K`.
                state |= {names[id(parameter)].removesuffix(f".{k}"): parameter for parameter in part.own(k)}
        return state


@runtime_checkable
class TaskSpecific(Protocol):
    """A module that holds parameters of single tasks."""

    def own(self, k: int) -> list[nn.Parameter]:
        """Those of task k."""


def chosen_layers(context: AdapterContext, layers: int | None) -> list[bool]:
    """For each layer of the encoder whether the adapter is on it: on all of them, or on the last `layers`."""
    if layers is not None and not 1 <= layers <= context.layers:
        raise UserError(f"recipe: adapter: layers: a number from 1 to {context.layers} is needed, found {layers}")
    return [index >= context.layers - (layers or context.layers) for index in range(context.layers)]


def normal(weight: Tensor) -> None:
    """BERT's own first values."""
    nn.init.normal_(weight, std=0.02)
