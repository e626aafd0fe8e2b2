"""Gradients of several tasks: their inner products layer by layer, and weighted sums of them. Knows no policy.

What a policy needs of K gradients with N numbers each is their K x K matrix of inner products. So the forward pass is
cut between layers, and the gradients are made one layer at a time, multiplied with each other and dropped: K x N
numbers never exist at once. A weighted sum of the gradients is then made in a second sweep, which is cheap, because
what comes down from the layers above is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polytask.model import MultiTaskModel, Pass
from polytask.seeds import RandomState
from polytask.stream import Stream


@dataclass(frozen=True)
class CutPass:
    """A forward pass whose graph ends at each layer's input, so that a gradient can be taken layer by layer."""

    done: Pass
    """Its outputs lead back to the last leaf only."""
    outs: tuple[Tensor, ...]
    """The embeddings' output and that of each layer, each leading back to the leaf below it."""
    leaves: tuple[Tensor, ...]
    """The same numbers, cut off: what went into the next layer, and at last into the heads."""


def cut_pass(model: MultiTaskModel, stream: Stream) -> CutPass:
    """The same numbers and the same dropout as `model.run`."""
    random, layout, adapter = RandomState(model.device), stream.layout, model.adapter
    words_TD = model.trunk.words(stream.token_ids_T)
    outs = [model.trunk.embed(stream, adapter, words_TD)]
    leaves = [_cut(outs[0])]
    for index in range(len(model.trunk.layers)):
        outs.append(next(model.trunk.states(leaves[-1], layout, adapter, start=index)))
        leaves.append(_cut(outs[-1]))
    done = Pass(stream, words_TD, tuple(leaves), model.outputs(leaves[-1], stream), random)
    return CutPass(done, tuple(outs), tuple(leaves))


def _cut(out_TD: Tensor) -> Tensor:
    return out_TD.detach().requires_grad_(out_TD.requires_grad)


@dataclass(frozen=True)
class Source:
    """What one gradient is of: a loss over one pass, or over several when steps are accumulated."""

    name: str
    parts: Sequence[tuple[CutPass, Tensor]]
    """Each pass with the loss that came of it; the gradient is that of their sum."""


def own_parameters(model: MultiTaskModel, task: str) -> list[nn.Parameter]:
    """What learns of a task alone: its head and its part of the adapter."""
    return [p for p in [*model.head(task).parameters(), *model.adapter.task_parameters(task)] if p.requires_grad]


def shared_by_layer(model: MultiTaskModel) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """What learns of the trunk, from the top down. (No adapter has parameters that tasks share.)"""
    yield "pooler", [p for p in model.trunk.pooler.parameters() if p.requires_grad]
    for index in reversed(range(len(model.trunk.layers))):
        yield f"layer {index}", [p for p in model.trunk.layers[index].parameters() if p.requires_grad]
    below = [module for name, height, module in model.parts() if name.startswith("trunk.") and height == 0]
    yield "embeddings", [p for module in below for p in module.parameters() if p.requires_grad]


class Gradients:
    """The gradients of several sources. Made once; `add` can be called once."""

    by_layer: Mapping[str, Tensor]
    """`pooler`, `layer 5` ... `layer 0`, `embeddings` -> [K, K] inner products on shared parameters."""
    own: Mapping[nn.Parameter, Tensor]
    """On parameters of single tasks (heads and their adapters), for the sources asked for."""

    def __init__(self, model: MultiTaskModel, sources: Sequence[Source], own_of: Mapping[str, Sequence[str]]) -> None:
        """`own_of`: for the sources whose gradients on tasks' own parameters are wanted, those tasks."""
        self.layers = list(shared_by_layer(model))
        self.lowest = self.layers[-1][1]
        self.parts = [(k, cut, loss) for k, source in enumerate(sources) for cut, loss in source.parts]
        self.deltas: list[list[Tensor | None]] = []
        """What comes down to each layer's output, from the top, for each of the parts."""
        own = [[p for task in own_of.get(source.name, ()) for p in own_parameters(model, task)] for source in sources]
        self.own = {}
        self.by_layer = {}
        self.deltas.append([torch.ones_like(loss) for _, _, loss in self.parts])
        for number, (name, shared) in enumerate(self.layers):
            rows = [self._tied(k) if shared is self.lowest else [None] * len(shared) for k in range(len(sources))]
            down = []
            for (k, _, _), out, leaf, delta in zip(
                self.parts, self._outs(number), self._leaves(number), self.deltas[-1], strict=True
            ):
                wanted = [*shared, *own[k], *([leaf] if leaf is not None and leaf.requires_grad else [])]
                found = _gradients(out, wanted, delta)
                rows[k] = [_added(row, grad) for row, grad in zip(rows[k], found, strict=False)]
                for parameter, grad in zip(own[k], found[len(shared) :], strict=False):
                    if grad is not None:
                        self.own[parameter] = self.own[parameter] + grad if parameter in self.own else grad
                down.append(found[-1] if len(wanted) > len(shared) + len(own[k]) else None)
            self.by_layer[name] = _gram(rows, model.device)
            self.deltas.append(down)

    @property
    def gram_KK(self) -> Tensor:
        return torch.stack(list(self.by_layer.values())).sum(0)

    def add(self, weights: Sequence[float]) -> None:
        """Adds `sum_k weights[k] g_k` to the gradients of shared parameters, and tasks' own gradients to theirs."""
        for number, (_, shared) in enumerate(self.layers):
            live = [
                (out, delta * weights[k])
                for (k, _, _), out, delta in zip(self.parts, self._outs(number), self.deltas[number], strict=True)
                if delta is not None and out.requires_grad and weights[k] != 0
            ]
            inputs = [*shared, *self.lowest] if number == 0 else shared  # see _tied
            if inputs and live:
                torch.autograd.backward([out for out, _ in live], [delta for _, delta in live], inputs=inputs)
        for parameter, grad in self.own.items():
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad

    def _tied(self, source: int) -> list[Tensor | None]:
        """What a head gives the embeddings directly, past the cuts: mlm's decoder is the word vectors themselves."""
        rows: list[Tensor | None] = [None] * len(self.lowest)
        for k, _, loss in self.parts:
            if k == source:
                found = _gradients(loss, self.lowest, torch.ones_like(loss))
                rows = [_added(row, grad) for row, grad in zip(rows, found, strict=True)]
        return rows

    def _outs(self, number: int) -> list[Tensor]:
        return [loss if number == 0 else cut.outs[-number] for _, cut, loss in self.parts]

    def _leaves(self, number: int) -> list[Tensor | None]:
        last = number == len(self.layers) - 1
        return [None if last else cut.leaves[-1 - number] for _, cut, _ in self.parts]


def _gradients(out: Tensor, wanted: Sequence[Tensor], delta: Tensor | None) -> Sequence[Tensor | None]:
    if delta is None or not wanted or not out.requires_grad:
        return [None] * len(wanted)
    return torch.autograd.grad(out, wanted, delta, retain_graph=True, allow_unused=True)


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _gram(rows: Sequence[Sequence[Tensor | None]], device: torch.device) -> Tensor:
    """[K, K] inner products, added up over parameters in double precision."""
    gram_KK = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=device)
    for gradients in zip(*rows, strict=True):
        there = [k for k, gradient in enumerate(gradients) if gradient is not None]
        if there:
            flat = torch.stack([g.flatten() for g in gradients if g is not None])
            index = torch.tensor(there, device=device)
            gram_KK[index[:, None], index] += (flat @ flat.T).double()
    return gram_KK
