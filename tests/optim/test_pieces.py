"""Large tensors are updated in chunks on the CPU, bit-identical to updating them whole."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.optim import OPTIMIZERS, base
from polytask.optim.base import ListOptimizer


def after(name: str, piece: int, monkeypatch: pytest.MonkeyPatch, transposed: bool = False) -> list[Tensor]:
    """The parameter and its state after some steps."""
    monkeypatch.setattr(base, "CHUNK", piece)
    generator = torch.Generator().manual_seed(0)
    parameter = torch.randn(37, 11, generator=generator)
    if transposed:
        parameter = parameter.T.contiguous().T
    parameter.requires_grad_()
    optimizer = OPTIMIZERS[name]([parameter], lr=0.01)
    assert isinstance(optimizer, ListOptimizer)
    for _ in range(5):
        parameter.grad = torch.randn(37, 11, generator=generator)
        optimizer.step()
    state: dict[str, Any] = optimizer.state[parameter]
    assert float(state["step"]) == 5
    return [parameter.detach(), *(state[name] for name in optimizer.state_names)]


OURS = [name for name, make in OPTIMIZERS.items() if isinstance(make, type) and issubclass(make, ListOptimizer)]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("transposed", [False, True])
def test_pieces_are_the_whole(name: str, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = after(name, 2**18, monkeypatch, transposed)
    cut = after(name, 64, monkeypatch, transposed)
    for one, two in zip(whole, cut, strict=True):
        assert torch.equal(one, two)
