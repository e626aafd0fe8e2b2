"""Sums over the rows of a matrix that other kernels have begun. Knows tensors only.

A kernel whose programs each take some rows of a gradient adds those up as it goes, and leaves a row of partial sums.
Here these rows are added up, in an order that never changes: the same input gives the same bits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (What a kernel takes and makes are Triton's own values, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, which may not be there

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

COLUMNS, ROWS, WARPS = 32, 256, 4


def _jit(function: Any) -> Any:
    if triton is None:
        return function
    return triton.jit(function, do_not_specialize=["rows"])


@_jit
def _sums(
    parts,
    first,
    second,
    third,
    rows,
    SIZE: tl.constexpr,
    MATRICES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    matrix = tl.program_id(1)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < SIZE
    sums = tl.zeros([COLUMNS], tl.float32)
    start = matrix * 0
    while start < rows:
        here = start + tl.arange(0, ROWS)
        places = (here[:, None] * MATRICES + matrix) * SIZE + columns[None, :]
        sums += tl.sum(tl.load(parts + places, mask=(here < rows)[:, None] & inside[None, :], other=0.0), 0)
        start += ROWS
    if matrix == 0:
        tl.store(first + columns, sums.to(first.dtype.element_ty), mask=inside)
    if matrix == 1:
        tl.store(second + columns, sums.to(second.dtype.element_ty), mask=inside)
    if matrix == 2:
        tl.store(third + columns, sums.to(third.dtype.element_ty), mask=inside)


def column_sums(parts_PMD: Tensor, *dtypes: torch.dtype) -> list[Tensor]:
    """The sums over P of each of at most three matrices, in precisions of their own."""
    rows, matrices, size = parts_PMD.shape
    assert len(dtypes) == matrices <= 3
    sums = [torch.empty(size, dtype=dtype, device=parts_PMD.device) for dtype in dtypes]
    given = (sums * 3)[:3]  # those that are not there are not written to
    _sums[(-(-size // COLUMNS), matrices)](
        *(parts_PMD, *given, rows), SIZE=size, MATRICES=matrices, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS
    )
    return sums
