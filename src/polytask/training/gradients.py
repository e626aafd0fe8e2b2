"""Gradients of several tasks: their inner products layer by layer, and weighted sums of them. Knows no policy.

A policy needs only the K x K matrix of inner products of K gradients with N numbers each. So the graph of the forward
pass is cut between layers, and the gradients are computed one layer at a time and multiplied with each other. If only
the products are needed, each layer's gradients are then freed, so that K x N numbers are never in memory at once. For a
weighted sum they are kept, because computing them again would cost a second backward pass per task; but a layer's graph
is freed as soon as its gradients are computed. The graph has about 34 D numbers per token and the layer 12 D^2
parameters, so for tasks of more than D/3 tokens the graph is the larger of the two. Of the word embeddings, only the
rows of words in the texts are kept.

A layer's gradients are rows of one matrix, because the time of a small step on a GPU is dominated by kernel launches.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polytask.model import MultiTaskModel, Pass
from polytask.processes import ALONE, Processes
from polytask.seeds import RandomState
from polytask.stream import Stream

CHUNK = 4096
"""Numbers of a gradient per matmul: gives a GPU many matmuls to run in parallel, and keeps float32 sums short."""

GradientMap = dict[Tensor, Tensor]
"""Gradients by parameter."""


@dataclass(frozen=True)
class CutPass:
    """A forward pass whose graph is cut at each layer's input, so that gradients can be computed layer by layer."""

    forward: Pass
    """The graph of its outputs reaches back to the last leaf only."""
    outs: tuple[Tensor, ...]
    """The output of the embeddings and of each layer; the graph of each reaches back to the leaf below it."""
    leaves: tuple[Tensor, ...]
    """The same values without a graph: the inputs of the next layer, and finally of the heads."""


def cut_pass(model: MultiTaskModel, stream: Stream) -> CutPass:
    """Run a forward pass with the same values and the same dropout as `model.run`."""
    random, layout, adapter = RandomState(model.device), stream.layout, model.adapter
    words_TD = model.embed_words(stream)
    outs = [model.encoder.embed(stream, adapter, words_TD)]
    leaves = [_cut(outs[0])]
    for index in range(len(model.encoder.layers)):
        outs.append(next(model.encoder.states(leaves[-1], layout, adapter, start=index)))
        leaves.append(_cut(outs[-1]))
    forward = Pass(stream, words_TD, tuple(leaves), model.outputs(leaves[-1], stream), random)
    return CutPass(forward, tuple(outs), tuple(leaves))


def _cut(out_TD: Tensor) -> Tensor:
    return out_TD.detach().requires_grad_(out_TD.requires_grad)


@dataclass(frozen=True)
class Source:
    """The loss of one gradient: from one pass, or from several if passes are accumulated."""

    name: str
    parts: Sequence[tuple[CutPass, Tensor]]
    """Each pass with its loss; the gradient is that of the sum of the losses."""


def own_parameters(model: MultiTaskModel, task: str) -> list[nn.Parameter]:
    """Return the trainable parameters that belong to one task: its head and its part of the adapter."""
    return [p for p in [*model.head(task).parameters(), *model.adapter.task_parameters(task)] if p.requires_grad]


def shared_by_layer(model: MultiTaskModel) -> Iterator[tuple[str, list[nn.Parameter]]]:
    """Yield the trainable parameters of encoder and word tags by layer, from the top down.

    Parameters of an adapter that tasks share are left out.
    """
    yield "pooler", [p for p in model.encoder.pooler.parameters() if p.requires_grad]
    for index in reversed(range(len(model.encoder.layers))):
        yield f"layer {index}", [p for p in model.encoder.layers[index].parameters() if p.requires_grad]
    below = [module for name, height, module in model.parts() if name.startswith("encoder.") and height == 0]
    below += [] if model.word_tags is None else [model.word_tags]
    yield "embeddings", [p for module in below for p in module.parameters() if p.requires_grad]


class Gradients:
    """The gradients of several sources. Computing them frees the sources' graphs; `add` can be called once."""

    by_layer: Mapping[str, Tensor]
    """`pooler`, `layer 5` ... `layer 0`, `embeddings` -> [K, K] inner products on shared parameters."""
    own: Mapping[Tensor, Tensor]
    """Gradients on the parameters of single tasks (heads and adapters), for the sources in `own_of`."""

    def __init__(
        self,
        model: MultiTaskModel,
        sources: Sequence[Source],
        own_of: Mapping[str, Sequence[str]],
        *,
        summed: bool = True,
        processes: Processes = ALONE,
    ) -> None:
        """`own_of`: source name -> the tasks whose own parameters get the source's gradients.

        `summed`: whether `add` will be called; if not, a layer's gradients are freed after they are multiplied.

        If processes divide the step, every process has the same sources, and a source's gradient is the sum of those of
        its parts. Each layer's gradients are summed over the processes before they are multiplied.
        """
        self.device, self.words = model.device, model.encoder.words.weight
        layers = list(shared_by_layer(model))
        lowest = layers[-1][1]
        own = [[p for task in own_of.get(source.name, ()) for p in own_parameters(model, task)] for source in sources]
        everywhere = model.encoder.used_in_all_layers()
        cuts = len(model.encoder.layers) + 1
        descents = [_Descent(source, mine, lowest, everywhere, cuts) for source, mine in zip(sources, own, strict=True)]
        self.by_layer = {}
        self.rows: list[_Rows] = []
        self.seen_U: Tensor | None = None
        """The word ids in the texts. Other words have no gradient, unless a head uses the word embeddings."""
        for name, shared in layers:
            if shared is lowest and self.words.requires_grad:
                direct = any(self.words in descent.direct for descent in descents)
                self.seen_U = None if processes.any(direct) else self._seen_words(sources, processes)
            gradients = [self._seen(descent.next(shared)) for descent in descents]
            rows = _Rows([self._summed(shared, grads, processes) for grads in gradients], self.device)
            self.by_layer[name] = rows.gram_KK()
            if summed:
                self.rows.append(rows)
        self.own = {}
        for descent, mine in zip(descents, own, strict=True):
            self.own = _added(self.own, processes.sum_gradients(mine, descent.own))

    def _seen_words(self, sources: Sequence[Source], processes: Processes) -> Tensor:
        """The ids of the words in the texts of all sources."""
        seen_V = torch.zeros(len(self.words), device=self.device)
        for cut, _ in (part for source in sources for part in source.parts):
            seen_V[cut.forward.stream.token_ids_T] = 1
        return processes.add_up(seen_V).nonzero().squeeze(1)

    def _summed(self, shared: Sequence[Tensor], own: GradientMap, processes: Processes) -> GradientMap:
        """The sum over the processes of the gradients of their parts of a source."""
        if not processes.several:
            return own
        if self.seen_U is None or not any(p is self.words for p in shared):
            return processes.sum_gradients(shared, own)
        rows = self.words[self.seen_U].detach().requires_grad_()  # stands for the rows of the word embeddings
        columns = [rows if p is self.words else p for p in shared]
        summed = processes.sum_gradients(columns, {rows if p is self.words else p: g for p, g in own.items()})
        return {self.words if p is rows else p: grad for p, grad in summed.items()}

    @property
    def gram_KK(self) -> Tensor:
        return torch.stack(list(self.by_layer.values())).sum(0)

    def add(self, weights: Sequence[float]) -> None:
        """Add `sum_k weights[k] g_k` to the gradients of shared parameters, and the tasks' own gradients to theirs."""
        live, weights_K = [weight != 0 for weight in weights], torch.tensor(weights, device=self.device)
        # The tasks' own gradients are copied: autograd may use one tensor for two parameters, and clipping is in place.
        grads = _Rows([self.own], self.device).summed(torch.ones(1, device=self.device), [True])
        while self.rows:
            grads |= self.rows.pop().summed(weights_K, live)
        if self.seen_U is not None and self.words in grads:
            grads[self.words] = torch.zeros_like(self.words).index_copy_(0, self.seen_U, grads[self.words])
        existing = [(grad, grads.pop(parameter)) for parameter in list(grads) if (grad := parameter.grad) is not None]
        if existing:  # from penalties
            torch._foreach_add_([grad for grad, _ in existing], [grad for _, grad in existing])
        for parameter, grad in grads.items():
            parameter.grad = grad

    def _seen(self, grads: GradientMap) -> GradientMap:
        """Reduce the gradient of the word embeddings to the rows that can be nonzero."""
        if self.seen_U is not None and self.words in grads:
            grads[self.words] = grads[self.words][self.seen_U]
        return grads


class _Descent:
    """The backward pass of one source, layer by layer from the top down."""

    def __init__(
        self,
        source: Source,
        own: Sequence[Tensor],
        lowest: Sequence[Tensor],
        everywhere: Sequence[Tensor],
        cuts: int,
    ) -> None:
        self.mine, self.lowest, self.everywhere = own, lowest, everywhere
        passes = {id(cut): cut for cut, _ in source.parts if cut.leaves}  # one pass may have several losses
        self.passes = list(passes.values())
        """Those that have tokens: another process may have them all."""
        self.first = True
        self.cuts = list(range(cuts))
        """The cuts that are still to be passed."""
        self.tops: list[tuple[Tensor, Tensor | None]] = [(loss, None) for _, loss in source.parts]
        """The tensors to differentiate next, each with the gradient that arrives at it."""
        self.own: GradientMap = {}
        self.direct: GradientMap = {}
        """Gradients of parameters below that are used above too: the decoder of mlm is the word embeddings themselves,
        and a position bias is used in every layer."""

    def next(self, shared: Sequence[Tensor]) -> GradientMap:
        """Return the gradients on the shared parameters above the next cut (after the last cut: below it)."""
        first, at, self.first = self.first, self.cuts.pop() if self.cuts else None, False
        below = [] if at is None else [(cut.outs[at], cut.leaves[at]) for cut in self.passes]
        above = () if shared is self.lowest else self.lowest if first else self.everywhere
        grads = _gradients(self.tops, [*shared, *self.mine, *(leaf for _, leaf in below), *above])
        self.direct = _added(self.direct, _of(above, grads))
        self.tops = [(out, grads[leaf]) for out, leaf in below if leaf in grads]
        self.own = _added(self.own, _of(self.mine, grads))
        return _added(_of(shared, grads), self.direct if shared is self.lowest else {})


class _Rows:
    """K gradients as the rows of one matrix, with a column for each element that any of them has."""

    def __init__(self, gradients: Sequence[Mapping[Tensor, Tensor]], device: torch.device) -> None:
        self.has = [set(grads) for grads in gradients]
        self.shapes = {parameter: grad.shape for grads in gradients for parameter, grad in grads.items()}
        size = sum(shape.numel() for shape in self.shapes.values())
        padding = torch.zeros(-size % CHUNK, device=device)
        pieces = []
        for grads in gradients:
            pieces += [grads[p] if p in grads else p.new_zeros(shape) for p, shape in self.shapes.items()]
            pieces.append(padding)
        self.flat_KP = torch.cat([piece.flatten() for piece in pieces]).view(len(gradients), size + len(padding))

    def gram_KK(self) -> Tensor:
        """Inner products, summed over chunks in float64."""
        chunks_CKP = self.flat_KP.unflatten(1, (self.flat_KP.shape[1] // CHUNK, CHUNK)).transpose(0, 1)
        return torch.bmm(chunks_CKP, chunks_CKP.mT).sum(0, dtype=torch.float64)

    def summed(self, weights_K: Tensor, live: Sequence[bool]) -> GradientMap:
        """`sum_k weights[k] g_k`, for the parameters on which a live gradient is defined."""
        reached = set().union(*itertools.compress(self.has, live))
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = (weights_K.to(self.flat_KP) @ self.flat_KP)[: sum(sizes)].split(sizes)
        return {p: part.view(self.shapes[p]) for p, part in zip(self.shapes, parts, strict=True) if p in reached}


def _gradients(tops: Sequence[tuple[Tensor, Tensor | None]], wanted: Sequence[Tensor]) -> GradientMap:
    """Gradients of the trainable tensors that the graph reaches; the graph is freed."""
    tops = [(top, delta) for top, delta in tops if top.requires_grad]
    wanted = [tensor for tensor in wanted if tensor.requires_grad]
    if not tops or not wanted:
        return {}
    grads = torch.autograd.grad([top for top, _ in tops], wanted, [delta for _, delta in tops], allow_unused=True)
    return {tensor: grad for tensor, grad in zip(wanted, grads, strict=True) if grad is not None}


def _of(parameters: Sequence[Tensor], grads: GradientMap) -> GradientMap:
    return {parameter: grads[parameter] for parameter in parameters if parameter in grads}


def _added(one: GradientMap, other: GradientMap) -> GradientMap:
    return one | {key: one[key] + grad if key in one else grad for key, grad in other.items()}
