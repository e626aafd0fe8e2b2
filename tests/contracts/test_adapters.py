"""Properties of every adapter: plain BERT at the start, unchanged encoder names, a mixed stream like single tasks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polytask.adapters import ADAPTERS
from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, Linear, LinearSite
from polytask.adapters.stack import Stack
from polytask.build import options_of
from polytask.encoders.attention import attend
from polytask.encoders.bert import Bert, BertShape
from polytask.settings import MethodChoice
from polytask.stream import Layout, Stream
from polytask.text.packing import Packer, Part
from polytask.types import UserError

SHAPE = BertShape(layers=3, hidden=32, heads=4, ffn=64, vocabulary=100, positions=32)
CONTEXT = AdapterContext(
    ("one", "two"),
    SHAPE.layers,
    SHAPE.hidden,
    SHAPE.heads,
    SHAPE.ffn,
    SHAPE.dropout,
    make=lambda swap, tasks=None: ADAPTERS[swap.name](replace(CONTEXT, tasks=tasks or CONTEXT.tasks), **swap.options),
    attend=attend,
)
PACKER = Packer(("one", "two"), 2, 3, 32)


OPTIONS: dict[str, dict[str, Any]] = {"pal": {"size": 12, "heads": 3}, "low_rank": {"size": 8}, "houlsby": {"size": 6}}
OPTIONS["shared"] = {"adapter": MethodChoice("pal", OPTIONS["pal"])}
OPTIONS["stack"] = {
    "adapters": tuple(MethodChoice(name, OPTIONS.get(name, {})) for name in ("pal", "conditional_norm", "lhuc", "lora"))
}


def make(name: str, **more: Any) -> Adapter:
    torch.manual_seed(1)
    adapter = ADAPTERS[name](CONTEXT, **{**OPTIONS.get(name, {}), **more})
    adapter.start_from(encoder())
    return adapter


def shaken(adapter: Adapter) -> Adapter:
    """With random values added, because many parameters start at zero."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return adapter


def part(task: str, seed: int) -> Part:
    rng = np.random.default_rng(seed)
    return Part(task, [(rng.integers(5, 100, rng.integers(1, 12)),) for _ in range(5)])


def encoder() -> Bert:
    torch.manual_seed(0)
    return Bert(SHAPE).eval()


def encoded(bert: Bert, adapter: Adapter, *parts: Part) -> tuple[Stream, torch.Tensor]:
    stream = PACKER.pack(parts)
    with torch.inference_mode():
        return stream, bert.encode(stream, adapter.eval())


@pytest.mark.parametrize("name", ADAPTERS)
def test_starts_as_plain_bert(name: str) -> None:
    """Bit-identical where the method promises it. How near the others start is up to their own tests."""
    identity = Adapter(LayerAdapter(), (LayerAdapter() for _ in range(SHAPE.layers)))
    parts = [part("one", 1), part("two", 2)]
    adapter = make(name)
    with_adapter, plain = encoded(encoder(), adapter, *parts)[1], encoded(encoder(), identity, *parts)[1]
    assert torch.isfinite(with_adapter).all()
    assert torch.equal(with_adapter, plain) or not adapter.plain_at_start


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_encoder_keeps_its_names_and_the_adapter_has_its_own(name: str) -> None:
    bert = encoder()
    before = set(bert.state_dict())
    adapter = make(name)
    assert set(bert.state_dict()) == before
    own = [p for task in CONTEXT.tasks for p in adapter.task_parameters(task)]
    assert len({id(p) for p in own}) == len(own)
    assert {id(p) for p in own} <= {id(p) for p in adapter.parameters()}


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_mixed_stream_is_the_same_as_one_task_at_a_time(name: str) -> None:
    bert, adapter = encoder(), shaken(make(name))
    stream, together = encoded(bert, adapter, part("one", 1), part("two", 2))
    for k, task in enumerate(CONTEXT.tasks):
        alone = encoded(bert, adapter, part(task, k + 1))[1]
        torch.testing.assert_close(together[slice(*stream.layout.token_ranges[k])], alone, atol=1e-5, rtol=0)


WITH_PARAMETERS = [name for name in ADAPTERS if any(True for _ in make(name).parameters())]
WITH_TASKS = [name for name in ADAPTERS if make(name).task_parameters("one")]
WITH_LAYERS = [name for name, method in ADAPTERS.items() if "layers" in {option.name for option in options_of(method)}]


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_gradients_of_a_mixed_stream_are_those_of_each_task_alone(name: str) -> None:
    bert, adapter = encoder(), shaken(make(name))

    def gradients(*parts: Part) -> dict[str, torch.Tensor | None]:
        adapter.zero_grad(set_to_none=True)
        bert.encode(PACKER.pack(parts), adapter).square().sum().backward()
        return {key: p.grad for key, p in adapter.named_parameters()}

    together = gradients(part("one", 1), part("two", 2))
    alone = [gradients(part("one", 1)), gradients(part("two", 2))]
    for key, gradient in together.items():
        found = [one[key] for one in alone if one[key] is not None]
        assert gradient is not None
        torch.testing.assert_close(gradient, sum(found[1:], start=found[0]), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", WITH_TASKS)
def test_no_gradient_reaches_another_task(name: str) -> None:
    bert, adapter = encoder(), shaken(make(name))
    bert.encode(PACKER.pack([part("one", 1)]), adapter).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter.task_parameters("one"))
    assert all(p.grad is None for p in adapter.task_parameters("two"))


@pytest.mark.parametrize("name", WITH_TASKS)
def test_a_task_changes_only_its_own_rows(name: str) -> None:
    bert, adapter = encoder(), shaken(make(name))
    stream, before = encoded(bert, adapter, part("one", 1), part("two", 2))
    with torch.no_grad():
        for parameter in adapter.task_parameters("two"):
            parameter += 0.5
    after = encoded(bert, adapter, part("one", 1), part("two", 2))[1]
    one, two = (slice(*r) for r in stream.layout.token_ranges)
    assert torch.equal(after[one], before[one])
    assert not torch.equal(after[two], before[two])


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_save_and_load(name: str) -> None:
    adapter, other = shaken(make(name)), make(name)
    other.load_state_dict({key: tensor.clone() for key, tensor in adapter.state_dict().items()})
    parts = [part("one", 1), part("two", 2)]
    assert torch.equal(encoded(encoder(), adapter, *parts)[1], encoded(encoder(), other, *parts)[1])


@pytest.mark.parametrize("name", WITH_LAYERS)
def test_the_top_layers_only(name: str) -> None:
    """The layers below stay as they are, and fewer layers do not have more parameters."""
    bert, adapter = encoder(), shaken(make(name, layers=1))
    stream = PACKER.pack([part("one", 1), part("two", 2)])
    identity = Adapter(LayerAdapter(), (LayerAdapter() for _ in range(SHAPE.layers)))
    with torch.inference_mode():
        changed = list(bert.states(bert.embed(stream, adapter), stream.layout, adapter))
        plain = list(bert.states(bert.embed(stream, identity), stream.layout, identity))
    assert [torch.equal(a, b) for a, b in zip(changed, plain, strict=True)] == [True, True, False]
    assert sum(p.numel() for p in adapter.parameters()) <= sum(p.numel() for p in make(name).parameters())
    with pytest.raises(UserError, match=r"layers: must be in \[1, 3\], found 4"):
        make(name, layers=4)


@pytest.mark.parametrize("name", ADAPTERS)
def test_filler_changes_nothing(name: str) -> None:
    bert, adapter = encoder(), shaken(make(name)).eval()
    parts = [part("one", 1), part("two", 2)]
    tight, filled = PACKER.pack(parts), PACKER.pack(parts, token_budget=200)
    with torch.inference_mode():
        a, b = bert.encode(tight, adapter), bert.encode(filled, adapter)
    torch.testing.assert_close(b[: len(a)], a, atol=1e-5, rtol=0)
    assert torch.isfinite(b).all()


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("tasks", [("two",), ("one", "two")])
def test_a_stream_of_static_shape_changes_nothing(name: str, tasks: tuple[str, ...]) -> None:
    """Captured steps use them: each task's sequences are followed by filler."""
    bert, adapter = encoder(), shaken(make(name)).eval()
    parts = [part(task, at) for at, task in enumerate(tasks)]
    tight, static = PACKER.pack(parts), PACKER.pack(parts, static_shape=True)
    with torch.inference_mode():
        wanted, found = bert.encode(tight, adapter), bert.encode(static, adapter)
    for (first, last), (start, _) in zip(tight.layout.token_ranges, static.layout.token_ranges, strict=True):
        torch.testing.assert_close(found[start : start + last - first], wanted[first:last], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ADAPTERS)
def test_many_tasks_in_a_stream_of_static_shape_are_each_as_if_separate(name: str) -> None:
    """Their parameters are stacked, and the gradients reach each task's own parameters."""
    tasks = tuple("abcdef")
    inner, packer = replace(CONTEXT, tasks=tasks), Packer(tasks, 2, 3, 32)
    context = replace(
        inner, make=lambda swap, own=None: ADAPTERS[swap.name](replace(inner, tasks=own or tasks), **swap.options)
    )
    bert = encoder()
    torch.manual_seed(1)
    adapter = ADAPTERS[name](context, **OPTIONS.get(name, {}))
    adapter.start_from(bert)
    shaken(adapter).eval()
    parts = [part(task, at) for at, task in enumerate(tasks) if task != "b"]
    tight, static = packer.pack(parts), packer.pack(parts, static_shape=True)
    assert static.layout.equal_tasks is not None
    towards = torch.randn(tight.token_ids_T.shape[0], SHAPE.hidden)
    states, gradients = [], []
    for stream in (tight, static):
        adapter.zero_grad(set_to_none=True)
        out = bert.encode(stream, adapter)
        sizes = [last - first for first, last in tight.layout.token_ranges]
        rows = [out[first : first + n] for (first, _), n in zip(stream.layout.token_ranges, sizes, strict=True)]
        states.append(torch.cat(rows))
        (states[-1] * towards).sum().backward()
        gradients.append({n: p.grad for n, p in adapter.named_parameters() if p.grad is not None})
    torch.testing.assert_close(states[1], states[0], atol=1e-5, rtol=0)
    assert gradients[0].keys() == gradients[1].keys()
    for found, wanted in zip(gradients[1].values(), gradients[0].values(), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ADAPTERS)
def test_bf16_is_close(name: str) -> None:
    bert, adapter = encoder(), shaken(make(name)).eval()
    stream = PACKER.pack([part("one", 1), part("two", 2)])
    with torch.inference_mode():
        exact = bert.encode(stream, adapter)
        with torch.autocast("cpu", torch.bfloat16):
            rough = bert.encode(stream, adapter)
    assert (rough.float() - exact).abs().max() < 0.2


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
    return Stack(replace(CONTEXT, make=lambda swap: next(given)), adapters=tuple(MethodChoice("any") for _ in parts))


@pytest.mark.parametrize("name", WITH_TASKS)
def test_in_a_stack_every_parameter_gets_a_gradient_in_both_orders(name: str) -> None:
    """With every adapter that follows in the table, and with one that changes what goes into a linear map."""
    bert, stream = encoder(), PACKER.pack([part("one", 1), part("two", 2)])
    following = WITH_TASKS[WITH_TASKS.index(name) :]
    others = {other: shaken(make(other)) for other in following} | {"input_scale": input_scale()}
    for other, partner in others.items():
        adapter = shaken(make(name))
        for order in ((adapter, partner), (partner, adapter)):
            if order[1].replacements():
                with pytest.raises(UserError, match="must come first in a stack"):
                    stacked(*order)
                continue
            both = stacked(*order)
            both.zero_grad(set_to_none=True)
            bert.encode(stream, both).square().sum().backward()
            silent = [key for key, p in both.named_parameters() if p.grad is None or not p.grad.any()]
            assert not silent, (other, silent)


def leaves_down(name: str) -> bool:
    """Whether an adapter leaves `down` as it is. If it changes that map too, the result depends on their order."""
    layout, adapter = PACKER.pack([part("one", 1), part("two", 2)]).layout, shaken(make(name))
    x_TF, base = torch.randn(sum(layout.lengths), SHAPE.ffn), encoder().linear(0, "down")
    layers = [adapter.layer(index) for index in range(SHAPE.layers)]
    return all(torch.equal(layer.linear("down", base, x_TF, layout), base(x_TF)) for layer in layers)


LEAVES_DOWN = [name for name in ADAPTERS if leaves_down(name)]


@pytest.mark.parametrize("name", LEAVES_DOWN)
def test_in_a_stack_an_adapter_computes_what_it_computes_alone(name: str) -> None:
    """The other part scales the input of `down`, which is the same as an encoder with scaled columns there."""
    adapter, scale = shaken(make(name)), input_scale()
    parts, scaled = [part("one", 1), part("two", 2)], encoder()
    with torch.no_grad():
        for index in range(SHAPE.layers):
            scaled.linear(index, "down").weight *= scale.layer(index).scale  # type: ignore[arg-type]
    expected = encoded(scaled, adapter, *parts)[1]
    for order in ((adapter, scale), (scale, adapter)):
        torch.testing.assert_close(encoded(encoder(), stacked(*order), *parts)[1], expected, atol=1e-5, rtol=1e-5)
