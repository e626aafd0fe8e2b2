"""LoRA can be merged into the encoder."""

from typing import Any

import numpy as np
import torch

from polytask.adapters.base import AdapterContext
from polytask.adapters.lora import Lora
from polytask.encoders.bert import Bert, BertShape
from polytask.text.packing import Packer, Part

SHAPE = BertShape(layers=2, hidden=8, heads=2, ffn=16, vocabulary=40, positions=16)


def test_lora_can_be_merged_into_the_encoder(context: AdapterContext, shaken: Any) -> None:
    sites = ("query", "key", "value", "attention_output", "up", "down")
    torch.manual_seed(0)
    bert = Bert(SHAPE).eval()
    lora = shaken(Lora(context, rank=2, alpha=4.0, sites=sites)).eval()
    assert isinstance(lora, Lora)
    pieces = Packer(("a", "b"), 2, 3, 16).pack([Part("b", [(np.arange(5, 11),)])])
    plain = Lora(context, rank=2, sites=sites).eval()  # B = 0: changes nothing
    with torch.inference_mode():
        expected = bert.encode(pieces, lora)
        before = bert.encode(pieces, plain)
    lora.merge(1, bert.linear)
    with torch.inference_mode():
        torch.testing.assert_close(bert.encode(pieces, plain), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before, expected, atol=1e-3)
