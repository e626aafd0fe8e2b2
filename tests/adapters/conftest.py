"""A small encoder's context, a stream of two tasks, random adapters, and the same encoder in transformers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from polytask.adapters.base import Adapter, AdapterContext
from polytask.encoders.attention import attend
from polytask.encoders.bert import Bert, BertShape
from polytask.pretrained.config import config_of
from polytask.pretrained.weights import hugging_face_name
from polytask.stream import Layout, Stream
from polytask.text.packing import Packer, Part

SHAPE = BertShape(layers=2, hidden=8, heads=2, ffn=16, vocabulary=40, positions=16)


@pytest.fixture
def context() -> AdapterContext:
    return AdapterContext(("a", "b"), layers=2, hidden=8, heads=2, ffn=16, dropout=0.1, attend=attend)


@pytest.fixture
def stream() -> Stream:
    """One sequence of task a, two of task b."""
    parts = [Part("a", [(np.arange(5, 9),)]), Part("b", [(np.arange(5, 7),), (np.arange(5, 11),)])]
    return Packer(("a", "b"), 2, 3, 16).pack(parts)


@pytest.fixture
def layout(stream: Stream) -> Layout:
    return stream.layout


@pytest.fixture
def shaken() -> Callable[[Adapter], Adapter]:
    def random(adapter: Adapter) -> Adapter:
        torch.manual_seed(3)
        for parameter in adapter.parameters():
            nn.init.normal_(parameter, std=0.5)
        return adapter

    return random


@dataclass
class Twins:
    """An encoder, and copies of it as transformers' BertModel."""

    encoder: Bert
    stream: Stream

    def theirs(self) -> Any:
        model = BertModel(BertConfig(**config_of(SHAPE))).eval().requires_grad_(False)
        own = {hugging_face_name(name): tensor.clone() for name, tensor in self.encoder.state_dict().items()}
        model.load_state_dict(own)
        return model

    @torch.no_grad()
    def sequences(self, adapter: Adapter) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each sequence, its task's index, its token ids, and our hidden states with this adapter."""
        lengths = list(self.stream.layout.lengths)
        states = self.encoder.encode(self.stream, adapter.eval()).split(lengths)
        yield from zip((0, 1, 1), self.stream.token_ids_T.split(lengths), states, strict=True)


@pytest.fixture
def twins(stream: Stream) -> Twins:
    torch.manual_seed(0)
    encoder = Bert(SHAPE).eval()
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return Twins(encoder, stream)
