"""A tiny model with a task of each kind, random streams of its tasks, and the context of regularizers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext
from polytask.encoders.attention import attend
from polytask.encoders.bert import Bert, BertShape
from polytask.heads import HEADS
from polytask.model import MultiTaskModel
from polytask.regularizers.base import RegularizerContext
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.types import YES_NO, LabelSpace

SPACES = {
    "topic": LabelSpace("classes", ("a", "b", "c")),
    "same": YES_NO,
    "alike": LabelSpace("score", low=0, high=5),
}
"""One text, a pair in one sequence, a pair in two."""
PLAIN_HEADS = {"topic": "linear", "same": "cross", "alike": "bi"}

MakeModel = Callable[..., MultiTaskModel]
MakeStream = Callable[..., Stream]
MakeContext = Callable[..., RegularizerContext]


@pytest.fixture
def tiny_model() -> MakeModel:
    """tiny_model(adapter, dropout, heads, options of the adapter): in train mode, the same weights every time."""

    def make(
        adapter: str = "none",
        dropout: float = 0.1,
        heads: Mapping[str, str] = PLAIN_HEADS,
        options: Mapping[str, Any] | None = None,
    ) -> MultiTaskModel:
        torch.manual_seed(0)
        shape = BertShape(
            layers=2,
            hidden=16,
            heads=2,
            ffn=32,
            vocabulary=60,
            positions=32,
            dropout=dropout,
            attention_dropout=dropout,
            initializer_range=0.2,  # with BERT's 0.02 the outputs of so small a model hardly depend on its input
        )
        sizes = (shape.layers, shape.hidden, shape.heads, shape.ffn)
        context = AdapterContext(tuple(SPACES), *sizes, dropout, attend=attend)
        given: dict[str, Any] = {name: {} if name == "cosine" else {"dropout": dropout} for name in heads.values()}
        built = {
            task: HEADS[heads[task]](task, space, shape.hidden, **given[heads[task]]) for task, space in SPACES.items()
        }
        model = MultiTaskModel(Bert(shape), ADAPTERS[adapter](context, **(options or {})), built)
        model.adapter.start_from(model.encoder)
        with torch.no_grad():
            for parameter in model.heads.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
        return model.train()

    return make


@pytest.fixture
def tiny_stream() -> MakeStream:
    """tiny_stream(tasks, count, seed, copies, token_budget, heads): `count` examples of each task, with labels.

    Texts and labels are random. `copies` repeats each example; a token budget fills the stream up with filler.
    """

    def make(
        tasks: Sequence[str] = tuple(SPACES),
        count: int = 4,
        seed: int = 0,
        copies: int = 1,
        token_budget: int | None = None,
        heads: Mapping[str, str] = PLAIN_HEADS,
    ) -> Stream:
        parts = []
        for task in tasks:
            rng = np.random.default_rng([seed, list(SPACES).index(task)])
            texts = [
                tuple(rng.integers(5, 60, rng.integers(2, 9)) for _ in range(1 if task == "topic" else 2))
                for _ in range(count)
            ]
            gold: Any = {
                "topic": rng.integers(0, 3, count),
                "same": rng.integers(0, 2, count).astype(np.float32),
                "alike": rng.random(count).astype(np.float32),
            }[task]
            parts.append(Part(task, texts * copies, HEADS[heads[task]].reading, np.tile(gold, copies)))
        return Packer(tuple(SPACES), 2, 3, 24).pack(parts, token_budget)

    return make


@pytest.fixture
def make_context() -> MakeContext:
    """make_context(model, steps, **weights of tasks): weights left out are 1."""

    def make(model: MultiTaskModel, steps: int = 100, **weights: float) -> RegularizerContext:
        return RegularizerContext(model, {**dict.fromkeys(SPACES, 1.0), **weights}, steps)

    return make


@pytest.fixture
def check_gradient() -> Callable[[MultiTaskModel, Callable[[], Tensor]], None]:
    """check_gradient(model, value): the gradient of value() against central differences, on a float64 model."""

    def check(model: MultiTaskModel, value: Callable[[], Tensor], h: float = 1e-5) -> None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(value(), parameters, allow_unused=True)
        for seed in range(3):
            torch.manual_seed(seed)
            direction = [torch.randn_like(p) for p in parameters]
            expected = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True) if g is not None)
            values = []
            with torch.no_grad():
                for step in (h, -2 * h, h):  # forward, to the other side, and back
                    for p, d in zip(parameters, direction, strict=True):
                        p += step * d
                    values.append(value())
            torch.testing.assert_close((values[0] - values[1]) / (2 * h), expected, rtol=1e-5, atol=0)

    return check
