"""The Triton code that the updates share: counting steps, and running a formula on the pieces of all tensors.

Without Triton this module can be imported, but its kernels cannot be called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from typing import Any, NamedTuple

from polytask.kernels.triton_support import jit, tl


class Numbers(NamedTuple):
    """What all elements of a tensor share, in the order of memory."""

    scale: Any
    """What the gradient is multiplied by."""
    lr: Any
    decay: Any
    eps: Any
    beta1: Any
    rest1: Any
    """1 - beta1"""
    beta2: Any
    rest2: Any
    correction1: Any
    """1 / (1 - beta1^t)"""
    correction2: Any
    extra0: Any
    """Of the optimizer: see its `extras`."""
    extra1: Any
    extra2: Any
    extra3: Any


_jit = jit("rates", "divisor", "found_inf", "tensors", "count")


@_jit
def count_steps(
    table,
    chosen,
    rates,
    divisor,
    found_inf,
    numbers,
    tensors,
    DIVIDES: tl.constexpr,
    COLUMNS: tl.constexpr,
    NUMBERS: tl.constexpr,
    OPTIONS: tl.constexpr,
    EXTRAS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Increments the step of each tensor, and computes its `Numbers`."""
    tensor = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = tensor < tensors
    row = table + tensor * COLUMNS
    counter = tl.load(row + 5, mask=here, other=0).to(tl.pointer_type(tl.float32))
    step = tl.load(counter, mask=here, other=1.0)
    step = tl.where(tl.load(found_inf) == 0, step + 1, step)
    tl.store(counter, step, mask=here)
    t = tl.maximum(step, 1.0).to(tl.float64)  # 0 only if the update is skipped
    group = tl.load(row + 7, mask=here, other=0)
    option = chosen + group * OPTIONS
    beta1 = tl.load(option)
    beta2 = tl.load(option + 1)
    if DIVIDES:
        scale = 1 / tl.load(divisor)
    else:
        scale = 1.0
    number = numbers + tensor * NUMBERS
    tl.store(number, scale + tl.zeros([ROWS], tl.float32), mask=here)
    tl.store(number + 1, tl.load(rates + group), mask=here)
    tl.store(number + 2, tl.load(option + 5).to(tl.float32), mask=here)
    tl.store(number + 3, tl.load(option + 4).to(tl.float32), mask=here)
    tl.store(number + 4, beta1.to(tl.float32), mask=here)
    tl.store(number + 5, (1 - beta1).to(tl.float32), mask=here)
    tl.store(number + 6, beta2.to(tl.float32), mask=here)
    tl.store(number + 7, (1 - beta2).to(tl.float32), mask=here)
    tl.store(number + 8, (1 / (1 - tl.exp(t * tl.load(option + 2)))).to(tl.float32), mask=here)
    tl.store(number + 9, (1 / (1 - tl.exp(t * tl.load(option + 3)))).to(tl.float32), mask=here)
    for extra in tl.static_range(EXTRAS):
        tl.store(number + 10 + extra, tl.load(option + 6 + extra).to(tl.float32), mask=here)


@_jit
def update_pieces(
    pieces,
    table,
    numbers,
    found_inf,
    sums,
    count,
    FORMULA: tl.constexpr,
    STATES: tl.constexpr,
    MOMENTS: tl.constexpr,
    WEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
    NUMBERS: tl.constexpr,
    PIECE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Updates one piece of one tensor.

    An update in two passes updates the state first (MOMENTS without WEIGHT): its formula returns the direction of the
    weight's step, and the squares of weight and direction are summed. Then it updates the weight (WEIGHT without
    MOMENTS), without reading the gradient.
    """
    piece = tl.program_id(0)
    tensor = tl.load(pieces + piece * 2).to(tl.int64)
    start = tl.load(pieces + piece * 2 + 1).to(tl.int64) * PIECE
    skip = tl.load(found_inf) != 0
    # All loads together: in such a short program every round trip to memory counts.
    row = table + tensor * COLUMNS
    weight, gradient, first, second = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    addresses = (weight, gradient, first, second, tl.load(row + 4))
    length = tl.minimum(tl.load(row + 6) - start, PIECE).to(tl.int32)
    in_bf16, wide = tl.load(row + 8) != 0, tl.load(row + 9) != 0
    shared = load_numbers(numbers + tensor * NUMBERS)
    if skip:
        return
    weight_squares = tl.full((), 0.0, tl.float32)
    result_squares = tl.full((), 0.0, tl.float32)
    if wide:
        weight_squares, result_squares = _tile(
            addresses, in_bf16, shared, start, length, FORMULA, STATES, MOMENTS, WEIGHT, True, PIECE
        )
    else:
        while length > 0:
            more = _tile(addresses, in_bf16, shared, start, length, FORMULA, STATES, MOMENTS, WEIGHT, False, TILE)
            weight_squares += more[0]
            result_squares += more[1]
            start += TILE
            length -= TILE
    if not WEIGHT:
        tl.store(sums + piece, weight_squares)
        tl.store(sums + count + piece, result_squares)


@_jit
def load_numbers(number):
    return Numbers(
        scale=tl.load(number),
        lr=tl.load(number + 1),
        decay=tl.load(number + 2),
        eps=tl.load(number + 3),
        beta1=tl.load(number + 4),
        rest1=tl.load(number + 5),
        beta2=tl.load(number + 6),
        rest2=tl.load(number + 7),
        correction1=tl.load(number + 8),
        correction2=tl.load(number + 9),
        extra0=tl.load(number + 10),
        extra1=tl.load(number + 11),
        extra2=tl.load(number + 12),
        extra3=tl.load(number + 13),
    )


@_jit
def _tile(
    addresses,
    in_bf16,
    shared,
    start,
    length,
    FORMULA: tl.constexpr,
    STATES: tl.constexpr,
    MOMENTS: tl.constexpr,
    WEIGHT: tl.constexpr,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Updates the elements from `start` on; WIDE: loaded four at a time. Returns sums of squares if not WEIGHT."""
    inside = tl.arange(0, TILE) < length
    if WIDE:
        inside = tl.max_constancy(inside, 4)
    weights = elements(addresses[0], start, tl.float32, WIDE, TILE)
    firsts = elements(addresses[2], start, tl.float32, WIDE, TILE)
    seconds = elements(addresses[3], start, tl.float32, WIDE, TILE)
    weight = tl.load(weights, mask=inside, other=0.0)
    first = tl.load(firsts, mask=inside, other=0.0)
    second = first
    if STATES == 2:
        second = tl.load(seconds, mask=inside, other=0.0)
    gradient = first
    if MOMENTS:
        # Last, because the branch waits for it; the other loads are under way by then.
        if in_bf16:
            gradients = elements(addresses[1], start, tl.bfloat16, WIDE, TILE)
            gradient = tl.load(gradients, mask=inside, other=0.0).to(tl.float32)
        else:
            gradient = tl.load(elements(addresses[1], start, tl.float32, WIDE, TILE), mask=inside, other=0.0)
        gradient *= shared.scale
    result, first, second = FORMULA(weight, gradient, first, second, shared)
    if MOMENTS:
        tl.store(firsts, first, mask=inside)
        if STATES == 2:
            tl.store(seconds, second, mask=inside)
    weight_squares = tl.full((), 0.0, tl.float32)
    result_squares = tl.full((), 0.0, tl.float32)
    if WEIGHT:
        tl.store(weights, result, mask=inside)
        if addresses[4] != 0:
            tl.store(elements(addresses[4], start, tl.bfloat16, WIDE, TILE), result.to(tl.bfloat16), mask=inside)
    else:
        weight_squares = tl.sum(weight * weight, 0)
        result_squares = tl.sum(tl.where(inside, result * result, 0.0), 0)
    return weight_squares, result_squares


@_jit
def elements(address, start, DTYPE: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr):
    """The addresses of the elements of the tensor at `address`."""
    places = address.to(tl.pointer_type(DTYPE)) + start + tl.arange(0, TILE)
    if WIDE:
        # For bf16 this is half of the true alignment: every thread then has four elements of each tensor. With eight
        # of some tensors, values would have to move between threads.
        places = tl.multiple_of(places, 4 * DTYPE.primitive_bitwidth // 8)
    return places
