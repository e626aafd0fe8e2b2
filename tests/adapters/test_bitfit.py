"""BitFit against transformers' BERT with changed biases."""

from typing import Any

import torch

from polytask.adapters.base import AdapterContext
from polytask.adapters.bitfit import BitFit


@torch.no_grad()
def test_each_task_is_a_bert_with_other_biases(context: AdapterContext, shaken: Any, twins: Any) -> None:
    adapter = shaken(BitFit(context))
    for k, ids, ours in twins.sequences(adapter):
        theirs = twins.theirs()
        theirs.embeddings.LayerNorm.bias += adapter.embedding.shifts.vector("embedding", k)
        for layer, own in zip(theirs.encoder.layer, adapter.layers, strict=True):
            modules = {
                "query": layer.attention.self.query,
                "value": layer.attention.self.value,
                "attention_output": layer.attention.output.dense,
                "up": layer.intermediate.dense,
                "down": layer.output.dense,
            }
            for site, linear in modules.items():
                linear.bias += own.biases.vector(site, k)
            layer.attention.self.key.bias += torch.randn(8)  # changes nothing
            layer.attention.output.LayerNorm.bias += own.shifts.vector("attention", k)
            layer.output.LayerNorm.bias += own.shifts.vector("ffn", k)
        torch.testing.assert_close(ours, theirs(ids[None]).last_hidden_state[0], atol=1e-5, rtol=1e-5)


def test_parameters_per_task(context: AdapterContext) -> None:
    adapter = BitFit(context)
    assert sum(p.numel() for p in adapter.task_parameters("b")) == 8 + 2 * (4 * 8 + 16 + 2 * 8)
    assert not any(bool(p.any()) for p in adapter.parameters())
