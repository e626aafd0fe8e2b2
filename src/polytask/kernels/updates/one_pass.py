"""Updates of many tensors in one pass over memory, as Triton kernels.

torch's fused AdamW reads float32 gradients and writes float32 weights. Steps in bf16 have bf16 gradients and bf16
copies of the weights, so torch's update needs more kernels around it that cast all of them; other optimizers have no
fused form in torch. Here a program reads a piece of one tensor's gradient in its own precision, updates weight and
state, and writes the copy of the weight. An optimizer's file has its formula; all of them share the code here.

The host waits for nothing, and what changes from step to step is read on the device, so launches can be captured in a
CUDA graph.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from polytask.kernels.triton_support import TRITON
from polytask.kernels.updates.kernel import count_steps, update_pieces
from polytask.kernels.updates.pull import pull_pieces
from polytask.kernels.updates.update import COLUMNS, Learned, Table, Update

# Of a program. Module attributes, so that a benchmark can try other values.
PIECE = 1024  # elements
WARPS = 4
TILE = 512  # elements of a tensor that cannot be loaded four at a time
ROWS = 128  # tensors of a program of `count_steps`

EXTRAS = 4
"""Numbers of a parameter group that only some optimizers have."""
OPTIONS = 6 + EXTRAS
NUMBERS = 10 + EXTRAS
"""Numbers that all elements of a tensor share: see `Numbers` in kernel.py."""


class Pieces(NamedTuple):
    """How a step's tensors are divided among programs."""

    places_P2: Tensor
    """The index of a piece's tensor, and the piece's index in it."""
    firsts_T1: Tensor
    """The index of each tensor's first piece; finally the number of pieces."""


class Launch(NamedTuple):
    """What the kernels of a step need."""

    pieces: Pieces
    table: Tensor
    numbers: Tensor
    found_inf: Tensor


class OnePass(Update):
    """An update whose formula is a Triton function of elements; see the files of the optimizers."""

    formula: ClassVar[Any]
    """(theta, g, first state, second state, numbers) -> new theta, first state, second state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._number = {p: number for number, p in enumerate(self.group_of)}
        self._options = torch.stack([self._row_of_options(group) for group in optimizer.param_groups])
        self._options = self._options.to(self.device)
        self._pieces: dict[tuple[int, ...], Pieces] = {}

    def extras(self, group: Mapping[str, Any]) -> list[float]:
        """Return up to four further numbers of a parameter group."""
        return []

    @torch.no_grad()
    def step(
        self,
        learned: Sequence[Learned],
        rates: Tensor,
        found_inf: Tensor,
        divisor: Tensor | None = None,
        table: Table | None = None,
    ) -> None:
        learned = [one._replace(gradient=one.gradient.contiguous()) for one in learned]
        pieces, table = self._prepare(learned, table)
        numbers = torch.empty(len(learned), NUMBERS, device=self.device)
        with torch.cuda.device_of(numbers):
            count_steps[(-(-len(learned) // ROWS),)](
                *(table.rows, self._options, rates, found_inf if divisor is None else divisor),
                *(found_inf, numbers, len(learned)),
                DIVIDES=divisor is not None,
                COLUMNS=COLUMNS,
                NUMBERS=NUMBERS,
                OPTIONS=OPTIONS,
                EXTRAS=EXTRAS,
                ROWS=ROWS,
            )
            self.launch(Launch(pieces, table.rows, numbers, found_inf))

    @torch.no_grad()
    def pull(self, learned: Sequence[Learned], table: Table | None = None) -> tuple[Tensor, Tensor]:
        pieces, table = self._prepare(learned, table)
        places = pieces.places_P2
        sums = torch.empty(2, len(places), device=self.device)
        with torch.cuda.device_of(sums):
            pull_pieces[(len(places),)](
                *(places, table.rows, sums, len(places)),
                COLUMNS=COLUMNS,
                PIECE=PIECE,
                TILE=TILE,
                num_warps=WARPS,
            )
        penalty, squares = sums.sum(1, dtype=torch.float64)
        return penalty.float(), squares.sqrt().float()

    def launch(self, work: Launch) -> None:
        """Update all pieces. The numbers of every tensor are there."""
        self.update_pieces(work, self.formula)

    def update_pieces(self, work: Launch, formula: Any, sums: Tensor | None = None, *, moments: bool = True) -> None:
        """Run `formula` on all pieces; see `kernel.update_pieces`."""
        places = work.pieces.places_P2
        update_pieces[(len(places),)](
            *(places, work.table, work.numbers, work.found_inf, work.numbers if sums is None else sums, len(places)),
            FORMULA=formula,
            STATES=len(self.state_names),
            MOMENTS=moments,
            WEIGHT=sums is None,
            COLUMNS=COLUMNS,
            NUMBERS=NUMBERS,
            PIECE=PIECE,
            TILE=TILE,
            num_warps=WARPS,
        )

    def _row_of_options(self, group: Mapping[str, Any]) -> Tensor:
        """In float64 and with logarithms: with a float32 beta, 1 - beta^t has an error in its fifth digit."""
        betas = group["betas"]
        extras = self.extras(group)
        extras += [0.0] * (EXTRAS - len(extras))
        numbers = [*betas, *map(_log, betas), group.get("eps", 0.0), group["weight_decay"], *extras]
        return torch.tensor(numbers, dtype=torch.float64)

    def _prepare(self, learned: Sequence[Learned], table: Table | None) -> tuple[Pieces, Table]:
        """Divide the tensors into pieces, and write their addresses into the table, or into a new one."""
        assert TRITON, "the update in one pass needs Triton"
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        pieces = self._cut([one.weight for one in learned], capturing)
        assert table is not None or not capturing
        table = table or self.table()
        table.write([self._row(one) for one in learned])
        if not capturing:
            table.send()
        return pieces, table

    def _cut(self, weights: list[Tensor], capturing: bool) -> Pieces:
        """Divide the tensors into pieces. Steps of the same tasks share them."""
        key = tuple(self._number[weight] for weight in weights)
        if key not in self._pieces:
            if capturing:  # each replay would also create the optimizer's state anew
                raise RuntimeError("a step cannot be captured before a step that updates the same tensors has run")
            counts = torch.tensor([-(-weight.numel() // PIECE) for weight in weights])
            tensors = torch.repeat_interleave(counts)
            firsts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
            places = torch.stack([tensors, torch.arange(len(tensors)) - firsts[tensors]], 1)
            self._pieces[key] = Pieces(places.int().to(self.device), firsts.int().to(self.device))
        return self._pieces[key]

    def _row(self, one: Learned) -> list[int]:
        weight, gradient, copy, pull = one
        state = self.state_of(weight)
        states = [state[name] for name in self.state_names]
        pulling = [t for t in (pull.centre, pull.factor) if t is not None] if pull else []
        full = [weight, *states, *pulling]
        tensors = [*full, gradient, *([] if copy is None else [copy])]
        assert all(t.dtype == torch.float32 and t.device == self.device for t in (*full, state["step"]))
        assert gradient.dtype in (torch.float32, torch.bfloat16)
        assert copy is None or copy.dtype == torch.bfloat16
        assert all(t.shape == weight.shape and t.is_contiguous() and t.device == self.device for t in tensors)
        second = states[1] if len(states) > 1 else None
        addresses = [*map(_address, (weight, gradient, states[0], second, copy, state["step"]))]
        wide = weight.numel() % 4 == 0 and not any(t.data_ptr() % (4 * t.element_size()) for t in tensors)
        flags = [gradient.dtype == torch.bfloat16, wide, weight.ndim > 1]
        of_pull = [_address(pull.centre), _address(pull.factor), _bits(pull.strength)] if pull else [0, 0, 0]
        return [*addresses, weight.numel(), self.group_of[weight], *map(int, flags), *of_pull]


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _bits(number: float) -> int:
    """The bits of a float32, because a table holds integers."""
    bits: int = struct.unpack("i", struct.pack("f", number))[0]
    return bits


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf
