"""Averages that follow weights, moved in one launch: against torch's lerp, under Triton's interpreter and on CUDA."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.kernels.updates import following
from polytask.kernels.updates.following import PIECE, Following, _follow

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_cuda = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")
FORMS = ["kernel"] if INTERPRETED else ["torch", pytest.param("kernel", marks=on_cuda)]
SHAPES = [(1,), (7,), (PIECE,), (PIECE + 1,), (40, 100), (0,), (3, 5, 4)]


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


@pytest.fixture(params=FORMS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        return "cpu"
    monkeypatch.setattr(following, "kernels_run", lambda device: True)
    return "cpu" if INTERPRETED else "cuda"


def tensors(device: str, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]
    return [*made, torch.randn(41, generator=generator).to(device)[1:]]  # not aligned for wide loads


@pytest.mark.parametrize("rate", [0.0, 0.001, 0.5, 1.0])
def test_followers_move_as_with_lerp(device: str, rate: float) -> None:
    followers, weights = tensors(device, 0), tensors(device, 1)
    expected = [torch.lerp(f.double(), w.double(), rate) for f, w in zip(followers, weights, strict=True)]
    kept = [w.clone() for w in weights]
    Following(followers, weights).move(torch.tensor(rate, device=device), torch.zeros((), device=device))
    for found, wanted in zip(followers, expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(w, k) for w, k in zip(weights, kept, strict=True))


def test_nothing_moves_after_training_has_stopped(device: str) -> None:
    followers, weights = tensors(device, 0), tensors(device, 1)
    kept = [f.clone() for f in followers]
    Following(followers, weights).move(torch.tensor(0.5, device=device), torch.ones((), device=device))
    assert all(torch.equal(f, k) for f, k in zip(followers, kept, strict=True))


def test_weights_that_have_moved_in_memory_are_noticed(device: str) -> None:
    weight = torch.nn.Parameter(torch.ones(8, device=device))
    follower = torch.zeros(8, device=device)
    moving = Following([follower], [weight])
    weight.data = torch.ones(8, device=device)
    if following.kernels_run(weight.device):
        with pytest.raises(AssertionError):
            moving.move(torch.tensor(0.5, device=device), torch.zeros((), device=device))


def test_the_kernel_loads_four_elements_at_a_time(ptx: Any) -> None:
    kinds = {"places": "*i32", "table": "*i64", "rate": "*fp32", "stopped": "*fp32"}
    code = ptx(_follow, kinds, 4, COLUMNS=following.COLUMNS, PIECE=PIECE)
    assert "ld.global.v4.b32" in code
    assert "st.global.v4.b32" in code
