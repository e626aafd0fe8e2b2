"""The slots at which task-specific parts enter the encoder. The defaults leave plain BERT as it is.

A layer adapter gets the layout of the stream as an argument and has no "active" task, so one call serves a stream of
one task or of many. The encoder knows this file and no concrete adapter.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, final, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.fused_forms import fusible
from polytask.settings import MethodChoice
from polytask.stream import Layout
from polytask.types import UserError

LinearSite = Literal["query", "key", "value", "attention_output", "up", "down"]
NormSite = Literal["embedding", "attention", "ffn"]
SublayerSite = Literal["attention", "ffn"]
Layers = int | tuple[int, ...] | None
"""An adapter's layers: the last n, those with these numbers, counted from 0 at the bottom, or all."""
Linear = Callable[[Tensor], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, Layout], Tensor]
"""Queries, keys and values, each [T, heads, head size], and the layout -> attention's output of the same shape."""


@dataclass(frozen=True)
class AdapterContext:
    """What every adapter is given in addition to its options."""

    tasks: tuple[str, ...]
    """In the order of the layout's task indices."""
    layers: int
    hidden: int
    heads: int
    ffn: int
    dropout: float
    make: "MakeAdapter | None" = None
    """Makes another adapter for the same encoder, and for the same tasks unless others are given."""
    attend: Callable[[Tensor, Tensor, Tensor, Layout, float], Tensor] | None = None
    """Attention inside each sequence: queries, keys, values, layout and the dropout of attention weights."""
    embedding: int | None = None
    """The size of word embeddings; None: `hidden`."""
    up: int | None = None
    """The number of outputs of the linear map "up"; None: `ffn`. A gated feed-forward part has twice as many."""
    pre_norm: bool = False
    """Whether the layers normalize their input instead of their output."""

    @property
    def embedding_size(self) -> int:
        return self.embedding or self.hidden

    @property
    def up_size(self) -> int:
        return self.up or self.ffn


class AffineNorm(Protocol):
    """A norm with a scale and, unless it is None, a shift."""

    weight: Any
    bias: Any


class MakeAdapter(Protocol):
    """Makes the adapter that a recipe names."""

    def __call__(self, choice: MethodChoice, tasks: tuple[str, ...] | None = None, /) -> "Adapter":
        """Returns a new adapter."""


class Encoder(Protocol):
    """What an adapter may copy its first values from."""

    def linear(self, layer: int, site: str) -> nn.Linear:
        """Returns a linear map of a layer."""

    def layer_norm(self, layer: int, site: str) -> AffineNorm:
        """Returns a norm of a layer."""


class LayerAdapter(nn.Module):
    """The slots of one layer of the encoder (or of its embeddings)."""

    replaces: bool = False
    """Whether its maps and norms replace the layer's own, which then get no gradient."""

    def start_from(self, encoder: Encoder, index: int) -> None:
        """Called once, when the model is built, with the index of its layer."""

    def linear(self, site: LinearSite, base: Linear, x_TD: Tensor, layout: Layout) -> Tensor:
        """Replaces a linear map of the layer; may change its input and its output."""
        return base(x_TD)

    def attend(self, base: Attend, q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout) -> Tensor:
        """Replaces the attention inside each sequence, without the linear maps before and after it."""
        return base(q_THd, k_THd, v_THd, layout)

    def affine(self, site: NormSite, gamma_D: Tensor, beta_D: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The scale and shift of a LayerNorm for task k, given those of the encoder."""
        return gamma_D, beta_D

    def sublayer(self, site: SublayerSite, y_TD: Tensor, layout: Layout) -> Tensor:
        """Changes the output of attention or of the feed-forward part, before the residual sum."""
        return y_TD

    def parallel(self, x_TD: Tensor, layout: Layout) -> Tensor | None:
        """A branch from the layer's input, added to the sum before the layer's last LayerNorm."""
        return None

    def output(self, h_TD: Tensor, layout: Layout) -> Tensor:
        """Changes the layer's output, after its last LayerNorm."""
        return h_TD

    @final
    @fusible
    def norm(self, site: NormSite, base: nn.LayerNorm, x_TD: Tensor, layout: Layout) -> Tensor:
        """The LayerNorm that `affine` defines, each task's rows with the task's own vectors. Not a slot."""
        shift_D = norm_shift(base)
        vectors = {k: self.affine(site, base.weight, shift_D, k) for k, _ in task_rows(layout)}
        if all(gamma_D is base.weight and beta_D is shift_D for gamma_D, beta_D in vectors.values()):
            plain_TD: Tensor = base(x_TD)
            return plain_TD
        return per_task(
            x_TD, layout, lambda k, rows_TD: F.layer_norm(rows_TD, base.normalized_shape, *vectors[k], base.eps)
        )


class Adapter(nn.Module):
    """The task-specific parts of a whole encoder: a layer adapter for the embeddings and one for each layer."""

    plain_at_start: bool = True
    """Whether outputs before the first step are bit-identical to those of plain BERT."""
    earlier_options: Mapping[str, Any] = MappingProxyType({})
    """The values of options that models saved before those options existed were trained with."""

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
        """Called once, when the model is built and before saved weights are loaded."""
        for index in range(len(self.layers)):
            self.layer(index).start_from(encoder, index)

    def replacements(self) -> dict[int, LayerAdapter]:
        """The layer adapters that replace the maps and norms of their layer, by the layer's index."""
        return {
            index: part
            for index, layer in enumerate(self.layers)
            for part in layer.modules()
            if isinstance(part, LayerAdapter) and part.replaces
        }

    def task_parameters(self, task: str) -> list[nn.Parameter]:
        """The parameters that belong to this task only: those that `TaskSpecific.own` returns."""
        return list(self.task_state(task).values())

    def shared_state(self) -> dict[str, nn.Parameter]:
        """The parameters that belong to no single task."""
        own = {parameter for task in self.tasks for parameter in self.task_parameters(task)}
        return {name: parameter for name, parameter in self.named_parameters() if parameter not in own}

    def task_state(self, task: str) -> dict[str, nn.Parameter]:
        """The same parameters by names without the task's index, so that they fit another place in the order."""
        if task not in self.tasks:
            return {}
        k = self.tasks.index(task)
        state: dict[str, nn.Parameter] = {}
        modules: Iterable[tuple[str, nn.Module]] = self.named_modules()
        for path, part in modules:
            if isinstance(part, TaskSpecific):
                names = {id(parameter): f"{path}.{name}" for name, parameter in part.named_parameters()}
                # A list of parameters names each by its index: `weights.K`.
                state |= {names[id(parameter)].removesuffix(f".{k}"): parameter for parameter in part.own(k)}
        return state


@runtime_checkable
class TaskSpecific(Protocol):
    """A module with parameters that belong to single tasks."""

    def own(self, k: int) -> list[nn.Parameter]:
        """Returns the parameters of task k."""


def norm_shift(norm: AffineNorm) -> Tensor:
    """The shift of a norm; zeros if it has none."""
    shift_D: Tensor = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
    return shift_D


def task_rows(layout: Layout) -> Iterator[tuple[int, slice]]:
    """Each task of the stream with its rows, in order. Filler rows that belong to no task come last."""
    for k, (first, last) in enumerate(layout.token_ranges):
        if first < last:
            yield k, slice(first, last)


def per_task(x_TD: Tensor, layout: Layout, apply: Callable[[int, Tensor], Tensor]) -> Tensor:
    """`apply(k, rows)` for the rows of each task k, put together again; rows of no task become zeros."""
    tasks = list(task_rows(layout))
    if [rows for _, rows in tasks] == [slice(0, x_TD.shape[0])]:
        return apply(tasks[0][0], x_TD)
    pieces = [apply(k, x_TD[rows]) for k, rows in tasks]
    filler = len(x_TD) - sum(map(len, pieces))
    if filler:
        pieces.append(pieces[0].new_zeros(filler, *pieces[0].shape[1:]))
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


def chosen_layers(context: AdapterContext, layers: Layers) -> list[bool]:
    """For each layer of the encoder, whether the adapter is on it."""
    where, last = "recipe: adapter: layers", context.layers - 1
    if isinstance(layers, tuple):
        if not layers:
            raise UserError(f"{where}: must name at least one layer in [0, {last}], or be left out for all layers")
        for number in layers:
            if not 0 <= number <= last:
                raise UserError(f"{where}: the encoder has layers 0 to {last}, counted from the bottom; found {number}")
            if layers.count(number) > 1:
                raise UserError(f"{where}: must name each layer once, found {number} {layers.count(number)} times")
        return [index in layers for index in range(context.layers)]
    if layers is not None and not 1 <= layers <= context.layers:
        raise UserError(f"{where}: must be in [1, {context.layers}], found {layers}")
    return [index >= context.layers - (layers or context.layers) for index in range(context.layers)]


def on_layers(context: AdapterContext, layers: Layers, make: Callable[[], LayerAdapter]) -> Iterator[LayerAdapter]:
    """A layer adapter from `make` for each chosen layer, and one that changes nothing for each of the others."""
    return (make() if chosen else LayerAdapter() for chosen in chosen_layers(context, layers))
