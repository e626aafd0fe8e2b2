"""A bottleneck in one kernel against torch: under Triton's interpreter on the CPU, and on CUDA."""

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kernels import bottleneck as module
from polytask.kernels.bottleneck import bottleneck

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
NEAR = {torch.float32: {"atol": 1e-4, "rtol": 1e-4}, torch.bfloat16: {"atol": 0.1, "rtol": 0.03}}
needs_kernels = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device")


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


def inputs(rows: int, size: int, inner: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(rows, size), (inner, size), (inner,), (size, inner)]
    values = [torch.randn(shape) / (1 if k in (0, 2) else shape[1] ** 0.5) for k, shape in enumerate(shapes)]
    kinds = [dtype, dtype, torch.float32, dtype]
    return [t.to(HERE, kind).requires_grad_() for t, kind in zip(values, kinds, strict=True)]


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size", "inner"), [(1, 64, 16), (20, 100, 24), (70, 128, 64)])
def test_values_and_gradients(rows: int, size: int, inner: int, dtype: torch.dtype) -> None:
    given = inputs(rows, size, inner, dtype)
    x, down, bias, up = (t.detach().double().requires_grad_() for t in given)
    same, change = bottleneck(*given)
    exact = F.gelu(x @ down.T + bias) @ up.T
    assert torch.equal(same, given[0])
    torch.testing.assert_close(change.double(), exact, **NEAR[dtype])
    weights = [torch.randn(rows, size).to(HERE, dtype) for _ in range(2)]
    ours = torch.autograd.grad([same, change], given, weights)
    theirs = torch.autograd.grad([x, exact], [x, down, bias, up], [w.double() for w in weights])
    for one, two, own in zip(ours, theirs, given, strict=True):
        assert one.dtype == own.dtype
        scale = max(1.0, float(two.abs().max()))
        torch.testing.assert_close(one.double() / scale, two / scale, **NEAR[dtype])


@needs_kernels
def test_a_frozen_one_hands_gradients_on() -> None:
    x, *vectors = inputs(5, 32, 16, torch.float32)
    frozen = [v.detach() for v in vectors]
    weights = torch.ones(5, 32, device=HERE)
    (one,) = torch.autograd.grad(bottleneck(x, *frozen), x, [weights, weights])
    whole = torch.autograd.grad(bottleneck(x, *vectors), [x, *vectors], [weights, weights])
    assert torch.equal(one, whole[0])


def test_as_many_dimensions_at_a_time_as_fit() -> None:
    h200, small = 232_448, 101_376  # bytes of an H200 and of a GPU for games
    assert module.step_of(64, 2, h200) == module.step_of(64, 2, small) == 256
    assert (module.step_of(256, 2, h200), module.step_of(256, 2, small)) == (128, 64)
    assert module.step_of(256, 4, small) == 32


@pytest.mark.parametrize(("width", "memory"), [(64, 101_376), (64, 232_448), (256, 101_376), (256, 232_448)])
def test_it_compiles(ptx: Any, width: int, memory: int) -> None:
    halves = ("x", "down", "up", "hidden", "active", "change", "grad", "same", "hidden_grad", "x_grad")
    kinds = {**dict.fromkeys(halves, "*bf16"), "rows": "i32"}
    shape = {"SIZE": 768, "INNER": width, "WIDTH": width, "ROWS": module.ROWS, "PRECISION": "tf32"}
    for kernel in (module._bottleneck_forward, module._bottleneck_backward):
        code = ptx(kernel, kinds, module.WARPS, **shape, STEP=module.step_of(width, 2, memory))
        assert "mma" in code, "the tensor cores do it"
        assert "ld.local" not in code, "registers are enough"
