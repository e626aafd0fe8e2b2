"""Properties of every adapter: those of polytask.contracts, the top layers only, and any two of them in a stack."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polytask.adapters import ADAPTERS
from polytask.adapters.base import Adapter, LayerAdapter, Linear, LinearSite
from polytask.adapters.stack import Stack
from polytask.contracts import adapters as contract
from polytask.contracts.adapters import PACKER, SHAPE, both, build, encoded, encoder, identity, shaken
from polytask.methods import options_of
from polytask.settings import MethodChoice
from polytask.stream import Layout
from polytask.types import UserError

OPTIONS: dict[str, dict[str, Any]] = {"pal": {"size": 12, "heads": 3}, "low_rank": {"size": 8}, "houlsby": {"size": 6}}
OPTIONS["shared"] = {"adapter": MethodChoice("pal", OPTIONS["pal"])}
OPTIONS["stack"] = {
    "adapters": tuple(MethodChoice(name, OPTIONS.get(name, {})) for name in ("pal", "conditional_norm", "lhuc", "lora"))
}


def method(name: str, **more: Any) -> contract.Method:
    return partial(ADAPTERS[name], **{**OPTIONS.get(name, {}), **more})


def make(name: str, **more: Any) -> Adapter:
    return build(method(name, **more))


@pytest.mark.parametrize("holds", contract.PROPERTIES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", ADAPTERS)
def test_the_contract(name: str, holds: Callable[[contract.Method], None]) -> None:
    holds(method(name))


WITH_PARAMETERS = [name for name in ADAPTERS if any(True for _ in make(name).parameters())]
WITH_TASKS = [name for name in ADAPTERS if make(name).task_parameters("one")]
WITH_LAYERS = [name for name, method in ADAPTERS.items() if "layers" in {option.name for option in options_of(method)}]


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_the_top_layers_only(name: str) -> None:
    """The layers below stay as they are, and fewer layers do not have more parameters."""
    bert, adapter = encoder(), shaken(make(name, layers=1))
    stream = PACKER.pack(both())
    with torch.inference_mode():
        changed = list(bert.states(bert.embed(stream, adapter), stream.layout, adapter))
        plain = list(bert.states(bert.embed(stream, identity()), stream.layout, identity()))
    assert [torch.equal(a, b) for a, b in zip(changed, plain, strict=True)] == [True, True, False]
    assert sum(p.numel() for p in adapter.parameters()) <= sum(p.numel() for p in make(name).parameters())
    with pytest.raises(UserError, match=r"layers: must be in \[1, 3\], found 4"):
        make(name, layers=4)


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_layers_by_their_numbers(name: str) -> None:
    """Layers 0 and 2 have the adapter: only there does the same input have another output than plain BERT's."""
    bert, adapter = encoder(), shaken(make(name, layers=(2, 0)))
    stream = PACKER.pack(both())
    with torch.inference_mode():
        x_TD = bert.embed(stream, identity())
        assert torch.equal(bert.embed(stream, adapter), x_TD), "the norm of the embeddings belongs to all layers"
        inputs = [x_TD, *bert.states(x_TD, stream.layout, identity())]
        changed = [
            not torch.equal(
                next(bert.states(inputs[index], stream.layout, adapter, index)),
                next(bert.states(inputs[index], stream.layout, identity(), index)),
            )
            for index in range(SHAPE.layers)
        ]
    assert changed == [True, False, True]


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_all_layers_by_their_numbers_are_all_layers(name: str) -> None:
    every, listed = make(name).state_dict(), make(name, layers=(0, 1, 2)).state_dict()
    assert every.keys() == listed.keys()
    assert all(torch.equal(every[key], listed[key]) for key in every)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((), r"layers: must name at least one layer in \[0, 2\], or be left out for all layers"),
        ((0, 3), r"layers: the encoder has layers 0 to 2, counted from the bottom; found 3"),
        ((-1,), r"layers: the encoder has layers 0 to 2, counted from the bottom; found -1"),
        ((1, 0, 1), r"layers: must name each layer once, found 1 2 times"),
    ],
)
@pytest.mark.parametrize("name", WITH_LAYERS)
def test_wrong_lists_of_layers_are_refused(name: str, layers: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(name, layers=layers)


class InputScale(LayerAdapter):
    """`W (s * x)` at the linear map `down`: changes the input of a map, where others change the output."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.3 * torch.randn(SHAPE.ffn))

    def linear(self, site: LinearSite, base: Linear, x_TD: Tensor, layout: Layout) -> Tensor:
        return super().linear(site, base, x_TD * self.scale if site == "down" else x_TD, layout)


def input_scale() -> Adapter:
    torch.manual_seed(3)
    return Adapter(LayerAdapter(), (InputScale() for _ in range(SHAPE.layers)))


def stacked(*parts: Adapter) -> Stack:
    """A stack of these adapters, in this order."""
    given = iter(parts)
    context = replace(contract.context_of(), make=lambda swap: next(given))
    return Stack(context, adapters=tuple(MethodChoice("any") for _ in parts))


@pytest.mark.parametrize("name", WITH_TASKS)
def test_in_a_stack_every_parameter_gets_a_gradient_in_both_orders(name: str) -> None:
    """With every adapter that follows in the table, and with one that changes what goes into a linear map."""
    bert, stream = encoder(), PACKER.pack(both())
    following = WITH_TASKS[WITH_TASKS.index(name) :]
    others = {other: shaken(make(other)) for other in following} | {"input_scale": input_scale()}
    for other, partner in others.items():
        adapter = shaken(make(name))
        for order in ((adapter, partner), (partner, adapter)):
            if order[1].replacements():
                with pytest.raises(UserError, match="must come first in a stack"):
                    stacked(*order)
                continue
            stack = stacked(*order)
            stack.zero_grad(set_to_none=True)
            bert.encode(stream, stack).square().sum().backward()
            silent = [key for key, p in stack.named_parameters() if p.grad is None or not p.grad.any()]
            assert not silent, (other, silent)


def leaves_down(name: str) -> bool:
    """Whether an adapter leaves `down` as it is. If it changes that map too, the result depends on their order."""
    layout, adapter = PACKER.pack(both()).layout, shaken(make(name))
    x_TF, base = torch.randn(sum(layout.lengths), SHAPE.ffn), encoder().linear(0, "down")
    layers = [adapter.layer(index) for index in range(SHAPE.layers)]
    return all(torch.equal(layer.linear("down", base, x_TF, layout), base(x_TF)) for layer in layers)


LEAVES_DOWN = [name for name in ADAPTERS if leaves_down(name)]


@pytest.mark.parametrize("name", LEAVES_DOWN)
def test_in_a_stack_an_adapter_computes_what_it_computes_alone(name: str) -> None:
    """The other part scales the input of `down`, which is the same as an encoder with scaled columns there."""
    adapter, scale = shaken(make(name)), input_scale()
    parts, scaled = both(), encoder()
    with torch.no_grad():
        for index in range(SHAPE.layers):
            scaled.linear(index, "down").weight *= scale.layer(index).scale  # type: ignore[arg-type]
    expected = encoded(scaled, adapter, *parts)[1]
    for order in ((adapter, scale), (scale, adapter)):
        torch.testing.assert_close(encoded(encoder(), stacked(*order), *parts)[1], expected, atol=1e-5, rtol=1e-5)
