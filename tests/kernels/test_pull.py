"""The gradients of pulls in one pass: against their definition, in torch's operations, under Triton's interpreter and
on CUDA.

That the pulls of a regularizer are its penalty: tests/contracts/test_regularizers.py.
"""

import os
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polytask.kernels.updates import Learned, Update, one_pass
from polytask.kernels.updates.adamw import AdamWUpdate
from polytask.kernels.updates.plain import PlainUpdate
from polytask.kernels.updates.pull import pull_pieces
from polytask.optim.fused_adamw import FusedAdamW
from polytask.regularizers.base import Pull

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_cuda = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")
ONE_PASS = ("one pass", "cpu") if INTERPRETED else pytest.param(("one pass", "cuda"), marks=on_cuda)
FORMS = [("plain", "cpu"), ONE_PASS]
SHAPES = [(1,), (7,), (1000,), (50, 100), (2048,), (17, 300)]
PULLS = ["centre", "both", "factor", "neither", "none"]


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


def update_of(form: str, weights: list[nn.Parameter]) -> Update:
    optimizer = FusedAdamW(weights)
    return PlainUpdate(optimizer, AdamWUpdate.state_names) if form == "plain" else AdamWUpdate(optimizer)


def learned_for(device: str) -> list[Learned]:
    """Weights of every shape, with every kind of pull, and gradients of both precisions."""
    generator = torch.Generator().manual_seed(0)
    learned = []
    for shape in SHAPES:
        for k, kind in enumerate(PULLS):
            for dtype in (torch.float32, torch.bfloat16):
                weight, gradient, centre, factor = (torch.randn(shape, generator=generator).to(device) for _ in "wgcf")
                parameter = nn.Parameter(weight)
                pull = Pull(
                    parameter,
                    0.1 + 0.1 * k,
                    centre if kind in ("centre", "both") else None,
                    factor.abs() if kind in ("factor", "both") else None,
                )
                learned.append(Learned(parameter, gradient.to(dtype), None, None if kind == "none" else pull))
    return learned


def definition(one: Learned) -> tuple[Tensor, Tensor]:
    """The penalty, and the gradient with that of the penalty, by autograd in float64."""
    if one.pull is None:
        return torch.zeros((), dtype=torch.float64, device=one.weight.device), one.gradient.double()
    weight = one.weight.detach().double().requires_grad_()
    change = weight if one.pull.centre is None else weight - one.pull.centre.double()
    square = change.square() if one.pull.factor is None else one.pull.factor.double() * change.square()
    penalty = one.pull.strength / 2 * square.sum()
    penalty.backward()
    assert weight.grad is not None
    return penalty.detach(), one.gradient.double() + weight.grad


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_pulls_are_their_definition(form: tuple[str, str]) -> None:
    learned = learned_for(form[1])
    expected = [definition(one) for one in learned]
    before = [one.weight.detach().clone() for one in learned]
    penalty, norm = update_of(form[0], [one.weight for one in learned]).pull(learned)
    assert (penalty.dtype, norm.dtype, penalty.shape, norm.shape) == (torch.float32, torch.float32, (), ())
    torch.testing.assert_close(penalty.double(), sum(value for value, _ in expected), rtol=1e-5, atol=0)
    wanted = torch.cat([gradient.flatten() for _, gradient in expected]).norm()
    torch.testing.assert_close(norm.double(), wanted, rtol=1e-3 if form[0] == "plain" else 1e-5, atol=0)
    for one, weight, (_, gradient) in zip(learned, before, expected, strict=True):
        assert torch.equal(one.weight, weight)
        near = {"rtol": 2**-7, "atol": 1e-6} if one.gradient.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(one.gradient.double(), gradient, **near)


@pytest.mark.parametrize("form", [ONE_PASS], ids=str)
def test_the_same_pull_gives_the_same_bits(form: tuple[str, str]) -> None:
    ends = []
    for _ in range(3):
        learned = learned_for(form[1])
        update = update_of(form[0], [one.weight for one in learned])
        ends.append([*update.pull(learned), *(one.gradient for one in learned)])
    for other in ends[1:]:
        assert all(torch.equal(one, two) for one, two in zip(ends[0], other, strict=True))


@pytest.mark.parametrize("form", [ONE_PASS], ids=str)
def test_a_pull_too_small_for_bf16_is_there_on_average(form: tuple[str, str]) -> None:
    """A thousandth of the gradient: rounded to the nearest, the gradient would never change."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.rand(200_000).to(form[1]) + 1)
    gradient = torch.ones(200_000).bfloat16().to(form[1])
    pull = Pull(weight, 1e-3, weight.detach() - 1)
    assert torch.equal(gradient + 1e-3, gradient)
    update_of(form[0], [weight]).pull([Learned(weight, gradient, None, pull)])
    assert gradient.unique().tolist() == [1.0, 1 + 2**-7]
    assert gradient.float().mean().item() == pytest.approx(1 + 1e-3, abs=1e-4)


@pytest.mark.parametrize("form", [ONE_PASS], ids=str)
def test_a_weight_at_its_centre_keeps_its_gradient(form: tuple[str, str]) -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        weight, gradient = nn.Parameter(torch.randn(3000).to(form[1])), torch.randn(3000).to(form[1], dtype)
        before = gradient.clone()
        penalty, _ = update_of(form[0], [weight]).pull(
            [Learned(weight, gradient, None, Pull(weight, 0.5, weight.detach().clone()))]
        )
        assert torch.equal(gradient, before)
        assert penalty.item() == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", ["weight", "centre", "factor", "gradient"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_nan_is_in_the_sums(form: tuple[str, str], place: str, value: float) -> None:
    """So that the update is skipped."""
    for dtype in (torch.float32, torch.bfloat16):
        numbers = {name: torch.ones(100, device=form[1]) for name in ("weight", "centre", "factor", "gradient")}
        numbers[place][70] = value
        weight = nn.Parameter(numbers["weight"] + 1)
        learned = Learned(
            weight, numbers["gradient"].to(dtype), None, Pull(weight, 0.5, numbers["centre"], numbers["factor"])
        )
        penalty, norm = update_of(form[0], [weight]).pull([learned])
        assert not norm.isfinite()
        assert penalty.isfinite() == (place == "gradient")


def test_it_compiles_to_wide_loads(ptx: Any) -> None:
    """Needs no device. The interpreter ignores types and hints."""
    sizes = {"COLUMNS": one_pass.COLUMNS, "PIECE": one_pass.PIECE, "TILE": one_pass.TILE}
    kinds = {"pieces": "*i32", "table": "*i64", "count": "i32"}
    code = ptx(pull_pieces, kinds, num_warps=one_pass.WARPS, **sizes)
    fours = one_pass.PIECE // (32 * one_pass.WARPS) // 4
    # Weight, centre, factor and the gradient in float32; the gradient in bf16.
    assert len(re.findall(r"ld\.global\.v4\.b32", code)) == 4 * fours
    assert len(re.findall(r"ld\.global\.v2\.b32", code)) == fours
    assert len(re.findall(r"st\.global\.v4\.b32", code)) == fours
    assert len(re.findall(r"st\.global\.v2\.b32", code)) == fours


@on_cuda
def test_a_graph_replays_it() -> None:
    learned = learned_for("cuda")
    update = update_of("one pass", [one.weight for one in learned])
    given = [one.gradient.clone() for one in learned]
    wanted = [*update.pull(learned), *(one.gradient.clone() for one in learned)]  # the first one is never captured
    table, graph = update.table(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = [one._replace(gradient=gradient * 1) for one, gradient in zip(learned, given, strict=True)]
        found = [*update.pull(inside, table), *(one.gradient for one in inside)]
    table.send()
    for _ in range(2):
        graph.replay()
        assert all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
    with torch.no_grad():
        for one in learned:
            one.weight.mul_(1.5)
    graph.replay()
    expected = [definition(one._replace(gradient=g)) for one, g in zip(learned, given, strict=True)]
    torch.testing.assert_close(found[0].double(), sum(value for value, _ in expected), rtol=1e-5, atol=0)
