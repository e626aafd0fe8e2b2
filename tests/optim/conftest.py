"""Several optimizers on the same parameters and gradients."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

SHAPES: list[tuple[int, ...]] = [(7, 5), (11,), (3, 2, 2), ()]
Groups = list[dict[str, Any]]
Follow = Callable[..., list[tuple[list[Tensor], Optimizer]]]


def start(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in SHAPES]


def groups(params: list[Tensor]) -> Groups:
    """Two groups with different learning rates and decays."""
    return [
        {"params": params[:2], "lr": 1e-2, "weight_decay": 0.1},
        {"params": params[2:], "lr": 3e-3, "weight_decay": 0.0, "betas": (0.8, 0.99)},
    ]


def gradients(dtype: torch.dtype, steps: int, holes: bool) -> Iterator[list[Tensor | None]]:
    """Gradients of changing size; with holes, the second and the last parameter often have none, in different steps."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        size = 10.0 ** (step % 5 - 3)
        grads: list[Tensor | None] = [size * torch.randn(s, generator=generator, dtype=dtype) for s in SHAPES]
        if holes and step % 3 == 0:
            grads[1] = None
        if holes and step % 7 < 4:
            grads[3] = None
        yield grads


@pytest.fixture
def follow() -> Follow:
    """follow(make, ..., dtype, steps, holes): what each optimizer made by `make(groups)` turns the parameters into.

    `each(step, optimizer)` is called before every step.
    """

    def run(
        *makers: Callable[[Groups], Optimizer],
        dtype: torch.dtype = torch.float64,
        steps: int = 300,
        holes: bool = True,
        each: Callable[[int, Optimizer], None] = lambda step, optimizer: None,
    ) -> list[tuple[list[Tensor], Optimizer]]:
        followed = []
        for make in makers:
            params = start(dtype)
            optimizer = make(groups(params))
            for step, grads in enumerate(gradients(dtype, steps, holes)):
                for parameter, grad in zip(params, grads, strict=True):
                    parameter.grad = grad
                each(step, optimizer)
                optimizer.step()
            followed.append((params, optimizer))
        return followed

    return run
