"""Houlsby adapters: the formula, the places, the start."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polytask.adapters.base import AdapterContext
from polytask.adapters.houlsby import Houlsby
from polytask.stream import Layout


@pytest.mark.parametrize("position", ["after_ffn", "after_norm", "both_sublayers"])
def test_houlsby_is_at_the_documented_places(
    position: str, context: AdapterContext, layout: Layout, shaken: Any
) -> None:
    adapter = shaken(Houlsby(context, size=3, position=position))  # type: ignore[arg-type]
    x = torch.randn(sum(layout.lengths), 8)
    layer = adapter.layer(0)
    touched = {
        "attention": not torch.equal(layer.sublayer("attention", x, layout), x),
        "ffn": not torch.equal(layer.sublayer("ffn", x, layout), x),
        "layer": not torch.equal(layer.output(x, layout), x),
    }
    where = {"after_ffn": {"ffn"}, "after_norm": {"layer"}, "both_sublayers": {"attention", "ffn"}}[position]
    assert {site for site, changed in touched.items() if changed} == where
    ffn = adapter.layers[0].ffn
    got = layer.output(x, layout) if position == "after_norm" else layer.sublayer("ffn", x, layout)
    rows = slice(*layout.token_ranges[1])
    narrow = F.gelu(F.linear(x[rows], ffn.down.weights[1], ffn.down.biases[1]))
    expected = x[rows] + F.linear(narrow, ffn.up.weights[1], ffn.up.biases[1])
    torch.testing.assert_close(got[rows], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("options", "deviation"), [({}, 1e-3), ({"deviation": 2e-2}, 2e-2)])
def test_houlsby_starts_near_the_identity_with_the_chosen_deviation(options: Any, deviation: float) -> None:
    wide = AdapterContext(("a",), layers=1, hidden=768, heads=12, ffn=3072, dropout=0.1)
    bottleneck = Houlsby(wide, **options).layers[0].ffn
    for weight in (bottleneck.down.weights[0], bottleneck.up.weights[0]):
        assert 0.8 * deviation < weight.std().item() < deviation  # truncated at two deviations
        assert weight.abs().max().item() <= 2 * deviation
