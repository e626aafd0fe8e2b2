"""The kernels between sublayers against torch: on the CPU under Triton's interpreter, and on CUDA."""

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kernels import add_and_norm as module
from polytask.kernels import row_norm
from polytask.kernels.add_and_norm import add_and_norm
from polytask.kernels.row_norm import NO_DROPOUT, Draw

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = "cpu" if INTERPRETED else "cuda"
NEAR = {torch.float32: {"atol": 2e-5, "rtol": 2e-5}, torch.bfloat16: {"atol": 0.05, "rtol": 0.02}}
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
needs_kernels = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device")


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(HERE, dtype).requires_grad_()


def run_kernel(given: list[Tensor | None], dropout: Draw = NO_DROPOUT) -> tuple[Tensor, Tensor]:
    *terms, scale, shift = given
    return add_and_norm(*terms, (scale, shift), 1e-12, dropout)  # type: ignore[arg-type]


def inputs(rows: int, size: int, dtype: torch.dtype, biased: bool, branched: bool) -> list[Tensor | None]:
    """residual, y, bias, branch, scale, shift"""
    return [
        random(rows, size, seed=0),
        random(rows, size, seed=1, dtype=dtype),
        random(size, seed=2, dtype=dtype) if biased else None,
        random(rows, size, seed=3, dtype=dtype) if branched else None,
        random(size, seed=4),
        random(size, seed=5),
    ]


def gradients(outs: tuple[Tensor, ...], given: list[Tensor | None], dtype: torch.dtype) -> list[Tensor]:
    """Of a sum of both outputs, weighted by numbers of their own."""
    there = [t for t in given if t is not None]
    weights = [random(*out.shape, seed=6 + k, dtype=out.dtype).detach() for k, out in enumerate(outs)]
    return list(torch.autograd.grad([*outs], there, weights))


def written_out(given: list[Tensor | None], kept: Tensor | float = 1.0) -> Tensor:
    residual, y, bias, branch, scale, shift = (None if t is None else t.double() for t in given)
    assert residual is not None
    assert y is not None
    total = residual + (y if bias is None else y + bias) * kept
    return F.layer_norm(total if branch is None else total + branch, residual.shape[1:], scale, shift, 1e-12)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("biased", "branched"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (9, 48), (5, 384), (3, 17)])
def test_values_and_gradients(rows: int, size: int, biased: bool, branched: bool, dtype: torch.dtype) -> None:
    given = inputs(rows, size, dtype, biased, branched)
    full, half = run_kernel(given)
    exact = written_out(given)
    assert (full.dtype, half.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(full.double(), exact, **NEAR[dtype])
    torch.testing.assert_close(half, full.to(dtype), atol=0, rtol=0)
    ours = gradients((full, half), given, dtype)
    weights = random(rows, size, seed=6).double() + random(rows, size, seed=7, dtype=dtype).double()
    theirs = torch.autograd.grad(exact, [t for t in given if t is not None], weights.detach())
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two.to(one.dtype), **NEAR[dtype])


@needs_kernels
def test_more_rows_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(23, 16, torch.float32, True, False)
    few = gradients(run_kernel(given), given, torch.float32)
    monkeypatch.setattr(row_norm, "PROGRAMS", 2)
    for one, two in zip(few, gradients(run_kernel(given), given, torch.float32), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


@needs_kernels
def test_dropout() -> None:
    """What is dropped shows in y's gradient; with that mask, values and gradients are those of torch."""
    given = inputs(60, 64, torch.float32, True, True)
    seed = torch.tensor([77], device=HERE)

    def run(seed: Tensor, site: int) -> tuple[Tensor, list[Tensor]]:
        outs = run_kernel(given, Draw(0.25, seed, site))
        return outs[0], gradients(outs, given, torch.float32)

    full, found = run(seed, 0)
    kept = (found[1] != 0).double() / 0.75
    assert abs(float((kept == 0).double().mean()) - 0.25) < 0.03
    assert ((kept == 0).any(0)).all(), "in every column"
    assert ((kept == 0).any(1)).all(), "in every row"
    exact = written_out(given, kept)
    torch.testing.assert_close(full.double(), exact, **NEAR[torch.float32])
    weights = sum(random(60, 64, seed=k).double() for k in (6, 7))
    assert isinstance(weights, Tensor)
    theirs = torch.autograd.grad(exact, [t for t in given if t is not None], weights.detach())
    for one, two in zip(found, theirs, strict=True):
        torch.testing.assert_close(one, two.float(), **NEAR[torch.float32])
    same, other_site, other_seed = run(seed, 0), run(seed, 1), run(seed + 1, 0)
    assert torch.equal(full, same[0])
    for other in (other_site, other_seed):
        both = ((other[1][1] == 0) & (kept == 0)).double().mean()
        assert abs(float(both) - 0.25**2) < 0.02, "as often as chance has it"


@needs_kernels
def test_only_what_is_asked_for() -> None:
    """One output's gradient alone, and frozen vectors."""
    for which in (0, 1):
        given = inputs(6, 32, torch.float32, True, False)
        for vector in (given[2], given[4], given[5]):
            assert vector is not None
            vector.requires_grad_(False)
        learning = [t for t in given[:2] if t is not None]
        weights = random(6, 32, seed=9).detach()
        ours = torch.autograd.grad(run_kernel(given)[which], learning, weights)
        theirs = torch.autograd.grad(written_out(given), learning, weights.double())
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, two, **NEAR[torch.float32])


HALVES = ("y", "bias", "branch", "half", "half_grad", "y_grad", "branch_grad")
KINDS = {
    **dict.fromkeys(HALVES, "*bf16"),
    "eps": "fp32",
    "dropout": "fp32",
    "site": "i32",
    "rows": "i32",
    "seed": "*i64",
}


@pytest.mark.parametrize("size", [384, 768])
def test_they_compile_and_move_rows_in_wide_pieces(ptx: Any, size: int) -> None:
    """No device is needed for that."""
    shape = module._options(size, torch.empty(0), None, 0.1)
    pieces = row_norm.LANE // 128  # of four columns, that a thread has
    code = ptx(module._norm_forward, KINDS, **shape)
    assert code.count("st.global.v4.b32") == pieces  # the sums
    assert code.count("st.global.v2.b32") == pieces  # the same in bf16
    code = ptx(module._norm_backward, KINDS, **shape, FULL=True, HALF=True, MATRICES=3)
    assert code.count("st.global.v4.b32") == 4 * pieces
    assert code.count("st.global.v2.b32") == pieces
