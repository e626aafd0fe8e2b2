"""Properties of adapters, on a tiny encoder with three layers and two tasks."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter
from polytask.contracts.claims import require, require_close, require_finite
from polytask.encoders.attention import attend
from polytask.encoders.bert import Bert, BertShape
from polytask.methods import find_method
from polytask.settings import MethodChoice
from polytask.stream import Stream
from polytask.text.packing import Packer, Part

Method = Callable[[AdapterContext], Adapter]
SHAPE = BertShape(layers=3, hidden=32, heads=4, ffn=64, vocabulary=100, positions=32)
TASKS = ("one", "two")
PACKER = Packer(TASKS, 2, 3, 32)


def context_of(tasks: Sequence[str] = TASKS) -> AdapterContext:
    numbers = SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn, SHAPE.dropout
    context = AdapterContext(tuple(tasks), *numbers, attend=attend)

    def make(inner: MethodChoice, own: tuple[str, ...] | None = None) -> Adapter:
        method = find_method("adapter", inner.name, "here")
        adapter: Adapter = method(replace(context, tasks=own or context.tasks), **inner.options)
        return adapter

    return replace(context, make=make)


def encoder() -> Bert:
    torch.manual_seed(0)
    return Bert(SHAPE).eval()


def build(method: Method, tasks: Sequence[str] = TASKS) -> Adapter:
    torch.manual_seed(1)
    adapter = method(context_of(tasks))
    adapter.start_from(encoder())
    return adapter


def shaken(adapter: Adapter) -> Adapter:
    """With random values added, because many parameters start at zero."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return adapter


def identity() -> Adapter:
    return Adapter(LayerAdapter(), (LayerAdapter() for _ in range(SHAPE.layers)))


def texts_of(seed: int) -> list[tuple[npt.NDArray[np.int64]]]:
    rng = np.random.default_rng(seed)
    return [(rng.integers(5, 100, rng.integers(1, 12)),) for _ in range(5)]


def part(task: str, seed: int) -> Part:
    return Part(task, texts_of(seed))


def both() -> list[Part]:
    return [part("one", 1), part("two", 2)]


def encoded(bert: Bert, adapter: Adapter, *parts: Part) -> tuple[Stream, Tensor]:
    stream = PACKER.pack(parts)
    with torch.inference_mode():
        return stream, bert.encode(stream, adapter.eval())


def has_parameters(method: Method) -> bool:
    return any(True for _ in build(method).parameters())


# --- properties -------------------------------------------------------------------------------------------------------
def starts_as_plain_bert(method: Method) -> None:
    """Before the first step, hidden states are finite, and bit-identical to plain BERT's if it says so."""
    adapter = build(method)
    with_adapter, plain = encoded(encoder(), adapter, *both())[1], encoded(encoder(), identity(), *both())[1]
    require_finite(with_adapter, "the hidden states at the start")
    require(
        torch.equal(with_adapter, plain) or not adapter.plain_at_start,
        f"the hidden states at the start differ from plain BERT's by up to {(with_adapter - plain).abs().max():.2g}; "
        "start with zeros, or declare `plain_at_start = False`",
    )


def keeps_the_encoders_names(method: Method) -> None:
    """The encoder keeps its parameters, and a parameter belongs to one task at most."""
    bert = encoder()
    before = set(bert.state_dict())
    adapter = build(method)
    require(set(bert.state_dict()) == before, "the adapter changes the names of the encoder's parameters")
    own = [p for task in TASKS for p in adapter.task_parameters(task)]
    require(len({id(p) for p in own}) == len(own), "two tasks have the same parameter as their own")
    known = {id(p) for p in adapter.parameters()}
    require({id(p) for p in own} <= known, "a task's parameter is not one of the adapter's")


def a_mixed_stream_is_one_task_at_a_time(method: Method) -> None:
    """The hidden states of a task do not depend on other tasks in the stream."""
    bert, adapter = encoder(), shaken(build(method))
    stream, together = encoded(bert, adapter, *both())
    for k, task in enumerate(TASKS):
        alone = encoded(bert, adapter, part(task, k + 1))[1]
        rows = together[slice(*stream.layout.token_ranges[k])]
        require_close(rows, alone, f"task {task} has other hidden states next to another task", atol=1e-5)


def sequences_do_not_mix(method: Method) -> None:
    """The hidden states of a sequence do not depend on other sequences in the stream: packed equals one by one."""
    bert, adapter, texts = encoder(), shaken(build(method)), texts_of(1)
    together = encoded(bert, adapter, Part("one", texts))[1]
    single = [encoded(bert, adapter, Part("one", [text]))[1] for text in texts]
    require_close(together, torch.cat(single), "a sequence has other hidden states next to other sequences", atol=1e-5)


def gradients_of_a_mixed_stream_are_those_of_each_task(method: Method) -> None:
    """The gradients of a step with two tasks are the sum of those of two steps with one task each."""
    bert, adapter = encoder(), shaken(build(method))

    def gradients(*parts: Part) -> dict[str, Tensor | None]:
        adapter.zero_grad(set_to_none=True)
        bert.encode(PACKER.pack(parts), adapter).square().sum().backward()
        return {key: p.grad for key, p in adapter.named_parameters()}

    together = gradients(*both())
    separate = [gradients(one) for one in both()]
    for key, gradient in together.items():
        known = [one for grads in separate if (one := grads[key]) is not None]
        require(gradient is not None and known, f"the parameter {key} gets no gradient")
        assert gradient is not None
        total = sum(known[1:], start=known[0])
        message = f"the gradient of {key} in a mixed stream is not the sum of the tasks' gradients"
        require_close(gradient, total, message, atol=2e-4, rtol=1e-4)


def no_gradient_reaches_another_task(method: Method) -> None:
    """A step of one task gives its own parameters a gradient, and those of other tasks none."""
    bert, adapter = encoder(), shaken(build(method))
    if not has_parameters(method):
        return
    bert.encode(PACKER.pack([part("one", 1)]), adapter).square().sum().backward()
    for key, p in adapter.task_state("one").items():
        require(p.grad is not None and p.grad.abs().sum() > 0, f"{key} of a task in the step gets no gradient")
    for key, p in adapter.task_state("two").items():
        require(p.grad is None, f"{key} of a task that is not in the step gets a gradient")


def a_task_changes_only_its_own_rows(method: Method) -> None:
    """Other values of a task's own parameters change the hidden states of this task and of no other."""
    bert, adapter = encoder(), shaken(build(method))
    stream, before = encoded(bert, adapter, *both())
    own = adapter.task_parameters("two")
    with torch.no_grad():
        for parameter in own:
            parameter.add_(0.5)
    after = encoded(bert, adapter, *both())[1]
    one, two = (slice(*r) for r in stream.layout.token_ranges)
    require(torch.equal(after[one], before[one]), "the parameters of one task change another task's hidden states")
    require(not own or not torch.equal(after[two], before[two]), "a task's own parameters change nothing")


def save_and_load(method: Method) -> None:
    """An adapter that loads another's state_dict computes the same."""
    adapter, other = shaken(build(method)), build(method)
    other.load_state_dict({key: tensor.clone() for key, tensor in adapter.state_dict().items()})
    found, wanted = encoded(encoder(), other, *both())[1], encoded(encoder(), adapter, *both())[1]
    require(
        torch.equal(found, wanted), "after load_state_dict the hidden states differ: the state_dict lacks something"
    )


def filler_changes_nothing(method: Method) -> None:
    """Padding at the end of the stream changes no hidden state, and has finite ones."""
    bert, adapter = encoder(), shaken(build(method)).eval()
    tight, filled = PACKER.pack(both()), PACKER.pack(both(), token_budget=200)
    with torch.inference_mode():
        a, b = bert.encode(tight, adapter), bert.encode(filled, adapter)
    require_close(b[: len(a)], a, "padding at the end of the stream changes hidden states", atol=1e-5)
    require_finite(b, "the hidden states of padding")


def a_static_shape_changes_nothing(method: Method) -> None:
    """Padding after each task, as in captured steps, changes no hidden state."""
    for tasks in (("two",), TASKS):
        bert, adapter = encoder(), shaken(build(method)).eval()
        parts = [part(task, at) for at, task in enumerate(tasks)]
        tight, static = PACKER.pack(parts), PACKER.pack(parts, static_shape=True)
        with torch.inference_mode():
            wanted, found = bert.encode(tight, adapter), bert.encode(static, adapter)
        for (first, last), (start, _) in zip(tight.layout.token_ranges, static.layout.token_ranges, strict=True):
            rows = found[start : start + last - first]
            require_close(rows, wanted[first:last], "padding after each task changes hidden states", atol=1e-5)


def many_tasks_in_a_static_shape(method: Method) -> None:
    """Six tasks in a captured step have the hidden states and gradients of a plain step."""
    tasks, bert = tuple("abcdef"), encoder()
    packer, adapter = Packer(tasks, 2, 3, 32), shaken(build(method, tasks)).eval()
    parts = [part(task, at) for at, task in enumerate(tasks) if task != "b"]
    tight, static = packer.pack(parts), packer.pack(parts, static_shape=True)
    assert static.layout.equal_tasks is not None
    towards = torch.randn(tight.token_ids_T.shape[0], SHAPE.hidden)
    sizes = [last - first for first, last in tight.layout.token_ranges]
    states, gradients = [], []
    for stream in (tight, static):
        adapter.zero_grad(set_to_none=True)
        out = bert.encode(stream, adapter)
        rows = [out[first : first + n] for (first, _), n in zip(stream.layout.token_ranges, sizes, strict=True)]
        states.append(torch.cat(rows))
        (states[-1] * towards).sum().backward()
        gradients.append({n: p.grad for n, p in adapter.named_parameters() if p.grad is not None})
    require_close(states[1], states[0], "six tasks in a static shape have other hidden states", atol=1e-5)
    require(gradients[0].keys() == gradients[1].keys(), "other parameters get a gradient in a static shape")
    for key, wanted in gradients[0].items():
        message = f"the gradient of {key} differs in a static shape"
        require_close(gradients[1][key], wanted, message, atol=1e-4, rtol=1e-3)


def bf16_is_close(method: Method) -> None:
    """In mixed precision the hidden states are close to those in float32."""
    bert, adapter = encoder(), shaken(build(method)).eval()
    stream = PACKER.pack(both())
    with torch.inference_mode():
        exact = bert.encode(stream, adapter)
        with torch.autocast("cpu", torch.bfloat16):
            rough = bert.encode(stream, adapter)
    largest = (rough.float() - exact).abs().max()
    require(largest < 0.2, f"hidden states in bf16 differ from those in float32 by up to {largest:.2g}")


PROPERTIES = (
    starts_as_plain_bert,
    keeps_the_encoders_names,
    a_mixed_stream_is_one_task_at_a_time,
    sequences_do_not_mix,
    gradients_of_a_mixed_stream_are_those_of_each_task,
    no_gradient_reaches_another_task,
    a_task_changes_only_its_own_rows,
    save_and_load,
    filler_changes_nothing,
    a_static_shape_changes_nothing,
    many_tasks_in_a_static_shape,
    bf16_is_close,
)
