"""Moves averages towards weights in one launch: `f <- f + rate (w - f)`, with the rate on the device.

Nothing moves if a flag on the device is set, so the host need not know the outcome of a step before it launches this.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

from collections.abc import Sequence

import torch
from torch import Tensor

from polytask.kernels.triton_support import jit, kernels_run, tl
from polytask.kernels.updates.kernel import elements

PIECE = 1024  # elements of a program
WARPS = 4
COLUMNS = 4
"""Of a table's row: the addresses of follower and weight, the number of elements, and whether elements can be loaded
four at a time."""


class Following:
    """Followers and their weights, which must stay where they are in memory."""

    def __init__(self, followers: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        pairs = zip(followers, weights, strict=True)
        self._pairs = [(follower, weight) for follower, weight in pairs if follower.numel()]
        self._device = self._pairs[0][0].device if self._pairs else torch.device("cpu")
        self._addresses = self._current_addresses()
        self._table = self._places = torch.zeros(0)
        if kernels_run(self._device):
            self._table, self._places = self._divided()

    @torch.no_grad()
    def move(self, rate: Tensor, stopped: Tensor) -> None:
        """Move all followers, unless `stopped` is not 0."""
        if not kernels_run(self._device):
            share = torch.where(stopped == 0, rate, torch.zeros_like(rate))
            for follower, weight in self._pairs:
                follower.lerp_(weight, share)
            return
        assert self._addresses == self._current_addresses()
        with torch.cuda.device_of(self._table):
            _follow[(len(self._places),)](
                *(self._places, self._table, rate, stopped), COLUMNS=COLUMNS, PIECE=PIECE, num_warps=WARPS
            )

    def _current_addresses(self) -> list[int]:
        return [tensor.data_ptr() for pair in self._pairs for tensor in pair]

    def _divided(self) -> tuple[Tensor, Tensor]:
        """The table of all pairs, and for each piece the index of its pair and its index in it."""
        rows, places = [], []
        for number, (follower, weight) in enumerate(self._pairs):
            assert follower.dtype == weight.dtype == torch.float32
            assert follower.shape == weight.shape
            assert follower.is_contiguous()
            assert weight.is_contiguous()
            length, addresses = follower.numel(), [follower.data_ptr(), weight.data_ptr()]
            rows.append([*addresses, length, int(length % 4 == 0 and not any(a % 16 for a in addresses))])
            places += [(number, piece) for piece in range(-(-length // PIECE))]
        return torch.tensor(rows, device=self._device), torch.tensor(places, dtype=torch.int32, device=self._device)


_jit = jit("rate", "stopped")


@_jit
def _follow(places, table, rate, stopped, COLUMNS: tl.constexpr, PIECE: tl.constexpr):
    """Moves one piece of one follower."""
    piece = tl.program_id(0)
    row = table + tl.load(places + piece * 2).to(tl.int64) * COLUMNS
    start = tl.load(places + piece * 2 + 1).to(tl.int64) * PIECE
    follower, weight, wide = tl.load(row), tl.load(row + 1), tl.load(row + 3) != 0
    length = tl.minimum(tl.load(row + 2) - start, PIECE).to(tl.int32)
    share = tl.load(rate)
    if tl.load(stopped) != 0:
        return
    if wide:
        _move(follower, weight, share, start, length, True, PIECE)
    else:
        _move(follower, weight, share, start, length, False, PIECE)


@_jit
def _move(follower, weight, share, start, length, WIDE: tl.constexpr, PIECE: tl.constexpr):
    inside = tl.arange(0, PIECE) < length
    if WIDE:
        inside = tl.max_constancy(inside, 4)
    followers = elements(follower, start, tl.float32, WIDE, PIECE)
    old = tl.load(followers, mask=inside, other=0.0)
    new = tl.load(elements(weight, start, tl.float32, WIDE, PIECE), mask=inside, other=0.0)
    tl.store(followers, old + share * (new - old), mask=inside)
