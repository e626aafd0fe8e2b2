"""A faster encoder for prediction on the CPU, for models without task-specific parts inside the encoder.

It computes the same as `Bert.encode` and `Encoded.pool`, with these optimizations: weights are stored in the layout
that the CPU's kernels use; only attention pads sequences to the same length, and those of a batch have similar lengths;
with many sequences, each core works on its own batches, so that cores never wait for each other; if only first tokens
are needed, the last layer computes only these; and equal sequences are computed once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
MIN_TOKENS = 256  # per batch of one core: smaller ones are slower per token, and are filled up with shorter sequences
MANY_TOKENS = 4096  # from here on each core has its own batches; before, starting threads for it takes too long
SIZE_STEP = 16  # sizes of batches of different lengths are multiples of it: oneDNN compiles a kernel for each size
SHORTEST = 0.5  # of the longest sequence, in batches that are filled up: attention pads to the longest


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
        many = self.threads > 1 and int(lengths.sum()) >= MANY_TOKENS
        batches = list(_batches(lengths, MIN_TOKENS if many else MAX_TOKENS))
        results = self._encode_batches([[rows[i] for i in batch] for batch in batches], all_tokens, many)
        order_S = torch.from_numpy(np.argsort(np.concatenate(batches))[indices])
        first_SD = torch.cat([first_BD for first_BD, _ in results])[order_S]
        pooled: dict[Pooling, Tensor] = {"first": first_SD}
        if all_tokens:
            pooled["mean"] = torch.cat([mean_BD for _, mean_BD in results])[order_S]
        if "pooler" in poolings:
            pooled["pooler"] = self.encoder.pool(first_SD)
        return Pooled(pooled, torch.from_numpy(lengths[indices] > LENGTH_OF_MISSING).unflatten(0, (-1, options)))

    def _encode_batches(
        self, batches: Sequence[list[tuple[Ids, int]]], all_tokens: bool, one_core_each: bool
    ) -> list[tuple[Tensor, Tensor]]:
        if not one_core_each:
            return [self._encode(batch, all_tokens) for batch in batches]
        with one_core_workers(self.threads) as workers:
            return list(workers.map(lambda batch: self._encode(batch, all_tokens), batches))

    @torch.inference_mode()  # the mode belongs to a thread
    def _encode(self, rows: list[tuple[Ids, int]], all_tokens: bool) -> tuple[Tensor, Tensor]:
        """The first tokens and the means of a batch; without `all_tokens`, the first tokens instead of the means."""
        count, rows = len(rows), _filled_up(rows)
        padding = _Padding.of([len(ids) for ids, _ in rows])
        ids_T = torch.from_numpy(np.concatenate([ids for ids, _ in rows]))
        columns_T = torch.from_numpy(np.concatenate([np.arange(len(ids)) for ids, _ in rows]))
        segments_T = torch.from_numpy(np.concatenate([np.arange(len(ids)) >= start for ids, start in rows])).long()
        encoder = self.encoder
        h_TD = encoder.norm(encoder.sum_embeddings(encoder.words(ids_T), segments_T, columns_T))
        h_TD = h_TD if encoder.project is None else encoder.project(h_TD)
        for layer in self.layers[:-1]:
            h_TD = layer.forward(h_TD, padding)
        if not all_tokens:
            first_BD = self.layers[-1].forward(h_TD, padding, only_first=True)
            return first_BD[:count], first_BD[:count]
        h_TD = self.layers[-1].forward(h_TD, padding)
        sums_BD = padding.rows(h_TD).sum(1)
        return h_TD[padding.first_B[:count]], (sums_BD / padding.lengths_B[:, None])[:count]


@dataclass(frozen=True)
class _Padding:
    """Where the tokens of a batch are in rows of the same length."""

    lengths_B: Tensor
    first_B: Tensor
    """The first token of each sequence."""
    width: int
    places_T: Tensor | None
    """The place of each token in the rows, one after another; None if all sequences have the same length."""
    mask_B11L: Tensor | None
    """Which places have a token."""

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "_Padding":
        lengths_B, width = torch.tensor(lengths), max(lengths)
        first_B = lengths_B.cumsum(0) - lengths_B
        if min(lengths) == width:
            return cls(lengths_B, first_B, width, None, None)
        real_BL = torch.arange(width) < lengths_B[:, None]
        return cls(lengths_B, first_B, width, real_BL.flatten().nonzero()[:, 0], real_BL[:, None, None])

    def rows(self, x_TD: Tensor) -> Tensor:
        """The tokens as rows, with zeros behind those of shorter sequences: [B, L, D]."""
        if self.places_T is not None:
            padded_ND = x_TD.new_zeros(len(self.lengths_B) * self.width, x_TD.shape[1])
            x_TD = padded_ND.index_copy_(0, self.places_T, x_TD)
        x_BLD: Tensor = x_TD.unflatten(0, (-1, self.width))
        return x_BLD

    def tokens(self, x_BLD: Tensor) -> Tensor:
        """The rows as tokens, without padding: [T, D]."""
        x_ND = x_BLD.flatten(0, 1)
        return x_ND if self.places_T is None else x_ND[self.places_T]


class _PlainLayer:
    """Computes the same as `Layer` without adapter and dropout, for all tokens or the first one of each sequence."""

    def __init__(self, layer: Layer, dtype: torch.dtype) -> None:
        attention = layer.attention
        self.heads, self.activation, self.dtype = attention.heads, layer.activation, dtype
        self.norms = layer.attention_norm, layer.ffn_norm
        self.query = _Linear([attention.query], dtype)
        self.key_value = _Linear([attention.key, attention.value], dtype)
        self.output = _Linear([attention.output], dtype)
        self.up, self.down = _Linear([layer.up], dtype), _Linear([layer.down], dtype)

    def forward(self, h_TD: Tensor, padding: _Padding, only_first: bool = False) -> Tensor:
        """The layer's output for all tokens, [T, D], or for first tokens, [B, D]."""
        h_MD = h_TD[padding.first_B] if only_first else h_TD
        q_MD, kv_TE = self.query(h_MD.to(self.dtype)).float(), self.key_value(h_TD.to(self.dtype)).float()
        q_BMD = q_MD[:, None] if only_first else padding.rows(q_MD)
        q_BHMd = q_BMD.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k_BHLd, v_BHLd = padding.rows(kv_TE).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed_BHMd = F.scaled_dot_product_attention(q_BHMd, k_BHLd, v_BHLd, attn_mask=padding.mask_B11L)
        mixed_BMD = mixed_BHMd.transpose(1, 2).flatten(2)
        mixed_MD = mixed_BMD[:, 0] if only_first else padding.tokens(mixed_BMD)
        a_MD = self.norms[0](h_MD + self.output(mixed_MD.to(self.dtype)))
        y_MD = self.down(self.activation(self.up(a_MD.to(self.dtype))))
        out_MD: Tensor = self.norms[1](a_MD + y_MD)
        return out_MD


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


def _filled_up(rows: list[tuple[Ids, int]]) -> list[tuple[Ids, int]]:
    """The sequences of a batch, with another one of zeros behind them if their sum is no multiple of SIZE_STEP.

    Batches of sequences of the same length have few different sizes anyway.
    """
    missing = -sum(len(ids) for ids, _ in rows) % SIZE_STEP
    if not missing or len({len(ids) for ids, _ in rows}) == 1:
        return rows
    return [*rows, (np.zeros(missing, np.int64), missing)]


def _batches(lengths_S: Ids, enough: int) -> Iterator[Ids]:
    """The indices of each batch, the longest sequences first: of the same length, if these have enough tokens, else
    also shorter ones."""
    order_S = np.argsort(-lengths_S, kind="stable")
    sorted_S = lengths_S[order_S]
    start = 0
    while start < len(order_S):
        rest_S = sorted_S[start:]
        count = min(int((rest_S == rest_S[0]).sum()), max(1, MAX_TOKENS // int(rest_S[0])))
        if count * rest_S[0] < enough:
            similar_S = rest_S[rest_S >= SHORTEST * rest_S[0]]
            count = max(1, int(np.searchsorted(similar_S.cumsum(), enough, side="right")))
        yield order_S[start : start + count]
        start += count
