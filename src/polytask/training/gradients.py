"""Gradients of several tasks: their inner products layer by layer, and weighted sums of them. Knows no policy.

What a policy needs of K gradients with N numbers each is their K x K matrix of inner products. So the forward pass is
cut between layers, and the gradients are made one layer at a time and multiplied with each other. Where only the
products are wanted, each layer's gradients are dropped then, and K x N numbers never exist at once. For a weighted sum
they are kept, because to make them again would cost every task a second backward pass; but a layer's graph is given
back as soon as its gradients are there. It has some 34 D numbers for each token, and the layer 12 D^2 parameters: for
tasks of more than D/3 tokens it is the larger of the two. Of word vectors only those in the texts are kept.

A layer's gradients lie in one matrix, because a small step on a GPU takes as long as it takes to launch its kernels.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polytask.model import MultiTaskModel, Pass
from polytask.seeds import RandomState
from polytask.stream import Stream

PIECE = 4096
"""Numbers of a gradient in one product: a GPU has many to share out, and sums in single precision stay short."""

Found = dict[Tensor, Tensor]
"""Gradients by what they are on."""


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
    words_TD = model.encoder.words(stream.token_ids_T)
    outs = [model.encoder.embed(stream, adapter, words_TD)]
    leaves = [_cut(outs[0])]
    for index in range(len(model.encoder.layers)):
        outs.append(next(model.encoder.states(leaves[-1], layout, adapter, start=index)))
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
    """What learns of the encoder, from the top down. (No adapter has parameters that tasks share.)"""
    yield "pooler", [p for p in model.encoder.pooler.parameters() if p.requires_grad]
    for index in reversed(range(len(model.encoder.layers))):
        yield f"layer {index}", [p for p in model.encoder.layers[index].parameters() if p.requires_grad]
    below = [module for name, height, module in model.parts() if name.startswith("encoder.") and height == 0]
    yield "embeddings", [p for module in below for p in module.parameters() if p.requires_grad]


class Gradients:
    """The gradients of several sources, whose graphs are used up. `add` can be called once."""

    by_layer: Mapping[str, Tensor]
    """`pooler`, `layer 5` ... `layer 0`, `embeddings` -> [K, K] inner products on shared parameters."""
    own: Mapping[Tensor, Tensor]
    """On parameters of single tasks (heads and their adapters), for the sources asked for."""

    def __init__(
        self,
        model: MultiTaskModel,
        sources: Sequence[Source],
        own_of: Mapping[str, Sequence[str]],
        *,
        summed: bool = True,
    ) -> None:
        """`own_of`: for the sources whose gradients on tasks' own parameters are wanted, those tasks.

        `summed`: whether `add` will be called; if not, a layer's gradients are dropped once they are multiplied.
        """
        self.device, self.words = model.device, model.encoder.words.weight
        layers = list(shared_by_layer(model))
        lowest = layers[-1][1]
        own = [[p for task in own_of.get(source.name, ()) for p in own_parameters(model, task)] for source in sources]
        descents = [_Descent(source, mine, lowest) for source, mine in zip(sources, own, strict=True)]
        self.by_layer = {}
        self.rows: list[_Rows] = []
        self.seen_U: Tensor | None = None
        """The words in the texts. No others have a gradient, unless a head is made of word vectors."""
        for name, shared in layers:
            if shared is lowest and self.words.requires_grad and not any(self.words in d.past for d in descents):
                self.seen_U = torch.cat([cut.done.stream.token_ids_T for s in sources for cut, _ in s.parts]).unique()
            rows = _Rows([self._seen(descent.next(shared)) for descent in descents], self.device)
            self.by_layer[name] = rows.gram_KK()
            if summed:
                self.rows.append(rows)
        self.own = {}
        for descent in descents:
            self.own = _added(self.own, descent.own)

    @property
    def gram_KK(self) -> Tensor:
        return torch.stack(list(self.by_layer.values())).sum(0)

    def add(self, weights: Sequence[float]) -> None:
        """Adds `sum_k weights[k] g_k` to the gradients of shared parameters, and tasks' own gradients to theirs."""
        live, weights_K = [weight != 0 for weight in weights], torch.tensor(weights, device=self.device)
        # Own ones go the same way, for a copy: autograd may give two parameters one tensor, and clipping is in place.
        found = _Rows([self.own], self.device).summed(torch.ones(1, device=self.device), [True])
        while self.rows:
            found |= self.rows.pop().summed(weights_K, live)
        if self.seen_U is not None and self.words in found:
            found[self.words] = torch.zeros_like(self.words).index_copy_(0, self.seen_U, found[self.words])
        there = [(grad, found.pop(parameter)) for parameter in list(found) if (grad := parameter.grad) is not None]
        if there:  # of penalties
            torch._foreach_add_([grad for grad, _ in there], [grad for _, grad in there])
        for parameter, grad in found.items():
            parameter.grad = grad

    def _seen(self, found: Found) -> Found:
        """Of the word vectors, only the rows that can have a gradient."""
        if self.seen_U is not None and self.words in found:
            found[self.words] = found[self.words][self.seen_U]
        return found


class _Descent:
    """The way of one source's gradient down through the layers."""

    def __init__(self, source: Source, own: Sequence[Tensor], lowest: Sequence[Tensor]) -> None:
        self.mine, self.lowest = own, lowest
        self.passes = list({id(cut): cut for cut, _ in source.parts}.values())  # one may have led to several losses
        self.cuts = list(range(len(self.passes[0].leaves)))
        """Those still to come."""
        self.tops: list[tuple[Tensor, Tensor | None]] = [(loss, None) for _, loss in source.parts]
        """What the next gradients are of, with what comes down to it."""
        self.own: Found = {}
        self.past: Found = {}
        """What a head gives the embeddings directly, past the cuts: mlm's decoder is the word vectors themselves."""

    def next(self, shared: Sequence[Tensor]) -> Found:
        """The gradients on shared parameters above the next cut, and below the last one."""
        first, at = len(self.cuts) == len(self.passes[0].leaves), self.cuts.pop() if self.cuts else None
        below = [] if at is None else [(cut.outs[at], cut.leaves[at]) for cut in self.passes]
        wanted = [*shared, *self.mine, *(leaf for _, leaf in below), *(self.lowest if first else ())]
        found = _gradients(self.tops, wanted)
        if first:
            self.past = _of(self.lowest, found)
        self.tops = [(out, found[leaf]) for out, leaf in below if leaf in found]
        self.own = _added(self.own, _of(self.mine, found))
        return _added(_of(shared, found), self.past if shared is self.lowest else {})


class _Rows:
    """K gradients as the rows of one matrix, on what any of them has."""

    def __init__(self, gradients: Sequence[Mapping[Tensor, Tensor]], device: torch.device) -> None:
        self.has = [set(found) for found in gradients]
        self.shapes = {parameter: grad.shape for found in gradients for parameter, grad in found.items()}
        size = sum(shape.numel() for shape in self.shapes.values())
        rest = torch.zeros(-size % PIECE, device=device)
        pieces = []
        for found in gradients:
            pieces += [found[p] if p in found else p.new_zeros(shape) for p, shape in self.shapes.items()]
            pieces.append(rest)
        self.flat_KP = torch.cat([piece.flatten() for piece in pieces]).view(len(gradients), size + len(rest))

    def gram_KK(self) -> Tensor:
        """Inner products, added up over pieces in double precision."""
        pieces_PKp = self.flat_KP.unflatten(1, (self.flat_KP.shape[1] // PIECE, PIECE)).transpose(0, 1)
        return torch.bmm(pieces_PKp, pieces_PKp.mT).sum(0, dtype=torch.float64)

    def summed(self, weights_K: Tensor, live: Sequence[bool]) -> Found:
        """`sum_k weights[k] g_k`, on what a live one of the gradients has."""
        reached = set().union(*itertools.compress(self.has, live))
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = (weights_K @ self.flat_KP)[: sum(sizes)].split(sizes)
        return {p: part.view(self.shapes[p]) for p, part in zip(self.shapes, parts, strict=True) if p in reached}


def _gradients(tops: Sequence[tuple[Tensor, Tensor | None]], wanted: Sequence[Tensor]) -> Found:
    """Of those that learn and are reached; the graph is given back."""
    tops = [(top, delta) for top, delta in tops if top.requires_grad]
    wanted = [tensor for tensor in wanted if tensor.requires_grad]
    if not tops or not wanted:
        return {}
    grads = torch.autograd.grad([top for top, _ in tops], wanted, [delta for _, delta in tops], allow_unused=True)
    return {tensor: grad for tensor, grad in zip(wanted, grads, strict=True) if grad is not None}


def _of(parameters: Sequence[Tensor], found: Found) -> Found:
    return {parameter: found[parameter] for parameter in parameters if parameter in found}


def _added(one: Found, other: Found) -> Found:
    return one | {key: one[key] + grad if key in one else grad for key, grad in other.items()}
