"""Distances between many weights and their centres: against autograd, with and without factors.

The fused forms' own comparison with their definitions: tests/contracts/test_fused.py.
"""

import pytest
import torch
from torch import Tensor

from polytask.kernels.weight_distance import distance
from polytask.regularizers.ewc import weighted_distance
from polytask.regularizers.l2_sp import squared_distance

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]
SHAPES = [(1,), (7,), (50, 100), (3, 4, 5)]


def tensors(device: str) -> list[Tensor]:
    return [torch.randn(shape).to(device) for shape in SHAPES]


def weights_of(device: str) -> list[Tensor]:
    return [tensor.requires_grad_() for tensor in tensors(device)]


def gradients(value: Tensor, weights: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(3.0 * value, weights))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weighted", [False, True])
def test_value_and_gradient(device: str, weighted: bool) -> None:
    torch.manual_seed(0)
    weights, centres = weights_of(device), tensors(device)
    factors = [tensor.abs() for tensor in tensors(device)] if weighted else [torch.ones_like(c) for c in centres]
    value = distance(weights, centres, factors if weighted else ())
    expected = sum((f * (w - c).square()).sum() for w, c, f in zip(weights, centres, factors, strict=True))
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(value, expected)
    for found, wanted in zip(gradients(value, weights), gradients(expected, weights), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_the_definitions_have_its_gradient(device: str) -> None:
    torch.manual_seed(0)
    weights, centres = weights_of(device), tensors(device)
    factors = [tensor.abs() for tensor in tensors(device)]
    pairs = [
        (squared_distance(weights, centres, torch.device(device)), distance(weights, centres)),
        (weighted_distance(weights, centres, factors), distance(weights, centres, factors)),
    ]
    for one, other in pairs:
        torch.testing.assert_close(one, other)
        for found, wanted in zip(gradients(other, weights), gradients(one, weights), strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_nan_weight_gives_a_nan(device: str, weighted: bool) -> None:
    weights, centres = weights_of(device), tensors(device)
    with torch.no_grad():
        weights[2][3, 4] = torch.nan
    factors = [torch.rand_like(centre) for centre in centres] if weighted else ()
    assert distance(weights, centres, factors).isnan()


def test_without_weights_it_is_zero() -> None:
    assert squared_distance([], [], torch.device("cpu")).item() == 0
