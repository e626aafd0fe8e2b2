"""Parameters that each task has for itself, used on a stream that holds one task or many.

A task's rows of a stream are one contiguous range, so a task-specific linear map is a product for each range, and a
task-specific vector is repeated over it. Each task has parameters of its own rather than a slice of a stacked tensor: a
task that takes no part in a step gets no gradient at all, and no optimizer moves it. Knows no method.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import normal
from polytask.stream import Layout

Start = Callable[[Tensor], object]
"""Fills a weight with its first values, in place."""


def task_slices(layout: Layout) -> Iterator[tuple[int, slice]]:
    """Each task of the stream with its rows, in order. Filler rows, which come last, belong to none."""
    for k, (first, last) in enumerate(layout.token_ranges):
        if first < last:
            yield k, slice(first, last)


def by_task(x_TD: Tensor, layout: Layout, apply: Callable[[int, Tensor], Tensor]) -> Tensor:
    """`apply(task index, its rows)` on every task's rows, put together again; filler rows become zeros."""
    pieces = [apply(k, x_TD[rows]) for k, rows in task_slices(layout)]
    filler = len(x_TD) - sum(map(len, pieces))
    if filler:
        pieces.append(pieces[0].new_zeros(filler, *pieces[0].shape[1:]))
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


class TaskLinear(nn.Module):
    """`x W_t' + b_t` with a W and b for each task."""

    def __init__(self, tasks: Iterable[str], features: int, outputs: int, start: Start, bias: bool = True) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(outputs, features)) for _ in tasks)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(outputs)) for _ in self.weights) if bias else None
        with torch.no_grad():
            for weight in self.weights:
                start(weight)

    def forward(self, x_TD: Tensor, layout: Layout) -> Tensor:
        biases = self.biases
        return by_task(x_TD, layout, lambda k, x: F.linear(x, self.weights[k], None if biases is None else biases[k]))

    def own(self, k: int) -> list[nn.Parameter]:
        """The parameters of task k."""
        return [self.weights[k]] if self.biases is None else [self.weights[k], self.biases[k]]


class TaskVector(nn.Module):
    """A vector for each task, zero at the start."""

    def __init__(self, tasks: Iterable[str], size: int) -> None:
        super().__init__()
        self.vectors = nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in tasks)

    def own(self, k: int) -> list[nn.Parameter]:
        return [self.vectors[k]]


class Projections(nn.Module):
    """Each task's way into fewer dimensions (V_E, random) and back (V_D, zero: what comes back starts silent)."""

    def __init__(self, tasks: tuple[str, ...], hidden: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.down = TaskLinear(tasks, hidden, size, normal)
        self.up = TaskLinear(tasks, size, hidden, nn.init.zeros_)
