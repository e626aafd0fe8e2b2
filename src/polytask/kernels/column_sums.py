"""Sums over the rows of matrices, as a Triton kernel.

They are the gradients of vectors that all rows share. Each program of another kernel sums some rows of a gradient and
writes a row of partial sums; here these rows are summed in a fixed order, so the same input gives bit-identical
results. Without Triton this module can be imported, but its kernel cannot be called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

import torch
from torch import Tensor

from polytask.kernels.triton_support import jit, tl

# Of a program. Module attributes, so that a benchmark can try other values.
BYTES = 32  # of a row: the smallest unit of memory access, so that there are many programs
ROWS, WARPS = 512, 4
CHUNK = 1024
"""More rows than this are summed in two rounds: first chunks of this many rows, then their sums."""


_jit = jit("rows")


@_jit
def _column_sums(
    matrix,
    first,
    second,
    third,
    fourth,
    rows,
    SIZE: tl.constexpr,
    MATRICES: tl.constexpr,
    CHUNK: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    which = tl.program_id(1)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < SIZE
    sums = tl.zeros([COLUMNS], tl.float32)
    row = tl.program_id(2) * CHUNK
    end = tl.minimum(row + CHUNK, rows)
    while row < end:
        here = row + tl.arange(0, ROWS)
        places = (here.to(tl.int64)[:, None] * MATRICES + which) * SIZE + columns[None, :]
        sums += tl.sum(
            tl.load(matrix + places, mask=(here < end)[:, None] & inside[None, :], other=0.0).to(tl.float32), 0
        )
        row += ROWS
    if LAST:
        if which == 0:
            tl.store(first + columns, sums.to(first.dtype.element_ty), mask=inside)
        if which == 1:
            tl.store(second + columns, sums.to(second.dtype.element_ty), mask=inside)
        if which == 2:
            tl.store(third + columns, sums.to(third.dtype.element_ty), mask=inside)
        if which == 3:
            tl.store(fourth + columns, sums.to(fourth.dtype.element_ty), mask=inside)
    else:
        tl.store(first + (tl.program_id(2) * MATRICES + which) * SIZE + columns, sums, mask=inside)


def column_sums(rows_PMD: Tensor, *dtypes: torch.dtype) -> list[Tensor]:
    """The sums over P of each of at most four matrices, in the given precisions."""
    matrices, size = rows_PMD.shape[1:]
    assert len(dtypes) == matrices <= 4
    if len(rows_PMD) > CHUNK:
        parts_CMD = rows_PMD.new_empty(-(-len(rows_PMD) // CHUNK), matrices, size, dtype=torch.float32)
        _launch(rows_PMD, [parts_CMD], last=False)
        rows_PMD = parts_CMD
    sums = [rows_PMD.new_empty(size, dtype=dtype) for dtype in dtypes]
    _launch(rows_PMD, sums, last=True)
    return sums


def _launch(rows_PMD: Tensor, outs: list[Tensor], last: bool) -> None:
    rows, matrices, size = rows_PMD.shape
    columns = BYTES // rows_PMD.element_size()
    with torch.cuda.device_of(rows_PMD):
        _column_sums[(-(-size // columns), matrices, 1 if last else -(-rows // CHUNK))](
            *(rows_PMD, *(outs * 4)[:4], rows),  # the kernel does not write to missing ones
            SIZE=size,
            MATRICES=matrices,
            CHUNK=2**30 if last else CHUNK,
            LAST=last,
            ROWS=ROWS,
            COLUMNS=columns,
            num_warps=WARPS,
        )
