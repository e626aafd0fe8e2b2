"""Sums over rows against torch: under Triton's interpreter on the CPU, and on CUDA."""

import os
from typing import Any

import pytest
import torch

from polytask.kernels import column_sums as module
from polytask.kernels.column_sums import column_sums

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = "cpu" if INTERPRETED else "cuda"
needs_kernels = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device")


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 300, 2500])
@pytest.mark.parametrize("matrices", [1, 3, 4])
def test_sums_over_rows(rows: int, matrices: int) -> None:
    parts = torch.randn(rows, matrices, 40, generator=torch.Generator().manual_seed(0)).to(HERE)
    found = column_sums(parts, *[torch.float32] * matrices)
    for one, two in zip(found, parts.double().sum(0), strict=True):
        torch.testing.assert_close(one.double(), two, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("last", "matrix"), [(False, "*bf16"), (True, "*fp32")])
def test_it_compiles(ptx: Any, last: bool, matrix: str) -> None:
    of = {"SIZE": 768, "MATRICES": 3, "CHUNK": module.CHUNK, "LAST": last, "ROWS": module.ROWS, "COLUMNS": 32}
    assert "ld.global" in ptx(module._column_sums, {"matrix": matrix, "rows": "i32"}, module.WARPS, **of)
