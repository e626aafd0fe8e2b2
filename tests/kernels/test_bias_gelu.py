"""Bias and gelu in one kernel against torch: under Triton's interpreter on the CPU, and on CUDA."""

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kernels import bias_gelu as module
from polytask.kernels.bias_gelu import bias_gelu

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = "cpu" if INTERPRETED else "cuda"
NEAR = {torch.float32: {"atol": 2e-5, "rtol": 2e-5}, torch.bfloat16: {"atol": 0.05, "rtol": 0.02}}
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
needs_kernels = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device")


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(HERE, dtype).requires_grad_()


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (70, 130), (33, 256)])
def test_bias_gelu(rows: int, size: int, dtype: torch.dtype) -> None:
    x, bias = random(rows, size, seed=0, dtype=dtype), random(size, seed=1, dtype=dtype)
    weights = random(rows, size, seed=2, dtype=dtype).detach()
    out, exact = bias_gelu(x, bias), F.gelu(x.double() + bias.double())
    torch.testing.assert_close(out, exact.to(dtype), **NEAR[dtype])
    ours = torch.autograd.grad(out, (x, bias), weights)
    theirs = torch.autograd.grad(exact, (x, bias), weights.double())
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, **NEAR[dtype])
    assert torch.autograd.grad(bias_gelu(x, bias.detach()), x, weights)[0].equal(ours[0])


def test_far_from_zero_it_is_the_tail_of_the_distribution() -> None:
    """Where 1 - erf would be nothing but rounding: relative to the value, in bf16's precision."""
    if not (INTERPRETED or torch.cuda.is_available()):
        pytest.skip("needs a CUDA device")
    x = torch.linspace(-6, 6, 97, device=HERE)[None]
    exact = F.gelu(x.double())
    off = (bias_gelu(x, torch.zeros(97, device=HERE)).double() - exact).abs()
    assert (off <= 1e-6 + 2**-8 * exact.abs()).all()


def test_it_compiles(ptx: Any) -> None:
    kinds = {**dict.fromkeys(("x", "bias", "out", "slope", "grad", "x_grad"), "*bf16"), "rows": "i32"}
    shape = {"SIZE": 3072, "ROWS": module.ROWS, "COLUMNS": module.COLUMNS, "num_warps": module.WARPS}
    eights = module.ROWS * module.COLUMNS // (module.WARPS * 32) // 8
    for learns in (False, True):
        code = ptx(module._gelu_forward, kinds, **shape, LEARNS=learns)
        assert code.count("st.global.v4.b32") == eights * (1 + learns)
    assert ptx(module._gelu_backward, kinds, **shape, SUMS=True).count("st.global.v4.b32") == eights
