"""Sums over the rows of matrices, as a Triton kernel. Knows tensors only; without Triton it cannot be called.

They are gradients of vectors that all rows share. A kernel whose programs each take some rows of a gradient adds those
up as it goes, and leaves a row of partial sums; here all rows are added up, in an order that never changes: the same
input gives the same bits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (What a kernel takes and makes are Triton's own values, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, which may not be there

import torch
from torch import Tensor

from polytask.kernels.triton_support import jit, tl

# Of a program. Attributes of the module, so that a benchmark can try others.
BYTES = 32  # of a row: the least that is read from memory at once, so that there are many programs
ROWS, WARPS = 512, 4
CHUNK = 1024
"""With more rows than this, programs take so many each, and what they leave is added up again."""


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
    """The sums over P of each of at most four matrices, in precisions of their own."""
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
            *(rows_PMD, *(outs * 4)[:4], rows),  # those that are not there are not written to
            SIZE=size,
            MATRICES=matrices,
            CHUNK=2**30 if last else CHUNK,
            LAST=last,
            ROWS=ROWS,
            COLUMNS=columns,
            num_warps=WARPS,
        )
