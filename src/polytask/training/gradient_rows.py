"""The gradients of a step's passes as the rows of one matrix, for steps that are captured pass by pass.

`training/gradients.py` computes the same layer by layer, with less memory. Here a row has a column for each element of
every trainable parameter, at a fixed address, so that graphs can write it. Knows no policy.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from polytask.kernels.graphs import Graphs
from polytask.kernels.row_products import CHUNK, gram, weighted_sum
from polytask.kernels.updates import Learned
from polytask.model import MultiTaskModel
from polytask.policies.base import Policy
from polytask.stream import Stream
from polytask.training.gradients import own_parameters

ALIGNMENT = 64  # elements, so that every parameter's columns can be loaded with wide accesses


PassKind = Literal["all", "losses", "memory", "penalties"]
"""What a pass differentiates: losses and penalties together, the loss of a task, that of a memory (whose tasks count by
their share of the examples), or penalties alone."""
Learnable = tuple[nn.Parameter, bool]
"""A parameter, and whether it has a half-precision copy, which then gets its gradient."""


class RowSource(NamedTuple):
    """A pass of a step."""

    row: int
    first: bool
    """Whether it is the first pass of the step that writes the row; later ones add to it."""
    kind: PassKind
    name: str


class GradientRows:
    """One row for each task, one for memories that share a gradient, and one for penalties, where there are such.

    If no gradients of single tasks are needed, the first row is that of the whole step.
    """

    weights: list[float]
    """The weight of each row in the update."""

    def __init__(self, model: MultiTaskModel, policy: Policy, parameters: Sequence[Learnable], penalties: bool) -> None:
        self.policy, self.tasks = policy, model.tasks
        self.compared = 0
        """The number of rows whose inner products the policy needs."""
        if policy.needs_task_gradients:
            self.compared = len(model.tasks) + (policy.memory is not None and policy.memory.one_gradient)
        rows = self.compared + penalties if policy.needs_task_gradients else 1
        self.own = {task: own_parameters(model, task) for task in model.tasks}
        own = {p for mine in self.own.values() for p in mine}
        self.start: dict[nn.Parameter, int] = {}
        """The first column of each parameter."""
        self.segments: list[list[nn.Parameter]] = []
        """Parameters whose columns are consecutive and whose gradients have the same precision."""
        columns = 0
        for is_own in (False, True):
            for has_copy in (True, False):
                segment = [p for p, copied in parameters if (p in own) == is_own and copied == has_copy]
                for parameter in segment:
                    self.start[parameter] = columns
                    columns += _columns(parameter)
                if segment:
                    self.segments.append(segment)
            if not is_own:
                columns = self.shared = -(-columns // CHUNK) * CHUNK
                """The number of columns of shared parameters, a multiple of CHUNK; own ones come behind."""
        self.flat_RP = torch.zeros(rows, columns, device=model.device)
        self._host_RR = torch.zeros(self.compared, self.compared, dtype=torch.float64)
        if model.device.type == "cuda":
            self._host_RR = self._host_RR.pin_memory()
        self._by_key: dict[Hashable, frozenset[Tensor]] = {}
        self.start_step()

    def start_step(self) -> None:
        self.sources: dict[int, RowSource] = {}
        self._reached: dict[int, frozenset[Tensor]] = {}

    def source(self, kind: PassKind, stream: Stream, tasks: Sequence[str]) -> RowSource:
        """The row that a pass over this stream writes."""
        here = [tasks[k] for k in stream.layout.tasks]
        row = 0
        if kind == "penalties":
            row = self.compared
        elif kind in ("losses", "memory"):
            row = tasks.index(here[0]) if len(here) == 1 else len(tasks)
        source = RowSource(row, row not in self.sources, kind, " ".join(here))
        self.sources.setdefault(row, source)
        return source

    def write(self, source: RowSource, key: Hashable, learned: Sequence[Learned]) -> None:
        """Write the gradient of a pass into its row, or add it."""
        gradients = {one.weight: one.gradient for one in learned}
        for segment in self.segments:
            # One by one, copies to another precision would be hundreds of launches.
            dtype = next((gradients[p].dtype for p in segment if p in gradients), torch.float32)
            joined = torch.cat([piece for p in segment for piece in _pieces(p, gradients.get(p), dtype)])
            place = self.flat_RP[source.row, self.start[segment[0]] :][: len(joined)]
            if source.first:
                place.copy_(joined)
            else:
                place += joined
        self._by_key[key] = frozenset(gradients)

    def reached(self, source: RowSource, key: Hashable) -> None:
        """Note which parameters have a gradient in the row; a replayed pass has those that it was captured with."""
        known = self._by_key[key]
        before = self._reached.get(source.row, known)
        self._reached[source.row] = before if before >= known else before | known

    def solve(self, graphs: Graphs) -> list[str]:
        """Ask the policy for the rows' weights. Returns the names of rows that are not finite, if there are any."""
        weights = [0.0] * len(self.flat_RP)
        compared = [source for kind in ("losses", "memory") for source in self.sources.values() if source.kind == kind]
        for row, source in self.sources.items():
            weights[row] = 1.0 if source.kind != "memory" else 0.0
        if compared:
            gram_RR = graphs.run(("gram",), [], lambda *_: gram(self.flat_RP[: self.compared, : self.shared]))
            self._host_RR.copy_(gram_RR, non_blocking=True)
            if gram_RR.is_cuda:
                torch.cuda.current_stream(gram_RR.device).synchronize()
            index = [source.row for source in compared]
            gram_KK = self._host_RR[index][:, index]
            bad = [s.name for s, square in zip(compared, gram_KK.diag(), strict=True) if not square.isfinite()]
            if bad:
                return bad
            own = sum(source.kind == "losses" for source in compared)
            for row, weight in zip(index, self.policy.combine(gram_KK, own).tolist(), strict=True):
                weights[row] = weight
        self.weights = weights
        return []

    @property
    def pattern(self) -> tuple[Any, ...]:
        """What the operations of `combined` depend on."""
        rows = sorted(self.sources.items())
        return tuple((row, source.kind, self._reached[row], self.weights[row] != 0) for row, source in rows)

    def combined(self, weights_R: Tensor, copies: Mapping[nn.Parameter, nn.Parameter]) -> list[Learned]:
        """The sum of the rows with their weights: each parameter that a row of nonzero weight reaches.

        Heads and adapters get the gradients of their own task and of penalties; memories do not train them.
        """
        live = [row for row in sorted(self.sources) if self.weights[row] != 0]
        flat_P = weighted_sum(self.flat_RP[:, : self.shared], weights_R)
        shared = frozenset().union(*(self._reached[row] for row in live))
        total: dict[nn.Parameter, Tensor] = {}
        for parameter, start in self.start.items():
            if start < self.shared and parameter in shared:
                total[parameter] = self._place(flat_P, parameter)
        for row, source in sorted(self.sources.items()):
            if source.kind == "memory":
                continue
            tasks = [source.name] if source.kind == "losses" else self.tasks
            for parameter in (p for task in tasks for p in self.own[task] if p in self._reached[row]):
                own = self._place(self.flat_RP[row], parameter)
                total[parameter] = total[parameter] + own if parameter in total else own
        return [Learned(parameter, gradient, copies.get(parameter)) for parameter, gradient in total.items()]

    def _place(self, row_P: Tensor, parameter: Tensor) -> Tensor:
        start = self.start[parameter]  # type: ignore[index]
        return row_P[start : start + parameter.numel()].view(parameter.shape)


def _columns(parameter: Tensor) -> int:
    return -(-parameter.numel() // ALIGNMENT) * ALIGNMENT


def _pieces(parameter: Tensor, gradient: Tensor | None, dtype: torch.dtype) -> list[Tensor]:
    """The columns of a parameter: its gradient, or zeros, and zeros up to the next parameter."""
    rest = _columns(parameter) - (0 if gradient is None else parameter.numel())
    zeros = [parameter.new_zeros(rest, dtype=dtype)] if rest else []
    return zeros if gradient is None else [gradient.flatten(), *zeros]
