"""The other adapters against their formulas written out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polytask.adapters.base import Adapter, AdapterContext
from polytask.adapters.conditional_norm import ConditionalNorm
from polytask.adapters.houlsby import Houlsby
from polytask.adapters.lhuc import Lhuc
from polytask.adapters.lora import Lora
from polytask.adapters.low_rank import LowRank
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.trunk.bert import Bert, BertShape

CONTEXT = AdapterContext(("a", "b"), layers=2, hidden=8, heads=2, ffn=16, dropout=0.1)
SHAPE = BertShape(layers=2, hidden=8, heads=2, ffn=16, vocabulary=40, positions=16)


def stream() -> Stream:
    parts = [Part("a", [(np.arange(5, 9),)]), Part("b", [(np.arange(5, 7),), (np.arange(5, 11),)])]
    return Packer(("a", "b"), 2, 3, 16).pack(parts)


def random(adapter: Adapter) -> Adapter:
    torch.manual_seed(3)
    for parameter in adapter.parameters():
        nn.init.normal_(parameter, std=0.5)
    return adapter


def test_conditional_norm_is_one_norm_with_its_own_scale_and_shift() -> None:
    adapter = random(ConditionalNorm(CONTEXT))
    base = nn.LayerNorm(8, eps=1e-12)
    nn.init.normal_(base.weight)
    nn.init.normal_(base.bias)
    layout = stream().layout
    x = torch.randn(sum(layout.lengths), 8)
    got = adapter.layer(0).norm("ffn", base, x, layout)
    layer = adapter.layers[0]
    for k, rows in enumerate(layout.token_ranges):
        scale, shift = layer.scales["ffn"].vectors[k], layer.shifts["ffn"].vectors[k]
        expected = F.layer_norm(x[slice(*rows)], (8,), base.weight + scale, base.bias + shift, 1e-12)
        torch.testing.assert_close(got[slice(*rows)], expected, atol=1e-5, rtol=1e-5)


def test_lhuc_scales_between_0_and_2() -> None:
    adapter = random(Lhuc(CONTEXT))
    layout = stream().layout
    x = torch.randn(sum(layout.lengths), 8)
    got = adapter.layer(1).norm("ffn", nn.Identity(), x, layout)
    for k, rows in enumerate(layout.token_ranges):
        gate = 2 * torch.sigmoid(adapter.layers[1].gate.vectors[k])
        torch.testing.assert_close(got[slice(*rows)], x[slice(*rows)] * gate)
    assert torch.equal(adapter.layer(1).norm("attention", nn.Identity(), x, layout), x)


@pytest.mark.parametrize("gelu", [False, True])
def test_low_rank(gelu: bool) -> None:
    adapter = random(LowRank(CONTEXT, size=3, gelu=gelu))
    layout = stream().layout
    x = torch.randn(sum(layout.lengths), 8)
    got = adapter.layer(0).parallel(x, layout)
    p = adapter.projections
    for k, rows in enumerate(layout.token_ranges):
        narrow = F.linear(x[slice(*rows)], p.down.weights[k], p.down.biases[k])
        expected = F.linear(F.gelu(narrow) if gelu else narrow, p.up.weights[k], p.up.biases[k])
        torch.testing.assert_close(got[slice(*rows)], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("position", ["after_ffn", "after_norm", "both_sublayers"])
def test_houlsby_is_where_it_says(position: str) -> None:
    adapter = random(Houlsby(CONTEXT, size=3, position=position))  # type: ignore[arg-type]
    layout = stream().layout
    x = torch.randn(sum(layout.lengths), 8)
    layer = adapter.layer(0)
    touched = {
        "attention": not torch.equal(layer.sublayer("attention", x, layout), x),
        "ffn": not torch.equal(layer.sublayer("ffn", x, layout), x),
        "norm": not torch.equal(layer.norm("ffn", nn.Identity(), x, layout), x),
    }
    where = {"after_ffn": {"ffn"}, "after_norm": {"norm"}, "both_sublayers": {"attention", "ffn"}}[position]
    assert {site for site, changed in touched.items() if changed} == where
    assert torch.equal(layer.norm("attention", nn.Identity(), x, layout), x)
    ffn = adapter.layers[0].ffn
    got = layer.norm("ffn", nn.Identity(), x, layout) if position == "after_norm" else layer.sublayer("ffn", x, layout)
    rows = slice(*layout.token_ranges[1])
    narrow = F.gelu(F.linear(x[rows], ffn.down.weights[1], ffn.down.biases[1]))
    expected = x[rows] + F.linear(narrow, ffn.up.weights[1], ffn.up.biases[1])
    torch.testing.assert_close(got[rows], expected, atol=1e-5, rtol=1e-5)


def test_houlsby_starts_near_the_identity_with_its_own_deviation() -> None:
    wide = AdapterContext(("a",), layers=1, hidden=768, heads=12, ffn=3072, dropout=0.1)
    weight = Houlsby(wide).layers[0].ffn.down.weights[0]
    assert 0.8e-3 < weight.std().item() < 1e-3  # truncated at two deviations
    assert weight.abs().max().item() <= 2e-3


def test_lora_can_be_merged_into_the_trunk() -> None:
    sites = ("query", "key", "value", "attention_output", "up", "down")
    torch.manual_seed(0)
    bert = Bert(SHAPE).eval()
    lora = random(Lora(CONTEXT, rank=2, alpha=4.0, sites=sites)).eval()
    assert isinstance(lora, Lora)
    pieces = Packer(("a", "b"), 2, 3, 16).pack([Part("b", [(np.arange(5, 11),)])])
    plain = Lora(CONTEXT, rank=2, sites=sites).eval()  # B = 0: changes nothing
    with torch.inference_mode():
        expected = bert.encode(pieces, lora)
        before = bert.encode(pieces, plain)
    lora.merge(1, bert.linear)
    with torch.inference_mode():
        torch.testing.assert_close(bert.encode(pieces, plain), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before, expected, atol=1e-3)
