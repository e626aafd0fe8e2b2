"""What the encoder computes for one text: the attention of every head, and the hidden states of every layer.

Knows models and token ids, no files and no pages.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polytask.model import MultiTaskModel
from polytask.modes import eval_mode
from polytask.stream import Layout
from polytask.text.packing import InputFormat, Packer
from polytask.text.texts import Texts

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TextMaps:
    """The arrays of one sequence of T tokens. transformers' BertModel returns the same for the same weights."""

    tokens: tuple[str, ...]
    """With the special tokens."""
    attention: Floats
    """[layers, heads, T, T]: how much each token (row) takes from each token (column); rows sum to 1. An adapter that
    adds keys, such as prefix, adds columns on the left."""
    hidden_states: Floats
    """[layers + 1, T, hidden]: the output of the embeddings and of each layer."""

    @property
    def activations(self) -> Floats:
        """[layers + 1, T]: the norm of each hidden state."""
        norms: Floats = np.linalg.norm(self.hidden_states, axis=-1)
        return norms

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the columns of `attention`."""
        added = self.attention.shape[-1] - len(self.tokens)
        return (*(f"prefix {number}" for number in range(1, added + 1)), *self.tokens)


@torch.inference_mode()
def text_maps(
    model: MultiTaskModel, task: str, texts: Texts, packer: Packer, token: Callable[[int], str]
) -> tuple[TextMaps, ...]:
    """Computes the maps of one example of a task, for each sequence that the task's head reads.

    A pair is one sequence for cross heads, two for heads that read the texts separately, and three for joint heads: the
    pair, the first text and the second text. `token` returns the letters of a token id.
    """
    assert len(texts) == 1
    form = InputFormat(model.head(task).reading)
    stream = packer.pack([packer.part(task, texts, form)])
    layout, ids = stream.layout, stream.token_ids_T.tolist()
    stream = stream.to(model.device)
    with eval_mode(model):
        # Without the head: that of a masked language model needs a text with masked tokens.
        states = model.states(stream, model.embed_words(stream))
        weights = [_attention(model, index, h_TD, layout.to(model.device)) for index, h_TD in enumerate(states[:-1])]
    hidden_LTD = torch.stack(states).float().cpu().numpy()
    borders = layout.cu_seqlens_S1.tolist()
    maps = []
    for sequence, (start, end) in enumerate(pairwise(borders)):
        # Rows of an adapter's own positions come first and are nobody's.
        attention = [layer[sequence][:, start - end :].float().cpu().numpy() for layer in weights]
        tokens = tuple(token(i) for i in ids[start:end])
        maps.append(TextMaps(tokens, _stacked(attention), hidden_LTD[:, start:end]))
    return tuple(maps)


def _attention(model: MultiTaskModel, index: int, h_TD: Tensor, layout: Layout) -> list[Tensor]:
    """softmax(q k' / sqrt(d)) of each sequence in a layer, [heads, T, T], given the layer's input."""
    encoder, slots = model.encoder, model.adapter.layer(index)
    q_THd, k_THd, v_THd = encoder.queries_keys_values(index, h_TD, layout, slots)
    bias = encoder.score_bias(index)
    found: list[Tensor] = []

    def attend(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, layout: Layout, *more: Any) -> Tensor:
        outs, borders = [], layout.cu_seqlens_S1.tolist()
        for start, end in pairwise(borders):
            q_HTd, k_HTd, v_HTd = (x_THd[start:end].transpose(0, 1) for x_THd in (q_THd, k_THd, v_THd))
            scores_HTT = q_HTd @ k_HTd.mT / math.sqrt(q_HTd.shape[-1])
            found.append((scores_HTT if bias is None else scores_HTT + bias(end - start, layout.prefix)).softmax(-1))
            outs.append((found[-1] @ v_HTd).transpose(0, 1))
        return torch.cat(outs)

    slots.attend(attend, q_THd, k_THd, v_THd, layout)  # an adapter may change what attends to what
    return found


def _stacked(layers: list[Floats]) -> Floats:
    """[layers, heads, T, columns]; a layer without the columns that an adapter adds to others gets zeros there."""
    widest = max(layer.shape[-1] for layer in layers)
    return np.stack([np.pad(layer, ((0, 0), (0, 0), (widest - layer.shape[-1], 0))) for layer in layers])
