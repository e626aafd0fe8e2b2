"""A faster encoder for prediction on the CPU, for models without task-specific parts inside the encoder.

It computes the same as `Bert.encode` and `Encoded.pool`, with these optimizations: weights are stored in the layout
that the CPU's kernels use; sequences in a batch have nearly the same length, so that there is almost no padding; each
core works on its own batch, so that cores never wait for each other; if only first tokens are needed, the last layer
computes only these; and equal sequences are computed once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.encoders.bert import Bert, Layer
from polytask.machine import one_core_workers
from polytask.settings import Windows
from polytask.stream import LENGTH_OF_MISSING, Encoded, Pooling, pool_windows
from polytask.text.masking import Ids

MAX_TOKENS = 1024  # per batch: the activations of more tokens do not fit in the core's cache
MIN_TOKENS = 256  # smaller batches are slower per token, and are filled up with shorter sequences
MAX_PADDING = 0.1  # of a row, in batches that are filled up


class Pooled(Encoded):
    """The input of a head if its sequences are already pooled."""

    vectors: Mapping[Pooling, Tensor]
    given_BM: Tensor

    def __init__(self, vectors: Mapping[Pooling, Tensor], given_BM: Tensor) -> None:
        object.__setattr__(self, "vectors", vectors)
        object.__setattr__(self, "given_BM", given_BM)

    def given_options(self) -> Tensor:
        return self.given_BM

    def pool(self, pooling: Pooling) -> Tensor:
        return self.vectors[pooling]

    def over_windows(self, windows_M: npt.NDArray[np.int64], windows: Windows) -> "Pooled":
        """One vector for each text, given the number of sequences that are the windows of each."""
        if windows_M.max(initial=1) == 1:
            return self
        starts_B1 = torch.from_numpy(np.concatenate([[0], windows_M.cumsum()]))
        vectors = {name: pool_windows(x_SD, starts_B1, windows.pool) for name, x_SD in self.vectors.items()}
        return Pooled(vectors, self.given_BM)


class PlainEncoder:
    """A copy of an encoder, valid as long as the encoder's weights do not change.

    With `bf16`, linear layers are computed in bf16, and attention, sums and norms in float32.
    """

    def __init__(self, encoder: Bert, bf16: bool = False) -> None:
        self.encoder = encoder
        self.dtype = torch.bfloat16 if bf16 else torch.float32
        self.layers = [_PlainLayer(layer, self.dtype) for layer in encoder.layers if isinstance(layer, Layer)]
        self.threads = torch.get_num_threads()

    @torch.inference_mode()
    def vectors(
        self, sequences: Sequence[tuple[Sequence[Ids], int]], poolings: Collection[Pooling], options: int = 1
    ) -> Pooled:
        """A float32 vector for each sequence and pooling.

        A sequence is its ids in pieces, and the index at which its second segment starts: see `Packer.sequences`.
        `options` is the number of sequences of an example, if they are options.
        """
        rows, indices = _deduplicate(sequences)
        lengths = np.array([len(ids) for ids, _ in rows])
        all_tokens = "mean" in poolings
        batches = list(_batches(lengths))
        results = self._encode_batches([[rows[i] for i in batch] for batch in batches], all_tokens)
        order_S = torch.from_numpy(np.argsort(np.concatenate(batches))[indices])
        first_SD = torch.cat([first_BD for first_BD, _ in results])[order_S]
        pooled: dict[Pooling, Tensor] = {"first": first_SD}
        if all_tokens:
            pooled["mean"] = torch.cat([mean_BD for _, mean_BD in results])[order_S]
        if "pooler" in poolings:
            pooled["pooler"] = self.encoder.pool(first_SD)
        return Pooled(pooled, torch.from_numpy(lengths[indices] > LENGTH_OF_MISSING).unflatten(0, (-1, options)))

    def _encode_batches(
        self, batches: Sequence[list[tuple[Ids, int]]], all_tokens: bool
    ) -> list[tuple[Tensor, Tensor]]:
        if self.threads == 1 or len(batches) == 1:
            return [self._encode(batch, all_tokens) for batch in batches]
        with one_core_workers(self.threads) as workers:
            return list(workers.map(lambda batch: self._encode(batch, all_tokens), batches))

    @torch.inference_mode()  # the mode belongs to a thread
    def _encode(self, rows: list[tuple[Ids, int]], all_tokens: bool) -> tuple[Tensor, Tensor]:
        """The first tokens and the means of a batch; without `all_tokens`, the first tokens instead of the means."""
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
        h_BLD = encoder.norm(encoder.sum_embeddings(words_BLD, segments_BL, columns_L))
        h_BLD = h_BLD if encoder.project is None else encoder.project(h_BLD)
        for layer in self.layers[:-1]:
            h_BLD = layer.forward(h_BLD, h_BLD, mask_B11L)
        h_BMD = self.layers[-1].forward(h_BLD, h_BLD if all_tokens else h_BLD[:, :1], mask_B11L)
        if mask_B11L is not None and all_tokens:
            return h_BMD[:, 0].clone(), (h_BMD * real_BL[..., None]).sum(1) / lengths_B1
        return h_BMD[:, 0].clone(), h_BMD.mean(1)


class _PlainLayer:
    """Computes the same as `Layer` without adapter and dropout, for some of the tokens."""

    def __init__(self, layer: Layer, dtype: torch.dtype) -> None:
        attention = layer.attention
        self.heads, self.activation, self.dtype = attention.heads, layer.activation, dtype
        self.norms = layer.attention_norm, layer.ffn_norm
        self.query = _Linear([attention.query], dtype)
        self.key_value = _Linear([attention.key, attention.value], dtype)
        self.output = _Linear([attention.output], dtype)
        self.up, self.down = _Linear([layer.up], dtype), _Linear([layer.down], dtype)

    def forward(self, h_BLD: Tensor, queries_BMD: Tensor, mask_B11L: Tensor | None) -> Tensor:
        """The layer's output for the query tokens, which are h_BLD itself or some of its columns."""
        x_BLD = h_BLD.to(self.dtype)
        x_BMD = x_BLD if queries_BMD is h_BLD else queries_BMD.to(self.dtype)
        q_BHMd = self.query(x_BMD).float().unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv_BL2Hd = self.key_value(x_BLD).float().unflatten(-1, (2, self.heads, -1))
        k_BHLd, v_BHLd = kv_BL2Hd.permute(2, 0, 3, 1, 4).unbind(0)
        mixed_BHMd = F.scaled_dot_product_attention(q_BHMd, k_BHLd, v_BHLd, attn_mask=mask_B11L)
        a_BMD = self.norms[0](queries_BMD + self.output(mixed_BHMd.transpose(1, 2).flatten(2).to(self.dtype)))
        y_BMD = self.down(self.activation(self.up(a_BMD.to(self.dtype))))
        out_BMD: Tensor = self.norms[1](a_BMD + y_BMD)
        return out_BMD


class _Linear:
    """Linear layers with the same input as one matmul, with weights in oneDNN's layout if oneDNN is available."""

    def __init__(self, maps: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        self.weight = torch.cat([layer.weight.detach() for layer in maps]).to(dtype)
        self.bias = torch.cat([layer.bias.detach() for layer in maps]).to(dtype)
        self.packed = torch.backends.mkldnn.is_available()
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return y
        return F.linear(x, self.weight, self.bias)


def _deduplicate(sequences: Sequence[tuple[Sequence[Ids], int]]) -> tuple[list[tuple[Ids, int]], list[int]]:
    """The different sequences, and for each sequence its index among them."""
    index_of: dict[tuple[bytes, int], int] = {}
    rows: list[tuple[Ids, int]] = []
    indices = []
    for pieces, start in sequences:
        ids = np.concatenate(pieces, dtype=np.int64)
        index = index_of.setdefault((ids.tobytes(), start), len(rows))
        if index == len(rows):
            rows.append((ids, start))
        indices.append(index)
    return rows, indices


def _batches(lengths_S: Ids) -> Iterator[Ids]:
    """The indices of each batch: sequences of the same length, or of nearly the same, the longest first."""
    order_S = np.argsort(-lengths_S, kind="stable")
    shorter_S = -lengths_S[order_S]
    start = 0
    while start < len(order_S):
        longest = -shorter_S[start]
        most = max(1, MAX_TOKENS // longest)
        count = int(np.searchsorted(shorter_S[start : start + most], -longest, side="right"))
        if count * longest < MIN_TOKENS:
            count = int(np.searchsorted(shorter_S[start : start + most], -(1 - MAX_PADDING) * longest, side="right"))
        yield order_S[start : start + count]
        start += count
