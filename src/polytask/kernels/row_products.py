"""Products and weighted sums of a few very long rows, each in one pass over memory.

torch's batched products of such shapes (3 rows, 10^7 columns) leave most of a GPU idle.

Without Triton, and on other devices, torch computes the same.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

import torch
from torch import Tensor

from polytask.kernels.triton_support import jit, kernels_run, tl

CHUNK = 4096
"""Columns that are summed in float32; the sums of chunks are added in float64."""
WARPS = 8


def gram(rows_RP: Tensor) -> Tensor:
    """[R, R]: inner products of the rows, in float64. The number of columns must be a multiple of CHUNK."""
    rows, columns = rows_RP.shape
    chunks = columns // CHUNK
    if not kernels_run(rows_RP.device):
        chunks_CRP = rows_RP.unflatten(1, (chunks, CHUNK)).transpose(0, 1)
        return torch.bmm(chunks_CRP, chunks_CRP.mT).sum(0, dtype=torch.float64)
    parts_CRR = torch.empty(chunks, rows, rows, device=rows_RP.device)
    with torch.cuda.device_of(rows_RP):
        _gram[(chunks,)](rows_RP, parts_CRR, rows_RP.stride(0), ROWS=rows, CHUNK=CHUNK, num_warps=WARPS)
    return parts_CRR.sum(0, dtype=torch.float64)


def weighted_sum(rows_RP: Tensor, weights_R: Tensor) -> Tensor:
    """`sum_r weights[r] rows[r]`; a row whose weight is 0 is not read, whatever is in it."""
    rows, columns = rows_RP.shape
    if not kernels_run(rows_RP.device):
        kept_RP = torch.where(weights_R[:, None] != 0, rows_RP * weights_R[:, None], 0.0)
        return kept_RP.sum(0)
    sum_P = torch.empty(columns, device=rows_RP.device)
    with torch.cuda.device_of(rows_RP):
        _weighted_sum[(columns // CHUNK,)](
            rows_RP, weights_R, sum_P, rows_RP.stride(0), ROWS=rows, CHUNK=CHUNK, num_warps=WARPS
        )
    return sum_P


_jit = jit()


@_jit
def _gram(rows, parts, stride, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    chunk = tl.program_id(0).to(tl.int64)
    columns = rows + chunk * CHUNK + tl.arange(0, CHUNK)
    part = parts + chunk * ROWS * ROWS
    for i in tl.static_range(ROWS):
        one = tl.load(columns + i * stride)
        for j in tl.static_range(i, ROWS):
            product = tl.sum(one * tl.load(columns + j * stride), 0)
            tl.store(part + i * ROWS + j, product)
            tl.store(part + j * ROWS + i, product)


@_jit
def _weighted_sum(rows, weights, total, stride, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    out = tl.zeros([CHUNK], tl.float32)
    for r in tl.static_range(ROWS):
        weight = tl.load(weights + r)
        if weight != 0:
            out += weight * tl.load(rows + r * stride + start)
    tl.store(total + start, out)
