"""AdamW's update of many tensors in one pass, as Triton kernels.

torch's fused AdamW reads float32 gradients and writes float32 weights. Steps in bf16 have bf16 gradients and bf16
copies of the weights, so torch's update needs more kernels around it that cast all of them. Here a program reads a
piece of one tensor's gradient in its own precision, updates weight and moments, and writes the copy of the weight, in
one pass. The formula and the optimizer's state are torch's own.

The host waits for nothing, and what changes from step to step (learning rates, the divisor of the gradients, whether to
skip the update) is read on the device, so launches can be captured in a CUDA graph.

Without Triton this module can be imported, but its kernels cannot be called.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (The values inside a kernel are Triton's own, which have no types in Python.)

from __future__ import annotations  # kernels name Triton's types, and Triton may be missing

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polytask.kernels.triton_support import TRITON, jit, kernels_run, tl

# Of a program. Module attributes, so that a benchmark can try other values.
PIECE = 1024  # elements
WARPS = 4
TILE = 512  # elements of a tensor that cannot be loaded four at a time
ROWS = 128  # tensors of a program of `_adamw_count`
COLUMNS = 10  # of `Table`
NUMBERS = 9  # shared by all elements of a tensor
OPTIONS = 6  # of a parameter group


def declared(thing: object, name: str) -> bool:
    """Whether the object's own class sets `name = True`.

    A base class that sets it does not count: the subclass may override what the declaration is about.
    """
    return vars(type(thing)).get(name) is True


def update_fits(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `Update` can replace the step of this optimizer on the device of its parameters.

    A subclass of torch's AdamW may override `step`; one that does not declares `plain_adamw = True`.
    """
    if type(optimizer) is not torch.optim.AdamW and not declared(optimizer, "plain_adamw"):
        return False
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"]]
    return (
        all(group["fused"] and not (group["amsgrad"] or group["maximize"]) for group in groups)
        and all(p.dtype == torch.float32 and p.is_contiguous() for p in parameters)
        and len({p.device for p in parameters}) == 1
        and kernels_run(parameters[0].device)
    )


def update_for(optimizer: torch.optim.Optimizer) -> Update | None:
    return Update(optimizer) if update_fits(optimizer) else None


class Learned(NamedTuple):
    """A tensor that a step updates."""

    weight: Tensor
    gradient: Tensor
    """In float32 or bf16."""
    copy: Tensor | None = None
    """A bf16 copy of the weight, which is updated too."""


class Table:
    """The addresses of a step's tensors. A graph reads the table at its address, so keep the table with the graph."""

    def __init__(self, rows: int, device: torch.device) -> None:
        # From pinned memory the copy is asynchronous.
        self._host = torch.zeros(rows, COLUMNS, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.rows = torch.zeros(rows, COLUMNS, dtype=torch.int64, device=device)

    def write(self, rows: list[list[int]]) -> None:
        self._host[: len(rows)] = torch.tensor(rows)

    def send(self) -> None:
        """Copies the table to the device. Call it once: the asynchronous copy may read the host's memory much later."""
        self.rows.copy_(self._host, non_blocking=True)


class Update:
    """Updates the weights of an AdamW optimizer as its own `step` would, with learning rates on the device.

    m = beta1 m + (1 - beta1) g              m^ = m / (1 - beta1^t)
    v = beta2 v + (1 - beta2) g^2            v^ = v / (1 - beta2^t)
    theta = theta - lr wd theta - lr m^ / (sqrt(v^) + eps)
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._group = {p: k for k, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._number = {p: number for number, p in enumerate(self._group)}
        self._device: torch.device = next(iter(self._group)).device
        # In float64 and as logarithms: with a float32 beta, 1 - beta^t has an error in its fifth digit.
        options = [
            [*group["betas"], *map(_log, group["betas"]), group["eps"], group["weight_decay"]]
            for group in optimizer.param_groups
        ]
        self._options = torch.tensor(options, dtype=torch.float64).to(self._device)
        self._pieces: dict[tuple[int, ...], Tensor] = {}

    def table(self) -> Table:
        """A table with room for all tensors. For a graph, create it before the capture and send it afterwards."""
        return Table(len(self._group), self._device)

    @torch.no_grad()
    def step(
        self,
        learned: Sequence[Learned],
        rates: Tensor,
        found_inf: Tensor,
        divisor: Tensor | None = None,
        table: Table | None = None,
    ) -> None:
        """One step with a learning rate per group and gradients / `divisor`; skipped if `found_inf` is not 0.

        A captured step needs a table; other steps create their own.
        """
        assert TRITON, "the update in one pass needs Triton"
        capturing = self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        pieces = self._cut([one.weight for one in learned], capturing)
        learned = [one._replace(gradient=one.gradient.contiguous()) for one in learned]
        rows = [self._row(*one) for one in learned]
        assert table is not None or not capturing
        table = table or self.table()
        table.write(rows)
        if not capturing:
            table.send()
        numbers = torch.empty(len(rows), NUMBERS, device=self._device)
        with torch.cuda.device_of(numbers):
            _adamw_count[(-(-len(rows) // ROWS),)](
                *(table.rows, self._options, rates, found_inf if divisor is None else divisor),
                *(found_inf, numbers, len(rows)),
                DIVIDES=divisor is not None,
                COLUMNS=COLUMNS,
                NUMBERS=NUMBERS,
                OPTIONS=OPTIONS,
                ROWS=ROWS,
            )
            _adamw_move[(len(pieces),)](
                *(pieces, table.rows, numbers, found_inf),
                COLUMNS=COLUMNS,
                NUMBERS=NUMBERS,
                PIECE=PIECE,
                TILE=TILE,
                num_warps=WARPS,
            )

    def _cut(self, weights: list[Tensor], capturing: bool) -> Tensor:
        """[pieces, 2]: the index of a piece's tensor, and the piece's index in it. Steps of the same tasks share it."""
        key = tuple(self._number[weight] for weight in weights)
        if key not in self._pieces:
            if capturing:  # each replay would also create the optimizer's state anew
                raise RuntimeError("a step cannot be captured before a step that updates the same tensors has run")
            counts = torch.tensor([-(-weight.numel() // PIECE) for weight in weights])
            tensors = torch.repeat_interleave(counts)
            firsts = (counts.cumsum(0) - counts)[tensors]
            pieces = torch.stack([tensors, torch.arange(len(tensors)) - firsts], 1)
            self._pieces[key] = pieces.int().to(self._device)
        return self._pieces[key]

    def _row(self, weight: Tensor, gradient: Tensor, copy: Tensor | None) -> list[int]:
        state: dict[str, Tensor] = self.optimizer.state[weight]
        if not state:  # as torch creates it
            state["step"] = torch.zeros((), device=self._device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        full = [weight, state["exp_avg"], state["exp_avg_sq"]]
        tensors = [weight, gradient, *full[1:], *([] if copy is None else [copy])]
        assert all(t.dtype == torch.float32 and t.device == self._device for t in (*full, state["step"]))
        assert gradient.dtype in (torch.float32, torch.bfloat16)
        assert copy is None or copy.dtype == torch.bfloat16
        assert all(t.shape == weight.shape and t.is_contiguous() and t.device == self._device for t in tensors)
        addresses = [t.data_ptr() for t in tensors] + [0] * (copy is None)
        wide = weight.numel() % 4 == 0 and not any(t.data_ptr() % (4 * t.element_size()) for t in tensors)
        facts = weight.numel(), self._group[weight], int(gradient.dtype == torch.bfloat16), int(wide)
        return [*addresses, state["step"].data_ptr(), *facts]


def norm_of(tensors: list[Tensor]) -> Tensor:
    """The norm of all tensors as one vector, computed in float32."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}  # a list of several dtypes would need one launch per tensor
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    norms = [norm for same in by_dtype.values() for norm in torch._foreach_norm(same, 2, dtype=torch.float32)]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


_jit = jit("rates", "divisor", "found_inf", "tensors")


# A row of the table has the addresses of weight, gradient, exp_avg, exp_avg_sq, copy (0: none) and step, the number of
# elements, the group, whether the gradient is in bf16, and whether elements can be loaded four at a time.


@_jit
def _adamw_count(
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
    ROWS: tl.constexpr,
):
    """Increments the step of each tensor, and computes the numbers that all of its elements share."""
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
    one_left = 1 - tl.exp(t * tl.load(option + 2))
    two_left = 1 - tl.exp(t * tl.load(option + 3))
    rate = tl.load(rates + group).to(tl.float64)
    if DIVIDES:
        scale = 1 / tl.load(divisor)
    else:
        scale = 1.0
    number = numbers + tensor * NUMBERS
    tl.store(number, scale + tl.zeros([ROWS], tl.float32), mask=here)
    tl.store(number + 1, (1 - rate * tl.load(option + 5)).to(tl.float32), mask=here)
    tl.store(number + 2, (rate / one_left).to(tl.float32), mask=here)
    tl.store(number + 3, beta1.to(tl.float32), mask=here)
    tl.store(number + 4, (1 - beta1).to(tl.float32), mask=here)
    tl.store(number + 5, beta2.to(tl.float32), mask=here)
    tl.store(number + 6, (1 - beta2).to(tl.float32), mask=here)
    tl.store(number + 7, (1 / tl.sqrt(two_left)).to(tl.float32), mask=here)
    tl.store(number + 8, tl.load(option + 4).to(tl.float32), mask=here)


@_jit
def _adamw_move(
    pieces,
    table,
    numbers,
    found_inf,
    COLUMNS: tl.constexpr,
    NUMBERS: tl.constexpr,
    PIECE: tl.constexpr,
    TILE: tl.constexpr,
):
    tensor = tl.load(pieces + tl.program_id(0) * 2).to(tl.int64)
    start = tl.load(pieces + tl.program_id(0) * 2 + 1).to(tl.int64) * PIECE
    skip = tl.load(found_inf) != 0
    # All loads together: in such a short program every round trip to memory counts.
    row = table + tensor * COLUMNS
    weight, gradient, mean, square = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    addresses = (weight, gradient, mean, square, tl.load(row + 4))
    length = tl.minimum(tl.load(row + 6) - start, PIECE).to(tl.int32)
    in_bf16, wide = tl.load(row + 8) != 0, tl.load(row + 9) != 0
    number = numbers + tensor * NUMBERS
    scale, kept, rate = tl.load(number), tl.load(number + 1), tl.load(number + 2)
    beta1, rest1, beta2, rest2 = tl.load(number + 3), tl.load(number + 4), tl.load(number + 5), tl.load(number + 6)
    shared = (scale, kept, rate, beta1, rest1, beta2, rest2, tl.load(number + 7), tl.load(number + 8))
    if skip:
        return
    if wide:
        _adamw_tile(addresses, in_bf16, shared, start, length, True, PIECE)
    else:
        while length > 0:
            _adamw_tile(addresses, in_bf16, shared, start, length, False, TILE)
            start += TILE
            length -= TILE


@_jit
def _adamw_tile(addresses, in_bf16, shared, start, length, WIDE: tl.constexpr, TILE: tl.constexpr):
    """Updates the elements from `start` on; WIDE: loaded four at a time."""
    scale, kept, rate, beta1, rest1, beta2, rest2, correction, eps = shared
    inside = tl.arange(0, TILE) < length
    if WIDE:
        inside = tl.max_constancy(inside, 4)
    weights = _elements(addresses[0], start, tl.float32, WIDE, TILE)
    means = _elements(addresses[2], start, tl.float32, WIDE, TILE)
    squares = _elements(addresses[3], start, tl.float32, WIDE, TILE)
    weight = tl.load(weights, mask=inside, other=0.0)
    mean = tl.load(means, mask=inside, other=0.0)
    square = tl.load(squares, mask=inside, other=0.0)
    # Last, because the branch waits for it; the other loads are under way by then.
    if in_bf16:
        gradients = _elements(addresses[1], start, tl.bfloat16, WIDE, TILE)
        gradient = tl.load(gradients, mask=inside, other=0.0).to(tl.float32)
    else:
        gradient = tl.load(_elements(addresses[1], start, tl.float32, WIDE, TILE), mask=inside, other=0.0)
    gradient *= scale
    mean = beta1 * mean + rest1 * gradient
    square = beta2 * square + rest2 * gradient * gradient
    weight = kept * weight - rate * mean / (tl.sqrt(square) * correction + eps)
    tl.store(weights, weight, mask=inside)
    tl.store(means, mean, mask=inside)
    tl.store(squares, square, mask=inside)
    if addresses[4] != 0:
        tl.store(_elements(addresses[4], start, tl.bfloat16, WIDE, TILE), weight.to(tl.bfloat16), mask=inside)


@_jit
def _elements(address, start, DTYPE: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr):
    """The addresses of the elements of the tensor at `address`."""
    elements = address.to(tl.pointer_type(DTYPE)) + start + tl.arange(0, TILE)
    if WIDE:
        # For bf16 this is half of the true alignment: every thread then has four elements of each tensor. With eight
        # of some tensors, values would have to move between threads.
        elements = tl.multiple_of(elements, 4 * DTYPE.primitive_bitwidth // 8)
    return elements
