"""The gradients of pulls (`regularizers.base.Pull`), the pulls' penalty and the norm of all gradients in one pass.

Differentiated by torch, a penalty of all weights costs several passes over them: it writes a float32 gradient of every
weight, and adds the bf16 gradients of the losses to it. Here a program reads a piece of the gradient once and writes it
once, in its own precision.

Sums are sums of pieces in a fixed order, so that equal steps have equal bits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from polytask.kernels.triton_support import jit, tl
from polytask.kernels.updates.kernel import elements

_jit = jit("count")


@_jit
def pull_pieces(pieces, table, sums, count, COLUMNS: tl.constexpr, PIECE: tl.constexpr, TILE: tl.constexpr):
    """Adds the gradient of a pull to one piece of one tensor's gradient.

    Writes the piece's part of the penalty to `sums`, and `count` places behind it the sum of the gradient's squares.
    """
    piece = tl.program_id(0)
    tensor = tl.load(pieces + piece * 2).to(tl.int64)
    start = tl.load(pieces + piece * 2 + 1).to(tl.int64) * PIECE
    row = table + tensor * COLUMNS
    weight, gradient, centre, factor = tl.load(row), tl.load(row + 1), tl.load(row + 11), tl.load(row + 12)
    addresses = (weight, gradient, centre, factor)
    strength = tl.load(row + 13).to(tl.int32).to(tl.float32, bitcast=True)
    length = tl.minimum(tl.load(row + 6) - start, PIECE).to(tl.int32)
    in_bf16, wide = tl.load(row + 8) != 0, tl.load(row + 9) != 0
    penalty = tl.full((), 0.0, tl.float32)
    squares = tl.full((), 0.0, tl.float32)
    if wide:
        penalty, squares = _tile(addresses, in_bf16, strength, start, length, True, PIECE)
    else:
        while length > 0:
            more = _tile(addresses, in_bf16, strength, start, length, False, TILE)
            penalty += more[0]
            squares += more[1]
            start += TILE
            length -= TILE
    tl.store(sums + piece, penalty)
    tl.store(sums + count + piece, squares)


@_jit
def _tile(addresses, in_bf16, strength, start, length, WIDE: tl.constexpr, TILE: tl.constexpr):
    """Does this for the elements from `start` on; WIDE: loaded four at a time. Returns both sums."""
    weights = elements(addresses[0], start, tl.float32, WIDE, TILE)
    centres = elements(addresses[2], start, tl.float32, WIDE, TILE)
    factors = elements(addresses[3], start, tl.float32, WIDE, TILE)
    halves = elements(addresses[1], start, tl.bfloat16, WIDE, TILE)
    fulls = elements(addresses[1], start, tl.float32, WIDE, TILE)
    # Masks instead of branches, so that all loads are under way together.
    pulled = tl.where(strength != 0, length, 0)
    halved = tl.where(in_bf16, length, 0)
    weight = tl.load(weights, mask=_first(pulled, WIDE, TILE), other=0.0)
    centre = tl.load(centres, mask=_first(tl.where(addresses[2] != 0, pulled, 0), WIDE, TILE), other=0.0)
    factor = tl.load(factors, mask=_first(tl.where(addresses[3] != 0, pulled, 0), WIDE, TILE), other=1.0)
    half = tl.load(halves, mask=_first(halved, WIDE, TILE), other=0.0)
    full = tl.load(fulls, mask=_first(length - halved, WIDE, TILE), other=0.0)
    change = weight - centre
    slope = strength * (factor * change)
    total = half.to(tl.float32) + full + slope
    tl.store(halves, _round_at_random(total, weight), mask=_first(tl.where(in_bf16, pulled, 0), WIDE, TILE))
    tl.store(fulls, total, mask=_first(tl.where(in_bf16, 0, pulled), WIDE, TILE))
    return tl.sum(slope * change, 0) / 2, tl.sum(total * total, 0)


@_jit
def _first(length, WIDE: tl.constexpr, TILE: tl.constexpr):
    """The mask of the first `length` elements."""
    inside = tl.arange(0, TILE) < length
    if WIDE:
        inside = tl.max_constancy(inside, 4)
    return inside


@_jit
def _round_at_random(total, weight):
    """Rounds to bf16, up or down with probabilities that make the mean exact.

    A pull of less than a 500th of the gradient would be rounded away in every step if each was rounded to the nearest.
    The random bits are a hash of the weight, which the step before has changed, so that equal steps have equal bits.
    """
    noise = (weight.to(tl.uint32, bitcast=True) * 2654435769) >> 16
    # A NaN can become another number, but then the norm is NaN too, and the update is skipped.
    bits = (total.to(tl.uint32, bitcast=True) + noise) & 0xFFFF0000
    return bits.to(tl.float32, bitcast=True).to(tl.bfloat16)
