"""Conditional layer norm is one norm with a scale and shift of the task's own."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from polytask.adapters.base import AdapterContext
from polytask.adapters.conditional_norm import ConditionalNorm
from polytask.stream import Layout


def test_conditional_norm_is_one_norm_with_its_own_scale_and_shift(
    context: AdapterContext, layout: Layout, shaken: Any
) -> None:
    adapter = shaken(ConditionalNorm(context))
    base = nn.LayerNorm(8, eps=1e-12)
    nn.init.normal_(base.weight)
    nn.init.normal_(base.bias)
    x = torch.randn(sum(layout.lengths), 8)
    got = adapter.layer(0).norm("ffn", base, x, layout)
    layer = adapter.layers[0]
    for k, rows in enumerate(layout.token_ranges):
        scale, shift = layer.scales["ffn"].vectors[k], layer.shifts["ffn"].vectors[k]
        expected = F.layer_norm(x[slice(*rows)], (8,), base.weight + scale, base.bias + shift, 1e-12)
        torch.testing.assert_close(got[slice(*rows)], expected, atol=1e-5, rtol=1e-5)
