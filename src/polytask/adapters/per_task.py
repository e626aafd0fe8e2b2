"""Parameters of single tasks, used on a stream of one task or of many.

Each task has parameters of its own instead of a slice of one tensor: a task that is not in a step gets no gradient at
all, and no optimizer moves it.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import AdapterContext, NormSite, per_task
from polytask.fused_forms import fusible
from polytask.stream import Layout

Initializer = Callable[[Tensor], object]
"""Fills a tensor with its first values, in place."""


def normal(weight: Tensor) -> None:
    """BERT's own first values."""
    nn.init.normal_(weight, std=0.02)


class TaskLinear(nn.Module):
    """`W_t x + b_t`, with W and b of the task t that x belongs to."""

    def __init__(
        self, tasks: Iterable[str], features: int, outputs: int, initialize: Initializer, bias: bool = True
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(outputs, features)) for _ in tasks)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(outputs)) for _ in self.weights) if bias else None
        with torch.no_grad():
            for weight in self.weights:
                initialize(weight)

    @fusible
    def forward(self, x_TD: Tensor, layout: Layout) -> Tensor:
        return per_task(x_TD, layout, lambda k, rows_TD: F.linear(rows_TD, *self.own(k)))

    def own(self, k: int) -> list[nn.Parameter]:
        return [self.weights[k]] if self.biases is None else [self.weights[k], self.biases[k]]


class TaskVector(nn.Module):
    """A vector for each task, zero at the start by default."""

    def __init__(self, tasks: Iterable[str], size: int, initialize: Initializer = nn.init.zeros_) -> None:
        super().__init__()
        self.vectors = nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in tasks)
        with torch.no_grad():
            for vector in self.vectors:
                initialize(vector)

    @fusible
    def forward(self, x_TD: Tensor, layout: Layout) -> Tensor:
        """For each row of x, the vector of its task, in x's precision."""
        return per_task(x_TD, layout, lambda k, rows_TD: self.vectors[k].to(x_TD.dtype).expand(rows_TD.shape[0], -1))

    def own(self, k: int) -> list[nn.Parameter]:
        return [self.vectors[k]]


class TaskVectors(nn.ModuleDict):
    """A `TaskVector` for each of several sites."""

    def __init__(
        self, tasks: Iterable[str], sizes: Mapping[str, int], initialize: Initializer = nn.init.zeros_
    ) -> None:
        super().__init__({site: TaskVector(tasks, size, initialize) for site, size in sizes.items()})

    def vector(self, site: str, k: int) -> Tensor:
        """Task k's vector at a site."""
        at_site = self[site]
        assert isinstance(at_site, TaskVector)
        vector: Tensor = at_site.vectors[k]
        return vector


def norm_sizes(context: AdapterContext, sites: Iterable[NormSite]) -> dict[str, int]:
    """The sizes of the norms at these sites."""
    return {site: context.embedding_size if site == "embedding" else context.hidden for site in sites}


class Projections(nn.Module):
    """Each task's map to fewer dimensions (V_E) and back (V_D, by default zero at the start: so is the output)."""

    def __init__(self, tasks: tuple[str, ...], hidden: int, size: int, up: Initializer = nn.init.zeros_) -> None:
        super().__init__()
        self.size = size
        self.down = TaskLinear(tasks, hidden, size, normal)
        self.up = TaskLinear(tasks, size, hidden, up)
