"""Parameters that each task has for itself, used on a stream that holds one task or many.

A task's rows of a stream are one contiguous range, so a task-specific linear map is a product for each range, and a
task-specific vector is repeated over it. On a GPU, where launching many small kernels costs more than the work, the
parameters of the tasks in the stream are stacked and all ranges go through one grouped product and one lookup. Each
task has parameters of its own rather than a slice of one tensor: a task that takes no part in a step gets no gradient
at all, and no optimizer moves it. Knows no method.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import normal
from polytask.kernels.one_product import one_product
from polytask.stream import Groups, Layout

ALIGNED = 8  # rows of 16 bytes, which the grouped product needs
Start = Callable[[Tensor], object]
"""Fills a weight with its first values, in place."""


def task_slices(layout: Layout) -> Iterator[tuple[int, slice]]:
    """Each task of the stream with its rows, in order. Filler rows, which come last, belong to none."""
    for k, (first, last) in enumerate(layout.token_ranges):
        if first < last:
            yield k, slice(first, last)


def by_task(x_TD: Tensor, layout: Layout, apply: Callable[[int, Tensor], Tensor]) -> Tensor:
    """`apply(task index, its rows)` on every task's rows, put together again; filler rows become zeros."""
    if layout.alone is not None:
        return apply(layout.alone, x_TD)
    pieces = [apply(k, x_TD[rows]) for k, rows in task_slices(layout)]
    filler = len(x_TD) - sum(map(len, pieces))
    if filler:
        pieces.append(pieces[0].new_zeros(filler, *pieces[0].shape[1:]))
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


def at_once(x_TD: Tensor, layout: Layout) -> bool:
    """Whether stacking pays: several tasks on a GPU. In a steady stream, where launches cost little and the grouped
    product's gradient could not be captured, many tasks with as many tokens each."""
    return layout.evenly is not None if layout.steady else x_TD.is_cuda and len(layout.groups.tasks) > 1


def compute_type(x_TD: Tensor) -> torch.dtype:
    """The precision that a linear map would work in here."""
    device = x_TD.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_TD.dtype


def grouped_linear(x_TD: Tensor, w_Goi: Tensor, b_Go: Tensor | None, groups: Groups) -> Tensor:
    """`x W_g' + b_g` on the rows of every group g at once, in bf16: the only precision with a grouped kernel."""
    outputs, features = w_Goi.shape[1:]
    more_out, more_in = -outputs % ALIGNED, -features % ALIGNED
    w_Goi = F.pad(w_Goi.bfloat16(), (0, more_in, 0, more_out))
    x_TD = F.pad(x_TD.bfloat16(), (0, more_in)).contiguous()
    product = F.grouped_mm(x_TD, w_Goi.transpose(1, 2), offs=groups.ends_G)
    y_TD: Tensor = _WholeGradient.apply(product)[:, :outputs]  # type: ignore[no-untyped-call]
    return y_TD if b_Go is None else y_TD + b_Go.index_select(0, groups.ids_T).bfloat16()


def even_linear(x_TD: Tensor, w_Goi: Tensor, b_Go: Tensor | None) -> Tensor:
    """`x W_g' + b_g` on the rows of G tasks that have as many each."""
    x_GRD = x_TD.unflatten(0, (len(w_Goi), -1)).to(compute_type(x_TD))
    y_GRo: Tensor = _EvenProduct.apply(x_GRD, w_Goi.to(x_GRD.dtype))  # type: ignore[no-untyped-call]
    if b_Go is not None:
        y_GRo = y_GRo + b_Go[:, None].to(y_GRo.dtype)
    return y_GRo.flatten(0, 1)


class _EvenProduct(torch.autograd.Function):
    """`x_g W_g'`. torch's own makes the gradients of all weights transposed, and then a copy for each of them."""

    @staticmethod
    def forward(ctx: Any, x_GRD: Tensor, w_GoD: Tensor) -> Tensor:
        ctx.save_for_backward(x_GRD, w_GoD)
        return torch.bmm(x_GRD, w_GoD.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad_GRo: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_GRD, w_GoD = ctx.saved_tensors
        x_grad = torch.bmm(grad_GRo, w_GoD) if ctx.needs_input_grad[0] else None
        w_grad = torch.bmm(grad_GRo.transpose(1, 2), x_GRD) if ctx.needs_input_grad[1] else None
        return x_grad, w_grad


def even_rows(vectors: Sequence[Tensor], layout: Layout) -> Tensor:
    """The vector of each token's task, of tasks that have as many tokens each."""
    first, last = next(tokens for tokens in layout.token_ranges if tokens[1])
    return torch.stack(list(vectors))[:, None].expand(-1, last - first, -1).flatten(0, 1)


def looked_up(vectors: Sequence[Tensor], groups: Groups) -> Tensor:
    """The vector of each token's task."""
    return torch.stack(list(vectors)).index_select(0, groups.ids_T)


class _WholeGradient(torch.autograd.Function):
    """Nothing forward; backward a contiguous gradient, which is the only kind the grouped product takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()


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
        if layout.evenly is not None:
            return even_linear(x_TD, *self._stacked(layout, layout.evenly))
        if at_once(x_TD, layout) and compute_type(x_TD) == torch.bfloat16:
            return grouped_linear(x_TD, *self._stacked(layout, layout.groups.tasks), layout.groups)
        if x_TD.is_cuda and layout.alone is not None:
            own = [] if biases is None else [biases[layout.alone]]
            return one_product(x_TD, [self.weights[layout.alone]], own)
        return by_task(x_TD, layout, lambda k, x: F.linear(x, self.weights[k], None if biases is None else biases[k]))

    def _stacked(self, layout: Layout, tasks: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        """Once in a pass, also where layers share the map: the stack's gradients are then added up, not each task's."""
        if self not in layout.made:
            biases = None if self.biases is None else torch.stack([self.biases[k] for k in tasks])
            layout.made[self] = torch.stack([self.weights[k] for k in tasks]), biases
        stacked: tuple[Tensor, Tensor | None] = layout.made[self]
        return stacked

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

    def over(self, layout: Layout) -> Tensor:
        """[T, D]: each token's own, on a stream of several tasks."""
        if layout.evenly is not None:
            return even_rows([self.vectors[k] for k in layout.evenly], layout)
        return looked_up([self.vectors[k] for k in layout.groups.tasks], layout.groups)


def vector_at(parts: nn.ModuleDict, site: str) -> TaskVector:
    part = parts[site]
    assert isinstance(part, TaskVector)
    return part


class Projections(nn.Module):
    """Each task's way into fewer dimensions (V_E, random) and back (V_D, zero: what comes back starts silent)."""

    def __init__(self, tasks: tuple[str, ...], hidden: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.down = TaskLinear(tasks, hidden, size, normal)
        self.up = TaskLinear(tasks, size, hidden, nn.init.zeros_)
