"""The encoder when nothing in it is task-specific, laid out for answering on a CPU: sequences in, one vector each out.

The numbers of `Bert.encode` and `Encoded.pool`, faster: weights are put once into the form that the processor's kernels
want; batches are rows of nearly one length, so that attention copies and pads next to nothing; each core works on a
batch of its own instead of all on one, so that they never wait for each other; where only first tokens are asked for,
the last layer works on these alone; and what is asked twice is computed once. Knows no task, no head and no text.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.encoders.bert import Bert, Layer
from polytask.stream import Encoded, Pooling
from polytask.text.masking import Ids

TOKENS = 1024  # of a batch, at most: what is computed of more does not stay in the core's own cache
FEW_TOKENS = 256  # a batch of fewer, which takes longer for each, is filled up with shorter sequences
WASTE = 0.1  # of a row that may be padding then


class Pooled(Encoded):
    """What a head sees when its sequences have become vectors already."""

    vectors: Mapping[Pooling, Tensor]

    def __init__(self, vectors: Mapping[Pooling, Tensor]) -> None:
        object.__setattr__(self, "vectors", vectors)

    def pool(self, pooling: Pooling) -> Tensor:
        return self.vectors[pooling]


class PlainEncoder:
    """A copy of an encoder, for as long as its weights stay as they are.

    With `bf16`, matrix products and attention are computed in it, and sums and norms in float32.
    """

    def __init__(self, encoder: Bert, bf16: bool = False) -> None:
        self.encoder = encoder
        self.dtype = torch.bfloat16 if bf16 else torch.float32
        self.layers = [_PlainLayer(layer, self.dtype) for layer in encoder.layers if isinstance(layer, Layer)]
        self.threads = torch.get_num_threads()

    @torch.inference_mode()
    def vectors(self, sequences: Sequence[tuple[Sequence[Ids], int]], poolings: Collection[Pooling]) -> Pooled:
        """One float32 vector for each sequence, pooled in each of these ways.

        A sequence is its ids in pieces and the place where its second segment starts, as `Packer.sequences` gives it.
        """
        rows, places = _without_copies(sequences)
        lengths = np.array([len(ids) for ids, _ in rows])
        everywhere = "mean" in poolings
        batches = list(_batches(lengths))
        found = self._each_on_a_core([[rows[i] for i in batch] for batch in batches], everywhere)
        order_S = torch.from_numpy(np.argsort(np.concatenate(batches))[places])
        first_SD = torch.cat([first_BD for first_BD, _ in found])[order_S]
        pooled: dict[Pooling, Tensor] = {"first": first_SD}
        if everywhere:
            pooled["mean"] = torch.cat([mean_BD for _, mean_BD in found])[order_S]
        if "pooler" in poolings:
            pooled["pooler"] = self.encoder.pool(first_SD)
        return Pooled(pooled)

    def _each_on_a_core(
        self, batches: Sequence[list[tuple[Ids, int]]], everywhere: bool
    ) -> list[tuple[Tensor, Tensor]]:
        if self.threads == 1 or len(batches) == 1:
            return [self._encode(batch, everywhere) for batch in batches]
        try:
            with ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,)) as cores:
                return list(cores.map(lambda batch: self._encode(batch, everywhere), batches))
        finally:
            torch.set_num_threads(self.threads)  # what a thread sets is what later ones start with

    @torch.inference_mode()  # of this thread
    def _encode(self, rows: list[tuple[Ids, int]], everywhere: bool) -> tuple[Tensor, Tensor]:
        """First tokens and means; without `everywhere`, first tokens in place of means."""
        lengths_B1 = torch.tensor([[len(ids)] for ids, _ in rows])
        width = int(lengths_B1.max())
        ids_BL = np.zeros((len(rows), width), np.int64)
        for row_L, (ids, _) in zip(ids_BL, rows, strict=True):
            row_L[: len(ids)] = ids
        columns_L = torch.arange(width)
        segments_BL = (columns_L >= torch.tensor([[start] for _, start in rows])).long()
        real_BL = columns_L < lengths_B1
        mask_B11L = None if bool(real_BL.all()) else real_BL[:, None, None]
        encoder = self.encoder
        words_BLD = encoder.words(torch.from_numpy(ids_BL))
        h_BLD = encoder.norm(words_BLD + encoder.segments(segments_BL) + encoder.positions(columns_L))
        for layer in self.layers[:-1]:
            h_BLD = layer.forward(h_BLD, h_BLD, mask_B11L)
        h_BMD = self.layers[-1].forward(h_BLD, h_BLD if everywhere else h_BLD[:, :1], mask_B11L)
        if mask_B11L is not None and everywhere:
            return h_BMD[:, 0].clone(), (h_BMD * real_BL[..., None]).sum(1) / lengths_B1
        return h_BMD[:, 0].clone(), h_BMD.mean(1)


class _PlainLayer:
    """What `Layer` computes without adapter and dropout, for the tokens that are asked for."""

    def __init__(self, layer: Layer, dtype: torch.dtype) -> None:
        attention = layer.attention
        self.heads, self.activation, self.dtype = attention.heads, layer.activation, dtype
        self.norms = layer.attention_norm, layer.ffn_norm
        self.query = _Linear([attention.query], dtype)
        self.key_value = _Linear([attention.key, attention.value], dtype)
        self.output = _Linear([attention.output], dtype)
        self.up, self.down = _Linear([layer.up], dtype), _Linear([layer.down], dtype)

    def forward(self, h_BLD: Tensor, asked_BMD: Tensor, mask_B11L: Tensor | None) -> Tensor:
        """The output at the tokens asked for, which are h_BLD itself or some of its columns."""
        x_BLD = h_BLD.to(self.dtype)
        x_BMD = x_BLD if asked_BMD is h_BLD else asked_BMD.to(self.dtype)
        q_BHMd = self.query(x_BMD).float().unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv_BL2Hd = self.key_value(x_BLD).float().unflatten(-1, (2, self.heads, -1))
        k_BHLd, v_BHLd = kv_BL2Hd.permute(2, 0, 3, 1, 4).unbind(0)
        mixed_BHMd = F.scaled_dot_product_attention(q_BHMd, k_BHLd, v_BHLd, attn_mask=mask_B11L)
        a_BMD = self.norms[0](asked_BMD + self.output(mixed_BHMd.transpose(1, 2).flatten(2).to(self.dtype)))
        y_BMD = self.down(self.activation(self.up(a_BMD.to(self.dtype))))
        out_BMD: Tensor = self.norms[1](a_BMD + y_BMD)
        return out_BMD


class _Linear:
    """Linear maps of one input side by side, their weights laid out for oneDNN where there is oneDNN."""

    def __init__(self, maps: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        self.weight = torch.cat([one.weight.detach() for one in maps]).to(dtype)
        self.bias = torch.cat([one.bias.detach() for one in maps]).to(dtype)
        self.packed = torch.backends.mkldnn.is_available()
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return y
        return F.linear(x, self.weight, self.bias)


def _without_copies(sequences: Sequence[tuple[Sequence[Ids], int]]) -> tuple[list[tuple[Ids, int]], list[int]]:
    """Every different sequence once, and for each sequence its place among them."""
    found: dict[tuple[bytes, int], int] = {}
    rows: list[tuple[Ids, int]] = []
    places = []
    for pieces, start in sequences:
        ids = np.concatenate(pieces, dtype=np.int64)
        place = found.setdefault((ids.tobytes(), start), len(rows))
        if place == len(rows):
            rows.append((ids, start))
        places.append(place)
    return rows, places


def _batches(lengths_S: Ids) -> Iterator[Ids]:
    """Sequences of one length, or of nearly one where those are few; the longest first."""
    order_S = np.argsort(-lengths_S, kind="stable")
    shorter_S = -lengths_S[order_S]
    start = 0
    while start < len(order_S):
        longest = -shorter_S[start]
        most = max(1, TOKENS // longest)
        count = int(np.searchsorted(shorter_S[start : start + most], -longest, side="right"))
        if count * longest < FEW_TOKENS:
            count = int(np.searchsorted(shorter_S[start : start + most], -(1 - WASTE) * longest, side="right"))
        yield order_S[start : start + count]
        start += count
