"""On the CPU optimizers update in chunks, bit-identical to their definition: one update of a whole group."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.fused_forms import FUSED_FORMS
from polytask.kernels import cpu_update
from polytask.optim import OPTIMIZERS
from polytask.optim.base import ListOptimizer

SHAPES = [(37, 11), (5,), (), (64,), (3, 2, 2), (65,)]
OURS = [name for name, make in OPTIMIZERS.items() if isinstance(make, type) and issubclass(make, ListOptimizer)]


def after(name: str, transposed: bool = False) -> list[Tensor]:
    """The parameters and their state after some steps, in which some have no gradient."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator) for shape in SHAPES]
    if transposed:
        params[0] = params[0].T.contiguous().T
    optimizer = OPTIMIZERS[name]([parameter.requires_grad_() for parameter in params], lr=0.01)
    assert isinstance(optimizer, ListOptimizer)
    for step in range(5):
        for parameter in params:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        params[step].grad = None
        optimizer.step()
    states: list[dict[str, Any]] = [optimizer.state[parameter] for parameter in params]
    assert [float(state["step"]) for state in states] == [4, 4, 4, 4, 4, 5]
    return [p.detach() for p in params] + [state[name] for state in states for name in optimizer.state_names]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [1, 64, 2**18])
def test_chunks_are_the_definition(name: str, transposed: bool, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_update, "CHUNK", size)
    chunked = after(name, transposed)
    monkeypatch.delitem(FUSED_FORMS, ListOptimizer.update_lists)
    for one, two in zip(chunked, after(name, transposed), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("name", "calls"), [("adamw", [[64], [64], [9], [5, 30]]), ("lamb", [[137], [5, 30]])])
def test_small_parameters_share_a_chunk(name: str, calls: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones are cut if each element is updated by itself."""
    monkeypatch.setattr(cpu_update, "CHUNK", 64)
    params = [torch.zeros(size, requires_grad=True) for size in (137, 5, 30)]
    optimizer, sizes = OPTIMIZERS[name](params), []
    monkeypatch.setattr(optimizer, "update", lambda lists, _: sizes.append([p.numel() for p in lists.params]))
    for parameter in params:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert sizes == calls
