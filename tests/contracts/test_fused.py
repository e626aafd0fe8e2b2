"""Every adapter of the table: the encoder's fused layers compute with it what `bert.Layer` says, forward and backward.

Three times: with each kernel replaced by its definition in torch, which shows whether what an adapter tells the fused
layers (`plain_linear`, `sublayer_sum`, `norm_vectors` ...) is what its slots do; with the kernels themselves, run by
Triton's interpreter in a process of its own; and on CUDA. A kernel that a new adapter brings gets a line in
DEFINITIONS.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args, get_origin
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.adapters.base import Adapter, LinearSite, SublayerSite
from polytask.build import TABLES, make_adapter, options_of
from polytask.encoders.bert import Bert, BertShape
from polytask.kernels.add_and_norm import add_and_norm
from polytask.kernels.bias_gelu import bias_gelu
from polytask.kernels.bottleneck import bottleneck
from polytask.kernels.embed_and_norm import embed_and_norm
from polytask.kernels.fused.layer import fused_layer_fits
from polytask.kernels.triton_support import TRITON
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.types import MethodChoice, UserError

ADAPTERS = TABLES["adapter"]
TASKS = ("one", "two", "three")
STREAMS = {"one task": (("two",), True), "all tasks": (TASKS, False)}
SHAPE = BertShape(layers=2, hidden=32, heads=2, ffn=48, vocabulary=50, positions=32, dropout=0.0, attention_dropout=0.0)
SMALL = {"size": 8, "heads": 2, "rank": 2}


# --- which forms of an adapter: read from its options -----------------------------------------------------------------
def small(name: str) -> dict[str, Any]:
    return {option.name: SMALL[option.name] for option in options_of(ADAPTERS[name]) if option.name in SMALL}


def choices(kind: Any) -> list[Any]:
    """The values of an option that has few; of a list, one with all there are."""
    if get_origin(kind) is Annotated:
        return choices(get_args(kind)[0])
    if kind is bool:
        return [False, True]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if get_origin(kind) is tuple and get_args(kind)[0] is MethodChoice:
        return [[{"name": name, **small(name)} for name in ADAPTERS if not stands_in(name)]]
    if get_origin(kind) is tuple:
        return [values] if (values := choices(get_args(kind)[0])) else []
    return []


def stands_in(name: str) -> bool:
    """Whether it can only be the first of a stack, or is a stack itself."""
    options = {option.kind for option in options_of(ADAPTERS[name])}
    return tuple[MethodChoice, ...] in options or bool(
        make_adapter(MethodChoice(name, small(name)), TASKS, SHAPE).stand_ins()
    )


def forms(name: str) -> Iterator[MethodChoice]:
    """An adapter with small sizes, and once more with every value of each option that is a choice."""
    yield MethodChoice(name, small(name))
    for option in options_of(ADAPTERS[name]):
        for value in choices(option.kind):
            if value != option.default:
                yield MethodChoice(name, {**small(name), option.name: value})


def form_id(swap: MethodChoice) -> str:
    changed = [f"{name}={value}" for name, value in swap.options.items() if name not in SMALL]
    return "-".join([swap.name, *(text if len(text) < 40 else f"{text[:36]}..." for text in changed)])


FORMS = [pytest.param(swap, id=form_id(swap)) for name in ADAPTERS for swap in forms(name)]


# --- the comparison ---------------------------------------------------------------------------------------------------
def made(swap: MethodChoice, device: str = "cpu", shape: BertShape = SHAPE) -> tuple[Bert, Adapter]:
    """With random numbers everywhere: nothing is as it starts."""
    torch.manual_seed(0)
    encoder, adapter = Bert(shape), make_adapter(swap, TASKS, shape)
    adapter.start_from(encoder)
    with torch.no_grad():
        for parameter in (*encoder.parameters(), *adapter.parameters()):
            parameter += torch.randn_like(parameter) * 0.1
    return encoder.to(device), adapter.to(device)


def stream_of(tasks: tuple[str, ...], steady: bool) -> Stream:
    rng = np.random.default_rng(0)
    parts = [Part(task, [(rng.integers(5, 50, n),) for n in (3, 9, 1)]) for task in tasks]
    return Packer(TASKS, 1, 2, 16).pack(parts, static_shape=steady)


def results(encoder: Bert, adapter: Adapter, stream: Stream, fused: bool, bf16: bool = False) -> list[Tensor]:
    """The last layer's output, and the gradient of every parameter."""
    device = encoder.words.weight.device.type
    with (
        patch("polytask.encoders.bert.fused_layer_fits", lambda _: fused),
        torch.autocast(device, torch.bfloat16, enabled=bf16),
    ):
        out_TD = encoder.encode(stream, adapter)
    torch.manual_seed(1)
    towards_TD = torch.randn(out_TD.shape).to(out_TD)
    parameters = [*encoder.parameters(), *adapter.parameters()]
    found = torch.autograd.grad(out_TD, parameters, towards_TD, allow_unused=True)
    return [out_TD.detach(), *(torch.zeros(()) if g is None else g for g in found)]


def compare(swap: MethodChoice, tasks: tuple[str, ...], steady: bool, shape: BertShape = SHAPE) -> None:
    encoder, adapter = made(swap, shape=shape)
    stream = stream_of(tasks, steady)
    plain, fused = (results(encoder, adapter, stream, fused) for fused in (False, True))
    torch.testing.assert_close(fused[0], plain[0], atol=1e-4, rtol=1e-4)
    for one, two in zip(fused[1:], plain[1:], strict=True):
        torch.testing.assert_close(one, two, atol=5e-3, rtol=1e-3)


# --- each kernel's definition -----------------------------------------------------------------------------------------
def plain_embed_norm(
    words_VD: Tensor,
    segments_GD: Tensor,
    positions_PD: Tensor,
    token_ids_T: Tensor,
    segment_ids_T: Tensor,
    position_ids_T: Tensor,
    cu_seqlens_S1: Tensor,
    scale_D: Tensor,
    shift_D: Tensor,
    eps: float,
    half: torch.dtype,
    *dropout: Any,
) -> tuple[Tensor, Tensor]:
    sum_TD = words_VD[token_ids_T] + segments_GD[segment_ids_T] + positions_PD[position_ids_T]
    out_TD = F.layer_norm(sum_TD, scale_D.shape, scale_D, shift_D, eps)
    return out_TD, out_TD.to(half)


def plain_add_norm(
    residual_TD: Tensor,
    y_TD: Tensor,
    bias_D: Tensor | None,
    branch_TD: Tensor | None,
    scale_D: Tensor,
    shift_D: Tensor,
    eps: float,
    *dropout: Any,
) -> tuple[Tensor, Tensor]:
    for term in (y_TD, bias_D, branch_TD):
        residual_TD = residual_TD if term is None else residual_TD + term
    out_TD = F.layer_norm(residual_TD, scale_D.shape, scale_D, shift_D, eps)
    return out_TD, out_TD.to(y_TD.dtype)


def plain_bias_gelu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    return F.gelu(x_TF + bias_F)


def plain_bottleneck(x_TD: Tensor, down_sD: Tensor, bias_s: Tensor, up_Ds: Tensor) -> tuple[Tensor, Tensor]:
    return x_TD, F.linear(F.gelu(F.linear(x_TD, down_sD, bias_s)), up_Ds)


DEFINITIONS: Mapping[Any, Any] = {
    add_and_norm: plain_add_norm,
    bias_gelu: plain_bias_gelu,
    bottleneck: plain_bottleneck,
    embed_and_norm: plain_embed_norm,
}


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a module of ours has imported a kernel, it has the definition instead."""
    ours = [module for name, module in sys.modules.items() if name.startswith("polytask.")]
    for module in ours:
        for name, value in list(vars(module).items()):
            if callable(value) and value in DEFINITIONS:
                monkeypatch.setattr(module, name, DEFINITIONS[value])


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("swap", FORMS)
def test_fused_layers_are_the_definition(swap: MethodChoice, stream: str) -> None:
    compare(swap, *STREAMS[stream])


@pytest.mark.parametrize("swap", FORMS)
def test_a_slot_that_is_said_to_be_plain_is(swap: MethodChoice) -> None:
    """Fused layers then do without it, on CUDA in more places than elsewhere."""
    encoder, adapter = made(swap)
    layout = stream_of(TASKS, static_shape=False).layout
    for index in range(SHAPE.layers):
        layer = adapter.layer(index)
        for site in get_args(LinearSite):
            base = encoder.linear(index, site)
            x = torch.randn(sum(layout.lengths), base.in_features)
            assert torch.equal(layer.linear(site, base, x, layout), base(x)) or not layer.plain_linear(site)
        for place in get_args(SublayerSite):
            y_TD = torch.randn(sum(layout.lengths), SHAPE.hidden)
            assert torch.equal(layer.sublayer(place, y_TD, layout), y_TD) or not layer.plain_sublayer(place)


# --- the kernels themselves -------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def interpreted(request: pytest.FixtureRequest) -> dict[str, str | None]:
    """For every adapter that is tested, what went wrong under Triton's interpreter, if anything did.

    Triton decides on its interpreter when it is imported, so this needs another process: one for all of them.
    """
    if not TRITON:
        pytest.skip("needs Triton")
    wanted = {item.callspec.params["name"] for item in request.session.items if is_interpreted(item)}
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-P", __file__, *sorted(wanted)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def is_interpreted(item: Any) -> bool:
    return getattr(item, "originalname", None) == test_kernels_under_the_interpreter.__name__


@pytest.mark.parametrize("name", ADAPTERS)
def test_kernels_under_the_interpreter(name: str, interpreted: dict[str, str | None]) -> None:
    assert interpreted[name] is None, interpreted[name]


def interpret(names: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in names:
        try:
            compare(MethodChoice(name, small(name)), *STREAMS["one task"], shape=replace(SHAPE, layers=1))
            found[name] = None
        except (AssertionError, RuntimeError, UserError):
            found[name] = traceback.format_exc()
    return found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("tasks", "steady"), [*STREAMS.values(), (TASKS, True)], ids=[*STREAMS, "all tasks, steady"])
@pytest.mark.parametrize("swap", FORMS)
def test_on_cuda_in_bf16(swap: MethodChoice, tasks: tuple[str, ...], steady: bool) -> None:
    """As near to float32 as torch's own kernels are, with room for chance."""
    encoder, adapter = made(swap, "cuda")
    stream = stream_of(tasks, steady).to(torch.device("cuda"))
    expected = results(encoder, adapter, stream, fused=False)

    def off(fused: bool) -> float:
        found = results(encoder, adapter, stream, fused, bf16=True)
        pairs = zip(found, expected, strict=True)
        return max(float((a.float() - b).norm() / (b.norm() + 1e-3)) for a, b in pairs if b.norm() > 1e-2)

    with torch.autocast("cuda", torch.bfloat16):
        assert fused_layer_fits(encoder.words.weight)
    assert off(True) < 2 * off(False) + 0.01


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(interpret(sys.argv[1:])))
