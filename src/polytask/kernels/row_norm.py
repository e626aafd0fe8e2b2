"""Layer norm of one row, with dropout: what the kernels of `add_and_norm` and `embed_and_norm` share.

Without Triton this module can be imported, but its kernels cannot be called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from typing import Any, NamedTuple

from torch import Tensor

from polytask.kernels.triton_support import jit, tl

MAX_WIDTH = 4096
# Module attributes, so that a benchmark can try other values.
PROGRAMS = 660  # at most, in a backward pass: registers allow five on each of the 132 multiprocessors of an H200
ROWS = 4  # at least, of a program
LANE = 256  # columns of a warp


class Draw(NamedTuple):
    """The draw of a dropout mask."""

    rate: float = 0.0
    seed_1: Tensor | None = None
    site: int = 0
    """Tells draws from the same seed apart."""


NO_DROPOUT = Draw()


def either(tensor: Tensor | None, other: Tensor) -> Tensor:
    """The tensor, or another one for an argument that the kernel does not read: an argument cannot be None."""
    return other if tensor is None else tensor


def row_options(size: int, dropout: float) -> dict[str, Any]:
    """The options of a kernel whose programs compute whole rows."""
    width = max(16, 1 << (size - 1).bit_length())
    return {"SIZE": size, "WIDTH": width, "DROPS": dropout > 0, "num_warps": max(1, width // LANE)}


def num_programs(rows: int, sums: bool) -> int:
    """The programs of a backward pass: one per row, or few if each writes partial sums over its rows."""
    return min(PROGRAMS, -(-rows // ROWS)) if sums else rows


_jit = jit()


@_jit
def row_places(matrix, row, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """The addresses of a row's elements. A thread has four consecutive ones in every precision: with eight of some
    tensors, values would have to move between threads."""
    start = matrix + row.to(tl.int64) * SIZE + tl.arange(0, WIDTH)
    if SIZE % 4 == 0:
        start = tl.multiple_of(start, 4 * matrix.dtype.element_ty.primitive_bitwidth // 8)
    return start


@_jit
def read_row(matrix, row, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    inside = tl.arange(0, WIDTH) < SIZE
    return tl.load(row_places(matrix, row, SIZE, WIDTH), mask=inside, other=0.0).to(tl.float32)


@_jit
def write_row(matrix, row, x, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    inside = tl.arange(0, WIDTH) < SIZE
    tl.store(row_places(matrix, row, SIZE, WIDTH), x.to(matrix.dtype.element_ty), mask=inside)


@_jit
def dropout_factors(seed, row, site, dropout, WIDTH: tl.constexpr):
    """1 / (1 - dropout) for elements that are kept, else 0; depends on the seed, the row, the column and the site."""
    # The generator draws four numbers at a time, here for four consecutive columns. Seven rounds are the fewest that
    # are known to pass all tests of randomness (Salmon et al. 2011).
    zero = tl.zeros([WIDTH // 4], tl.int32)
    a, b, c, d = tl.philox(tl.load(seed), zero + row.to(tl.int32), tl.arange(0, WIDTH // 4), zero + site, zero, 7)
    drawn = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [WIDTH])
    return tl.where(drawn >= tl.cast(dropout * 4294967296.0, tl.uint32), 1.0 / (1.0 - dropout), 0.0)


@_jit
def normalize(x_D, row, scale, shift, stats, eps, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """The layer norm of a row. Stores the mean and 1 / the standard deviation for the backward pass."""
    mean = tl.sum(x_D, 0) / SIZE
    x_D = tl.where(tl.arange(0, WIDTH) < SIZE, x_D - mean, 0.0)
    over = 1.0 / tl.sqrt(tl.sum(x_D * x_D, 0) / SIZE + eps)
    tl.store(stats + row * 2, mean)
    tl.store(stats + row * 2 + 1, over)
    first = row * 0
    return x_D * over * read_row(scale, first, SIZE, WIDTH) + read_row(shift, first, SIZE, WIDTH)


@_jit
def output_gradient(
    full_grad, half_grad, row, FULL: tl.constexpr, HALF: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    """The sum of the gradients of a row in both precisions."""
    grad_D = tl.zeros([WIDTH], tl.float32)
    if FULL:
        grad_D += read_row(full_grad, row, SIZE, WIDTH)
    if HALF:
        grad_D += read_row(half_grad, row, SIZE, WIDTH)
    return grad_D


@_jit
def normalize_backward(x_D, grad_D, scale_D, stats, row, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """The normalized row without scale and shift, and the gradient of the row."""
    mean, over = tl.load(stats + row * 2), tl.load(stats + row * 2 + 1)
    x_D = tl.where(tl.arange(0, WIDTH) < SIZE, (x_D - mean) * over, 0.0)
    scaled_D = grad_D * scale_D
    along = tl.sum(scaled_D * x_D, 0) / SIZE
    level = tl.sum(scaled_D, 0) / SIZE
    return x_D, (scaled_D - x_D * along - level) * over
