"""Every task computes as a BERT of its own, which starts as a copy of the shared one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext
from polytask.adapters.own_encoder import OwnEncoder
from polytask.adapters.stack import Stack
from polytask.build import make_model
from polytask.encoders.bert import Bert, BertShape
from polytask.settings import MethodChoice, TaskSpec
from polytask.text.packing import Packer, Part
from polytask.types import YES_NO, UserError

SHAPE = BertShape(layers=2, hidden=8, heads=2, ffn=16, vocabulary=40, positions=16, initializer_range=0.3)
PACKER = Packer(("a", "b"), 2, 3, 16)
PART_A = Part("a", [(np.arange(5, 11),), (np.arange(9, 12),)])
PART_B = Part("b", [(np.arange(20, 28),)])
# Where the encoder keeps what the slots name.
PLACES = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "attention_output": "attention.output",
    "up": "up",
    "down": "down",
}


def encoder() -> Bert:
    torch.manual_seed(0)
    bert = Bert(SHAPE).eval()
    for parameter in bert.parameters():  # norms and biases too: at one and zero a lost copy would not be seen
        parameter.data += 0.1 * torch.randn_like(parameter)
    return bert


def as_bert(adapter: OwnEncoder, k: int) -> Bert:
    """Task k's layers in an encoder by themselves, put there by the names of the state dict."""
    bert, saved = encoder(), adapter.state_dict()
    state = bert.state_dict()
    for layer in range(SHAPE.layers):
        for site, place in PLACES.items():
            for ours, theirs in [("weights", "weight"), ("biases", "bias")]:
                state[f"layers.{layer}.{place}.{theirs}"] = saved[f"layers.{layer}.maps.{site}.{ours}.{k}"]
        for site in ("attention", "ffn"):
            for ours, theirs in [("scales", "weight"), ("shifts", "bias")]:
                state[f"layers.{layer}.{site}_norm.{theirs}"] = saved[f"layers.{layer}.{ours}.{site}.vectors.{k}"]
    bert.load_state_dict(state)
    return bert


def test_starts_as_bit_equal_copies(context: AdapterContext) -> None:
    bert, adapter = encoder(), OwnEncoder(context)
    adapter.start_from(bert)
    for k in range(2):
        for name, tensor in as_bert(adapter, k).state_dict().items():
            assert torch.equal(tensor, bert.state_dict()[name]), name
    with torch.no_grad():
        adapter.task_parameters("a")[0].zero_()  # copies, of each other too
    assert bert.linear(0, "query").weight.any()
    assert adapter.task_parameters("b")[0].any()


def test_each_task_is_a_bert_of_its_own(context: AdapterContext, shaken: Any) -> None:
    bert, adapter = encoder(), shaken(OwnEncoder(context)).eval()
    plain = ADAPTERS["none"](context)
    stream = PACKER.pack([PART_A, PART_B])
    with torch.inference_mode():
        both = bert.encode(stream, adapter)
        for k, part in enumerate((PART_A, PART_B)):
            expected = as_bert(adapter, k).encode(PACKER.pack([part]), plain)
            found = both[slice(*stream.layout.token_ranges[k])]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_only_what_is_shared_gets_the_encoders_gradient(context: AdapterContext) -> None:
    bert, adapter = encoder(), OwnEncoder(context, layers=1)
    adapter.start_from(bert)
    bert.encode(PACKER.pack([PART_A]), adapter).square().sum().backward()
    got = {name for name, p in bert.named_parameters() if p.grad is not None}
    shared = {name for name, _ in bert.named_parameters() if not name.startswith(("layers.1.", "pooler."))}
    assert got == shared
    assert list(adapter.replacements()) == [1]


def test_a_model_starts_with_copies_of_the_encoder() -> None:
    spec = TaskSpec("a", "yes_no", ("text",), "label", "", "")
    model = make_model(
        {"a": spec, "b": replace(spec, name="b")}, {"a": YES_NO, "b": YES_NO}, MethodChoice("own_encoder"), encoder
    )
    for task in ("a", "b"):
        assert torch.equal(model.adapter.task_parameters(task)[0], encoder().linear(0, "query").weight)


def test_in_a_stack_it_is_started_too_and_comes_first(context: AdapterContext) -> None:
    context = replace(context, make=lambda swap: ADAPTERS[swap.name](context))
    bert, stack = encoder(), Stack(context, adapters=(MethodChoice("own_encoder"), MethodChoice("lhuc"))).eval()
    stack.start_from(bert)
    stream = PACKER.pack([PART_A, PART_B])
    with torch.inference_mode():
        plain = bert.encode(stream, ADAPTERS["none"](context))
        torch.testing.assert_close(bert.encode(stream, stack), plain, atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match="own_encoder must come first"):
        Stack(context, adapters=(MethodChoice("lora"), MethodChoice("own_encoder")))


def test_parameters_per_task_on_bert_base() -> None:
    with torch.device("meta"):
        adapter = OwnEncoder(AdapterContext(("a", "b", "c"), layers=12, hidden=768, heads=12, ffn=3072, dropout=0.1))
    assert sum(p.numel() for p in adapter.task_parameters("b")) == 85_054_464  # of the encoder's 109,482,240
    assert sum(p.numel() for p in adapter.parameters()) == 3 * 85_054_464
