"""Layers as a GPU runs them against `bert.Layer`, with every adapter: under Triton's interpreter, and on CUDA."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polytask.adapters.base import Adapter
from polytask.build import TABLES, make_adapter
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.trunk.bert import Bert, BertShape
from polytask.trunk.swift import Hidden, swift_fits, swift_layer
from polytask.types import Swap

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TASKS = ("one", "two", "three")
SHAPE = BertShape(layers=1, hidden=32, heads=2, ffn=48, vocabulary=50, positions=32, dropout=0.0, attention_dropout=0.0)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "pal": [{"size": 8, "heads": 2}, {"size": 8, "heads": 2, "gelu": True}],
    "low_rank": [{"size": 8}],
    "houlsby": [{"size": 8, "position": p} for p in ("both_sublayers", "after_ffn", "after_norm")],
    "lora": [{"rank": 2}, {"rank": 2, "sites": ("attention_output", "down")}],
    "stack": [{}, {"adapters": ["lhuc", "conditional_norm", {"name": "houlsby", "size": 8}]}],
}
ADAPTERS = [Swap(name, options) for name in TABLES["adapter"] for options in OPTIONS.get(name, [{}])]
on_cuda = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")


def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


def make(swap: Swap, shape: BertShape = SHAPE, device: str = "cpu") -> tuple[Bert, Adapter]:
    """With random numbers everywhere: nothing is as it starts."""
    torch.manual_seed(0)
    trunk, adapter = Bert(shape), make_adapter(swap, TASKS, shape)
    adapter.start_from(trunk)
    with torch.no_grad():
        for parameter in (*trunk.parameters(), *adapter.parameters()):
            parameter += torch.randn_like(parameter) * 0.1
    return trunk.to(device), adapter.to(device)


def stream_of(tasks: tuple[str, ...], steady: bool) -> Stream:
    rng = np.random.default_rng(0)
    parts = [Part(task, [(rng.integers(5, 50, n),) for n in (3, 9, 1)]) for task in tasks]
    return Packer(TASKS, 1, 2, 16).pack(parts, steady=steady)


def swiftly(trunk: Bert, h_TD: Tensor, stream: Stream, adapter: Adapter, dtype: torch.dtype) -> Tensor:
    h = Hidden(h_TD, h_TD.to(dtype))
    for index, layer in enumerate(trunk.layers):
        h = swift_layer(layer, h, stream.layout, adapter.layer(index))  # type: ignore[arg-type]
    return h.full_TD


def gradients(out_TD: Tensor, h_TD: Tensor, *modules: torch.nn.Module) -> list[Tensor]:
    torch.manual_seed(1)
    weights = torch.randn(out_TD.shape).to(out_TD.device)
    inputs = [h_TD, *(p for module in modules for p in module.parameters())]
    found = torch.autograd.grad(out_TD, inputs, weights, allow_unused=True)
    return [torch.zeros(()) if g is None else g for g in found]


@pytest.mark.parametrize(("tasks", "steady"), [(("two",), True), (TASKS, False)])
@pytest.mark.parametrize("swap", ADAPTERS, ids=str)
def test_the_same_as_the_layers_say(swap: Swap, tasks: tuple[str, ...], steady: bool) -> None:
    trunk, adapter = make(swap)
    stream = stream_of(tasks, steady)
    h_TD = torch.randn(len(stream.token_ids_T), SHAPE.hidden).requires_grad_()
    plain = [*trunk.states(h_TD, stream.layout, adapter)][-1]
    swift = swiftly(trunk, h_TD, stream, adapter, torch.float32)
    torch.testing.assert_close(swift, plain, atol=1e-4, rtol=1e-4)
    for one, two in zip(gradients(swift, h_TD, trunk, adapter), gradients(plain, h_TD, trunk, adapter), strict=True):
        torch.testing.assert_close(one, two, atol=5e-3, rtol=1e-3)


@pytest.mark.parametrize("swap", [Swap("none"), Swap("conditional_norm")], ids=str)
def test_embeddings_and_all(monkeypatch: pytest.MonkeyPatch, swap: Swap) -> None:
    trunk, adapter = make(swap)
    for tasks, steady in ((("two",), True), (TASKS, False)):
        stream = stream_of(tasks, steady)
        found = []
        for swift in (False, True):
            monkeypatch.setattr("polytask.trunk.bert.swift_fits", lambda _, swift=swift: swift)
            out_TD = trunk.encode(stream, adapter)
            found.append([out_TD, *gradients(out_TD, trunk.words.weight, trunk, adapter)])
        for one, two in zip(*found, strict=True):
            torch.testing.assert_close(one, two, atol=5e-3, rtol=1e-3)


def test_dropout_of_a_run_is_that_of_its_layers_one_by_one() -> None:
    """As what repeats a layer's dropout needs it: a layer draws from where the one before it stopped."""
    trunk, adapter = make(Swap("none"), replace(SHAPE, layers=2, dropout=0.3))
    stream = stream_of(("one",), True)
    h_TD = torch.randn(len(stream.token_ids_T), SHAPE.hidden)
    torch.manual_seed(5)
    whole = swiftly(trunk, h_TD, stream, adapter, torch.float32)
    torch.manual_seed(5)
    h = Hidden(h_TD, h_TD)
    first = swift_layer(trunk.layers[0], h, stream.layout, adapter.layer(0))  # type: ignore[arg-type]
    state = torch.get_rng_state()
    second = swift_layer(trunk.layers[1], first, stream.layout, adapter.layer(1))  # type: ignore[arg-type]
    torch.testing.assert_close(second.full_TD, whole)
    again = swift_layer(trunk.layers[1], first, stream.layout, adapter.layer(1))  # type: ignore[arg-type]
    assert not torch.equal(again.full_TD, whole)
    torch.set_rng_state(state)
    again = swift_layer(trunk.layers[1], first, stream.layout, adapter.layer(1))  # type: ignore[arg-type]
    assert torch.equal(again.full_TD, whole)


for test in (
    test_the_same_as_the_layers_say,
    test_embeddings_and_all,
    test_dropout_of_a_run_is_that_of_its_layers_one_by_one,
):
    test.__test__ = INTERPRETED  # type: ignore[attr-defined]


@on_cuda
@pytest.mark.parametrize(("tasks", "steady"), [(("two",), True), (TASKS, True), (TASKS, False)])
@pytest.mark.parametrize("swap", ADAPTERS, ids=str)
def test_on_cuda_in_bf16(monkeypatch: pytest.MonkeyPatch, swap: Swap, tasks: tuple[str, ...], steady: bool) -> None:
    """As near to float32 as torch's own kernels are, with room for chance."""
    trunk, adapter = make(swap, device="cuda")
    stream = stream_of(tasks, steady).to(torch.device("cuda"))
    h_TD = torch.randn(len(stream.token_ids_T), SHAPE.hidden, device="cuda").requires_grad_()
    exact = [*trunk.states(h_TD, stream.layout, adapter)][-1]
    expected = [exact.detach(), *gradients(exact, h_TD, trunk, adapter)]

    def off(swift: bool) -> float:
        monkeypatch.setattr("polytask.trunk.bert.swift_fits", lambda h: swift and swift_fits(h))
        with torch.autocast("cuda", torch.bfloat16):
            out = [*trunk.states(h_TD, stream.layout, adapter)][-1]
        found = [out.detach(), *gradients(out, h_TD, trunk, adapter)]
        parts = zip(found, expected, strict=True)
        return max(float((a.float() - b).norm() / (b.norm() + 1e-3)) for a, b in parts if b.norm() > 1e-2)

    with torch.autocast("cuda", torch.bfloat16):
        assert swift_fits(h_TD)
    assert not swift_fits(h_TD)
    assert off(True) < 2 * off(False) + 0.01
