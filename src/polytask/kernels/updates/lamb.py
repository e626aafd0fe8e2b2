"""LAMB in two passes: the moments with the norms of weights and steps, then the weights.

The norms are sums of sums in a fixed order, so that equal steps have equal bits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from collections.abc import Mapping
from typing import Any

import torch

from polytask.kernels.triton_support import jit, tl
from polytask.kernels.updates.one_pass import NUMBERS, Launch, OnePass
from polytask.kernels.updates.update import COLUMNS

BLOCK = 4096  # pieces whose sums are added at once


@jit()
def direction(theta, m, v, n):
    return m * n.correction1 / (tl.sqrt(v * n.correction2) + n.eps) + n.decay * theta


@jit()
def lamb_moments(theta, g, m, v, n):
    m = n.beta1 * m + n.rest1 * g
    v = n.beta2 * v + n.rest2 * g * g
    return direction(theta, m, v, n), m, v


@jit()
def lamb_weights(theta, unused, m, v, n):
    ratio = n.extra1
    return theta - n.lr * ratio * direction(theta, m, v, n), m, v


@jit("found_inf", "count")
def ratios(
    firsts,
    table,
    numbers,
    found_inf,
    sums,
    count,
    COLUMNS: tl.constexpr,
    NUMBERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Adds up the squares of one tensor's pieces, and writes min(|theta|, clamp) / |r| to its numbers."""
    tensor = tl.program_id(0)
    if tl.load(found_inf) != 0:  # there are no sums
        return
    piece, end = tl.load(firsts + tensor), tl.load(firsts + tensor + 1)
    theta_squares = tl.zeros([BLOCK], tl.float32)
    r_squares = tl.zeros([BLOCK], tl.float32)
    while piece < end:
        pieces = piece + tl.arange(0, BLOCK)
        theta_squares += tl.load(sums + pieces, mask=pieces < end, other=0.0)
        r_squares += tl.load(sums + count + pieces, mask=pieces < end, other=0.0)
        piece += BLOCK
    clamp = tl.load(numbers + tensor * NUMBERS + 10)  # extra0
    is_matrix = tl.load(table + tensor * COLUMNS + 10) != 0
    theta_norm = tl.minimum(tl.sqrt(tl.sum(theta_squares, 0)), clamp)
    r_norm = tl.sqrt(tl.sum(r_squares, 0))
    has_ratio = is_matrix & (theta_norm > 0) & (r_norm > 0)
    ratio = tl.where(has_ratio, theta_norm / tl.where(r_norm > 0, r_norm, 1.0), 1.0)
    tl.store(numbers + tensor * NUMBERS + 11, ratio)  # extra1


class LambUpdate(OnePass):
    def extras(self, group: Mapping[str, Any]) -> list[float]:
        return [group["clamp"]]

    def launch(self, work: Launch) -> None:
        places, firsts = work.pieces
        sums = torch.empty(2, len(places), device=self.device)
        self.update_pieces(work, lamb_moments, sums)
        ratios[(len(firsts) - 1,)](
            *(firsts, work.table, work.numbers, work.found_inf, sums, len(places)),
            COLUMNS=COLUMNS,
            NUMBERS=NUMBERS,
            BLOCK=BLOCK,
            num_warps=8,
        )
        self.update_pieces(work, lamb_weights, moments=False)
