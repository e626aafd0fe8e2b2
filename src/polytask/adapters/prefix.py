"""Extra keys and values of each task in every attention."""

import torch
from torch import Tensor

from polytask.adapters.base import Adapter, AdapterContext, Attend, LayerAdapter, Layers, on_layers
from polytask.adapters.per_task import TaskVectors, normal
from polytask.settings import Size
from polytask.stream import Layout


class PrefixLayer(LayerAdapter):
    def __init__(self, context: AdapterContext, length: int) -> None:
        super().__init__()
        self.length = length
        self.prefixes = TaskVectors(context.tasks, dict.fromkeys(("key", "value"), length * context.hidden), normal)

    def attend(self, base: Attend, q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout) -> Tensor:
        # The prefix becomes `length` positions before each sequence. Their queries are zeros, their outputs unused.
        longer = layout.with_prefix(self.length)
        tokens_T, added_N = self.places(q_THd.shape[0], layout, longer)
        shape = (added_N.shape[0], *q_THd.shape[1:])
        total = tokens_T.shape[0] + added_N.shape[0]

        def lengthen(x_THd: Tensor, prefix_SD: Tensor | None = None) -> Tensor:
            out_THd = x_THd.new_zeros(total, *x_THd.shape[1:]).index_copy(0, tokens_T, x_THd)
            return out_THd if prefix_SD is None else out_THd.index_copy(0, added_N, prefix_SD.view(shape).to(x_THd))

        keys_SD, values_SD = (self.per_sequence(site, layout) for site in ("key", "value"))
        out_THd = base(lengthen(q_THd), lengthen(k_THd, keys_SD), lengthen(v_THd, values_SD), longer)
        return out_THd.index_select(0, tokens_T)

    def places(self, tokens: int, layout: Layout, longer: Layout) -> tuple[Tensor, Tensor]:
        """The positions of the stream's tokens, and those of the prefixes, in the longer stream."""
        borders_S1, device = layout.cu_seqlens_S1, layout.cu_seqlens_S1.device
        tokens_T = torch.arange(tokens, dtype=borders_S1.dtype, device=device)
        added_SP = longer.cu_seqlens_S1[:-1, None] + torch.arange(self.length, device=device)
        return tokens_T + self.length * (layout.sequence_indices(tokens) + 1), added_SP.flatten()

    def per_sequence(self, site: str, layout: Layout) -> Tensor:
        """[S, length * D]: the prefix of each sequence's task; zeros for filler sequences."""
        pieces, end = [], 0
        for k in layout.tasks:
            first, last = layout.sequence_ranges[k]
            prefix_D = self.prefixes.vector(site, k)
            pieces += [prefix_D.new_zeros(first - end, len(prefix_D)), prefix_D.expand(last - first, -1)]
            end = last
        pieces.append(pieces[0].new_zeros(layout.cu_seqlens_S1.shape[0] - 1 - end, pieces[0].shape[1]))
        return torch.cat(pieces)


class Prefix(Adapter):
    """Prefix tuning: `softmax(q [P_k; k]' / sqrt(d)) [P_v; v]` in every layer.

    P_k and P_v are `length` keys and values of the task and the layer, which every token of the task's sequences
    attends to; they are not positions of the text. They start from a normal distribution with a deviation of 0.02, so
    outputs differ from plain BERT's at the start. Designed for frozen encoders (`train.parts: adapters`).
    Paper: Li & Liang, "Prefix-Tuning", 2021. There an MLP computes the prefixes during training; here they are free
    parameters, as in P-tuning v2 (Liu et al. 2022).
    """

    plain_at_start = False

    def __init__(self, context: AdapterContext, *, length: Size = 10, layers: Layers = None) -> None:
        super().__init__(
            LayerAdapter(), on_layers(context, layers, lambda: PrefixLayer(context, length)), context.tasks
        )
