"""LHUC against its formula."""

from typing import Any

import torch
from torch import nn

from polytask.adapters.base import AdapterContext
from polytask.adapters.lhuc import Lhuc
from polytask.stream import Layout


def test_lhuc_scales_between_0_and_2(context: AdapterContext, layout: Layout, shaken: Any) -> None:
    adapter = shaken(Lhuc(context))
    x = torch.randn(sum(layout.lengths), 8)
    norm = nn.LayerNorm(8)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    got = adapter.layer(1).norm("ffn", norm, x, layout)
    for k, rows in enumerate(layout.token_ranges):
        gate = 2 * torch.sigmoid(adapter.layers[1].gate.vectors[k])
        torch.testing.assert_close(got[slice(*rows)], norm(x[slice(*rows)]) * gate)
    assert torch.equal(adapter.layer(1).norm("attention", norm, x, layout), norm(x))
