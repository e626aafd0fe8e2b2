"""Every adapter of the table: plain BERT at the start, the trunk's names untouched, one stream or several alike."""

import numpy as np
import pytest
import torch

from polytask.adapters import ADAPTERS
from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter
from polytask.text.packing import Packer, Part
from polytask.trunk.bert import Bert, BertShape
from polytask.types import Stream

SHAPE = BertShape(layers=3, hidden=32, heads=4, ffn=64, vocabulary=100, positions=32)
CONTEXT = AdapterContext(("one", "two"), SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn, SHAPE.dropout)
PACKER = Packer(("one", "two"), 2, 3, 32)


def part(task: str, seed: int) -> Part:
    rng = np.random.default_rng(seed)
    return Part(task, [(rng.integers(5, 100, rng.integers(1, 12)),) for _ in range(5)])


def trunk() -> Bert:
    torch.manual_seed(0)
    return Bert(SHAPE).eval()


def encoded(bert: Bert, adapter: Adapter, *parts: Part) -> tuple[Stream, torch.Tensor]:
    stream = PACKER.pack(parts)
    with torch.inference_mode():
        return stream, bert.encode(stream, adapter.eval())


@pytest.mark.parametrize("name", ADAPTERS)
def test_starts_as_plain_bert_bit_for_bit(name: str) -> None:
    identity = Adapter(LayerAdapter(), (LayerAdapter() for _ in range(SHAPE.layers)))
    parts = [part("one", 1), part("two", 2)]
    assert torch.equal(encoded(trunk(), ADAPTERS[name](CONTEXT), *parts)[1], encoded(trunk(), identity, *parts)[1])


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_trunk_keeps_its_names_and_the_adapter_has_its_own(name: str) -> None:
    bert = trunk()
    before = set(bert.state_dict())
    adapter = ADAPTERS[name](CONTEXT)
    assert set(bert.state_dict()) == before
    own = [p for task in CONTEXT.tasks for p in adapter.task_parameters(task)]
    assert len({id(p) for p in own}) == len(own)
    assert {id(p) for p in own} <= {id(p) for p in adapter.parameters()}


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_mixed_stream_is_the_same_as_one_task_at_a_time(name: str) -> None:
    bert, adapter = trunk(), ADAPTERS[name](CONTEXT)
    stream, together = encoded(bert, adapter, part("one", 1), part("two", 2))
    for k, task in enumerate(CONTEXT.tasks):
        alone = encoded(bert, adapter, part(task, k + 1))[1]
        torch.testing.assert_close(together[slice(*stream.layout.token_ranges[k])], alone, atol=1e-5, rtol=0)
