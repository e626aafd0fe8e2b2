"""The scale and shift of a conditional norm, summed in one kernel, are those of its definition."""

import numpy as np
import pytest
import torch

from polytask.adapters.base import AdapterContext
from polytask.adapters.conditional_norm import ConditionalNormLayer
from polytask.kernels.fused.norms import FusedConditionalNorm
from polytask.stream import Layout
from polytask.text.packing import Packer, Part

TASKS = ("a", "b")


def layout_of(*tasks: str) -> Layout:
    parts = [Part(task, [(np.arange(5, 9),)]) for task in tasks]
    return Packer(TASKS, 1, 2, 16).pack(parts, static_shape=True).layout


@pytest.fixture
def layer() -> ConditionalNormLayer:
    torch.manual_seed(0)
    layer = ConditionalNormLayer(AdapterContext(TASKS, layers=1, hidden=8, heads=2, ffn=8, dropout=0.0), ("attention",))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def test_one_task_has_its_own_scale_and_shift(layer: ConditionalNormLayer) -> None:
    norm, layout = torch.nn.LayerNorm(8), layout_of("b")
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x_TD = torch.randn(sum(layout.lengths), 8)
    affine = FusedConditionalNorm(layer).affine("attention", norm.weight, norm.bias, layout)
    assert affine is not None
    ours = torch.nn.functional.layer_norm(x_TD, (8,), *affine, norm.eps)
    theirs = layer.norm("attention", norm, x_TD, layout)
    torch.testing.assert_close(ours, theirs)
    leaves, towards = [*norm.parameters(), *layer.parameters()], torch.randn_like(ours)
    gradients = [torch.autograd.grad(out, leaves, towards, allow_unused=True) for out in (ours, theirs)]
    for one, two in zip(*gradients, strict=True):
        assert (one is None) == (two is None)  # the other task gets none
        if one is not None:
            torch.testing.assert_close(one, two)


def test_several_tasks_have_no_common_scale(layer: ConditionalNormLayer) -> None:
    assert FusedConditionalNorm(layer).affine("attention", torch.ones(8), torch.zeros(8), layout_of("a", "b")) is None
