"""IA3 against transformers' BERT with the scales folded into its weights."""

from typing import Any

import torch

from polytask.adapters.base import AdapterContext
from polytask.adapters.ia3 import Ia3, Ia3Layer


@torch.no_grad()
def test_each_task_is_a_bert_with_scaled_weights(context: AdapterContext, shaken: Any, twins: Any) -> None:
    adapter = shaken(Ia3(context))
    for k, ids, ours in twins.sequences(adapter):
        theirs = twins.theirs()
        for layer, own in zip(theirs.encoder.layer, adapter.layers, strict=True):
            assert isinstance(own, Ia3Layer)
            for linear, site in ((layer.attention.self.key, "key"), (layer.attention.self.value, "value")):
                linear.weight *= own.scales.vector(site, k)[:, None]
                linear.bias *= own.scales.vector(site, k)
            layer.output.dense.weight *= own.scales.vector("down", k)
        torch.testing.assert_close(ours, theirs(ids[None]).last_hidden_state[0], atol=1e-5, rtol=1e-5)


def test_three_vectors_of_ones_per_layer_and_task(context: AdapterContext) -> None:
    adapter = Ia3(context)
    assert [p.numel() for p in adapter.task_parameters("a")] == [8, 8, 16] * 2
    assert all(bool((p == 1).all()) for p in adapter.parameters())
