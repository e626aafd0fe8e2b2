"""Dropout of the fused layers, under Triton's interpreter.

That they compute what `bert.Layer` says, with every adapter: tests/contracts/test_fused.py.
"""

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from polytask.build import make_adapter
from polytask.encoders.bert import Bert, BertShape
from polytask.kernels.fused.adapter import fused_adapter
from polytask.kernels.fused.layer import FusedLayer, Hidden
from polytask.settings import MethodChoice
from polytask.text.packing import Packer, Part

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SHAPE = BertShape(layers=2, hidden=32, heads=2, ffn=48, vocabulary=50, positions=32, dropout=0.3, attention_dropout=0.0)


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


def test_dropout_of_a_run_is_that_of_its_layers_one_by_one() -> None:
    """As what repeats a layer's dropout needs it: a layer draws from where the one before it stopped."""
    torch.manual_seed(0)
    encoder, adapter = Bert(SHAPE), make_adapter(MethodChoice("none"), ("one",), SHAPE)
    texts = [(np.random.default_rng(0).integers(5, 50, n),) for n in (3, 9, 1)]
    layout = Packer(("one",), 1, 2, 16).pack([Part("one", texts)], static_shape=True).layout
    h_TD = torch.randn(sum(layout.lengths), SHAPE.hidden)

    def layer(index: int, h: Hidden) -> Hidden:
        return FusedLayer(encoder.layers[index], layout, fused_adapter(adapter.layer(index)))(h)  # type: ignore[arg-type]

    def run() -> Tensor:
        return layer(1, layer(0, Hidden(h_TD, h_TD))).full_TD

    torch.manual_seed(5)
    whole = run()
    torch.manual_seed(5)
    first = layer(0, Hidden(h_TD, h_TD))
    state = torch.get_rng_state()
    torch.testing.assert_close(layer(1, first).full_TD, whole)
    assert not torch.equal(layer(1, first).full_TD, whole)
    torch.set_rng_state(state)
    assert torch.equal(layer(1, first).full_TD, whole)


test_dropout_of_a_run_is_that_of_its_layers_one_by_one.__test__ = INTERPRETED  # type: ignore[attr-defined]
