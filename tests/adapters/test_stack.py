"""A stack is its parts, one after another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext
from polytask.adapters.stack import Stack
from polytask.text.packing import Packer, Part
from polytask.trunk.bert import Bert, BertShape
from polytask.types import Swap, UserError

SHAPE = BertShape(layers=2, hidden=8, heads=2, ffn=16, vocabulary=40, positions=16)
PLAIN = AdapterContext(("a",), 2, 8, 2, 16, 0.1)
CONTEXT = replace(PLAIN, make=lambda swap: ADAPTERS[swap.name](PLAIN, **swap.options))
STREAM = Packer(("a",), 2, 3, 16).pack([Part("a", [(np.arange(5, 11),)])])
OPTIONS = {"houlsby": {"size": 3, "position": "after_norm"}, "low_rank": {"size": 3}, "pal": {"size": 4, "heads": 2}}


@pytest.mark.parametrize("silent", ["none", "lhuc"])
@pytest.mark.parametrize("name", ["conditional_norm", "houlsby", "lora", "low_rank", "pal"])
def test_with_a_silent_partner_it_is_the_one(name: str, silent: str) -> None:
    torch.manual_seed(0)
    bert, alone = Bert(SHAPE).eval(), ADAPTERS[name](PLAIN, **OPTIONS.get(name, {})).eval()
    for parameter in alone.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    context = replace(PLAIN, make=lambda swap: alone if swap.name == name else ADAPTERS[swap.name](PLAIN))
    with torch.inference_mode():
        expected = bert.encode(STREAM, alone)
        for order in ((name, silent), (silent, name)):
            stack = Stack(context, adapters=tuple(map(Swap, order))).eval()
            torch.testing.assert_close(bert.encode(STREAM, stack), expected, atol=1e-5, rtol=1e-5)


def test_parallel_branches_add_up() -> None:
    twice = Stack(CONTEXT, adapters=(Swap("low_rank", {"size": 3}), Swap("low_rank", {"size": 3})))
    for parameter in twice.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(8, 8)
    both = twice.layer(0).parallel(x, STREAM.layout)
    apart = [part.parallel(x, STREAM.layout) for part in twice.layers[0].parts]
    torch.testing.assert_close(both, apart[0] + apart[1])


def test_one_is_no_stack() -> None:
    with pytest.raises(UserError, match="two or more adapters"):
        Stack(CONTEXT, adapters=(Swap("lhuc"),))
