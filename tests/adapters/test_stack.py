"""A stack applies its parts one after another."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polytask.adapters import ADAPTERS
from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, Linear, LinearSite
from polytask.adapters.stack import Stack
from polytask.encoders.attention import attend
from polytask.encoders.bert import Bert, BertShape
from polytask.settings import MethodChoice
from polytask.stream import Layout
from polytask.text.packing import Packer, Part
from polytask.types import UserError

SHAPE = BertShape(layers=2, hidden=8, heads=2, ffn=16, vocabulary=40, positions=16)
PLAIN = AdapterContext(("a",), 2, 8, 2, 16, 0.1, attend=attend)
CONTEXT = replace(PLAIN, make=lambda swap: ADAPTERS[swap.name](PLAIN, **swap.options))
STREAM = Packer(("a",), 2, 3, 16).pack([Part("a", [(np.arange(5, 11),)])])
OPTIONS = {"houlsby": {"size": 3, "position": "after_norm"}, "low_rank": {"size": 3}, "pal": {"size": 4, "heads": 2}}


@pytest.mark.parametrize("silent", ["none", "lhuc"])
@pytest.mark.parametrize("name", ["conditional_norm", "houlsby", "lora", "low_rank", "pal"])
def test_with_a_silent_partner_it_is_the_one(name: str, silent: str) -> None:
    torch.manual_seed(0)
    bert, single = Bert(SHAPE).eval(), ADAPTERS[name](PLAIN, **OPTIONS.get(name, {})).eval()
    for parameter in single.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    context = replace(PLAIN, make=lambda swap: single if swap.name == name else ADAPTERS[swap.name](PLAIN))
    with torch.inference_mode():
        expected = bert.encode(STREAM, single)
        for order in ((name, silent), (silent, name)):
            stack = Stack(context, adapters=tuple(map(MethodChoice, order))).eval()
            torch.testing.assert_close(bert.encode(STREAM, stack), expected, atol=1e-5, rtol=1e-5)


def test_parallel_branches_add_up() -> None:
    twice = Stack(CONTEXT, adapters=(MethodChoice("low_rank", {"size": 3}), MethodChoice("low_rank", {"size": 3})))
    for parameter in twice.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(8, 8)
    both = twice.layer(0).parallel(x, STREAM.layout)
    apart = [part.parallel(x, STREAM.layout) for part in twice.layers[0].parts]
    torch.testing.assert_close(both, apart[0] + apart[1])


def test_one_is_no_stack() -> None:
    with pytest.raises(UserError, match="two or more adapters"):
        Stack(CONTEXT, adapters=(MethodChoice("lhuc"),))


class InputScale(LayerAdapter):
    """`W (s * x)` at one linear map: what an adapter may do before the encoder's own part."""

    def __init__(self, width: int, site: str) -> None:
        super().__init__()
        self.site = site
        self.scale = nn.Parameter(1 + 0.3 * torch.randn(width))

    def linear(self, site: LinearSite, base: Linear, x_TD: Tensor, layout: Layout) -> Tensor:
        return super().linear(site, base, x_TD * self.scale if site == self.site else x_TD, layout)


def scaling(site: str) -> Adapter:
    torch.manual_seed(5)
    return Adapter(LayerAdapter(), (InputScale(SHAPE.ffn if site == "down" else SHAPE.hidden, site) for _ in range(2)))


def random(name: str) -> Adapter:
    adapter = ADAPTERS[name](PLAIN, **{**OPTIONS, "lora": {"sites": ("down",)}}.get(name, {}))
    torch.manual_seed(6)
    for parameter in adapter.parameters():
        nn.init.normal_(parameter, std=0.5)
    return adapter


def stacked(*parts: Adapter) -> Stack:
    """A stack of these adapters, in this order."""
    given = iter(parts)
    return Stack(replace(PLAIN, make=lambda swap: next(given)), adapters=tuple(MethodChoice("any") for _ in parts))


def scaled_encoder(adapter: Adapter) -> Bert:
    """The encoder with the scales of `scaling("down")` in its weights."""
    torch.manual_seed(0)
    bert = Bert(SHAPE).eval()
    with torch.no_grad():
        for index in range(2):
            bert.linear(index, "down").weight *= adapter.layer(index).scale  # type: ignore[arg-type]
    return bert


@pytest.mark.parametrize("name", ["conditional_norm", "houlsby", "lhuc", "low_rank", "pal"])
def test_a_part_that_changes_a_linear_maps_input_does_so_in_every_place(name: str) -> None:
    other, scale = random(name), scaling("down")
    torch.manual_seed(0)
    bert = Bert(SHAPE).eval()
    with torch.inference_mode():
        expected = scaled_encoder(scale).encode(STREAM, other.eval())
        for order in ((other, scale), (scale, other)):
            found = bert.encode(STREAM, stacked(*order).eval())
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_parts_at_one_linear_map_come_one_after_another() -> None:
    """[lora, scale]: (W + B A)(s x). [scale, lora]: W (s x) + B A x."""
    base, x = nn.Linear(SHAPE.ffn, SHAPE.hidden), torch.randn(8, SHAPE.ffn)
    lora, scale = random("lora"), scaling("down")
    change, s = lora.layer(0).change("down", 0), scale.layer(0).scale  # type: ignore[operator]
    for order, plain in (((lora, scale), x * s), ((scale, lora), x)):
        found = stacked(*order).layer(0).linear("down", base, x, STREAM.layout)
        torch.testing.assert_close(found, base(x * s) + plain @ change.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("site", ["query", "attention_output", "up", "down"])
@pytest.mark.parametrize("name", ["conditional_norm", "houlsby", "lora", "own_encoder"])
def test_a_changed_input_gets_gradients_in_both_orders(name: str, site: str) -> None:
    torch.manual_seed(0)
    bert, other, scale = Bert(SHAPE).eval(), random(name), scaling(site)
    for order in ((other, scale), (scale, other)):
        if name == "own_encoder" and order[0] is scale:
            continue  # not allowed: it replaces the maps that the other would change
        stack = stacked(*order)
        out = bert.encode(STREAM, stack)
        grads = torch.autograd.grad((out * torch.randn_like(out)).sum(), list(stack.parameters()))
        assert all(grad.abs().sum() > 0 for grad in grads)
