"""Prefix tuning against transformers' BERT with its attention written out."""

import math
from typing import Any

import torch
from torch import Tensor

from polytask.adapters.base import AdapterContext
from polytask.adapters.prefix import Prefix, PrefixLayer
from polytask.encoders.attention import attend
from polytask.stream import Layout


def attention_with_prefix(attention: Any, h: Tensor, own: PrefixLayer, k: int) -> Tensor:
    """Two heads of 4 for one sequence h, [L, 8], with the prefix of task k before its keys and values."""
    prefixes = [own.prefixes.vector(site, k).view(-1, 8) for site in ("key", "value")]
    keys, values = torch.cat([prefixes[0], attention.key(h)]), torch.cat([prefixes[1], attention.value(h)])
    q, key, value = (x.view(-1, 2, 4).transpose(0, 1) for x in (attention.query(h), keys, values))
    mixed = torch.softmax(q @ key.transpose(1, 2) / math.sqrt(4), -1) @ value
    return mixed.transpose(0, 1).reshape(-1, 8)


@torch.no_grad()
def test_every_attention_has_extra_keys_and_values(context: AdapterContext, shaken: Any, twins: Any) -> None:
    adapter = shaken(Prefix(context, length=3))
    theirs = twins.theirs()
    for k, ids, ours in twins.sequences(adapter):
        h = theirs.embeddings(ids[None])[0]
        for layer, own in zip(theirs.encoder.layer, adapter.layers, strict=True):
            mixed = attention_with_prefix(layer.attention.self, h, own, k)
            a = layer.attention.output(mixed[None], h[None])
            h = layer.output(layer.intermediate(a), a)[0]
        torch.testing.assert_close(ours, h, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_two_prefixes_are_one_long_one(context: AdapterContext, layout: Layout, shaken: Any) -> None:
    one, two, both = (shaken(Prefix(context, length=length)).layers[0] for length in (2, 3, 5))
    for site in ("key", "value"):
        for k in range(2):
            both.prefixes[site].vectors[k].copy_(torch.cat([p.prefixes.vector(site, k) for p in (one, two)]))
    q, k, v = torch.randn(3, sum(layout.lengths), 2, 4)
    inner = lambda *args: one.attend(attend, *args)  # noqa: E731
    torch.testing.assert_close(two.attend(inner, q, k, v, layout), both.attend(attend, q, k, v, layout))


def test_parameters_per_task(context: AdapterContext) -> None:
    assert [p.numel() for p in Prefix(context, length=3).task_parameters("b")] == [24] * 4
