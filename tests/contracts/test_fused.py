"""Every entry of the table of fused forms computes what its definition says, forward and backward.

Functions are compared directly, on the CPU and on CUDA. The fused layer and the fused forms of adapters are compared in
a whole encoder with every adapter, three times: with each Triton kernel replaced by its formula in torch, which tests
what the forms tell the fused layer; with the kernels themselves under Triton's interpreter, in a process of its own;
and on CUDA. An entry without a case fails `test_every_fused_form_has_a_case`; a new kernel needs a line in FORMULAS.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_origin
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter, LinearSite, SublayerSite
from polytask.adapters.conditional_norm import ConditionalNormLayer
from polytask.adapters.per_task import TaskLinear, TaskVector
from polytask.build import make_adapter
from polytask.encoders.attention import attend
from polytask.encoders.bert import Attention, Bert, BertShape, Dropout
from polytask.fused_forms import FUSED_FORMS, definition_of, fused_form
from polytask.kernels.add_and_norm import add_and_norm
from polytask.kernels.bias_gelu import bias_gelu
from polytask.kernels.bottleneck import bottleneck
from polytask.kernels.embed_and_norm import embed_and_norm
from polytask.kernels.fused.adapter import FusedAdapter, fused_adapter
from polytask.kernels.fused.attention import one_product_mix
from polytask.kernels.fused.layer import fused_layer_fits
from polytask.kernels.row_norm import Draw
from polytask.kernels.weight_distance import distance
from polytask.methods import TABLES, options_of
from polytask.optim.base import ListOptimizer, TensorLists
from polytask.optim.lion import Lion
from polytask.regularizers.ewc import weighted_distance
from polytask.regularizers.l2_sp import squared_distance
from polytask.settings import MethodChoice
from polytask.stream import Layout, Stream
from polytask.text.packing import Packer, Part

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ADAPTERS = TABLES["adapter"]
TASKS = ("one", "two", "three")
STREAMS = {"one task": (("two",), True), "all tasks": (TASKS, False)}
SHAPE = BertShape(layers=2, hidden=32, heads=2, ffn=48, vocabulary=50, positions=32, dropout=0.0, attention_dropout=0.0)
SMALL = {"size": 8, "heads": 2, "rank": 2, "length": 3}
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))


# --- the forms of functions -------------------------------------------------------------------------------------------
MANY = tuple("abcdef")
LAYOUTS = {"one task": (("b",), True), "three tasks": (("a", "c", "d"), False), "equal tasks": (MANY[1:], True)}
Case = tuple[Callable[..., Tensor], tuple[Any, ...], list[Tensor]]
"""The form, its arguments, and the tensors whose gradients are compared."""


def layout_of(kind: str, device: str) -> Layout:
    tasks, static_shape = LAYOUTS[kind]
    rng = np.random.default_rng(0)
    parts = [Part(task, [(rng.integers(5, 50, n),) for n in (3, 9, 1)]) for task in tasks]
    return Packer(MANY, 1, 2, 16).pack(parts, static_shape=static_shape).layout.to(torch.device(device))


def random(*shape: int, device: str) -> Tensor:
    return torch.randn(shape, device=device).requires_grad_()


def attend_case(layout: Layout, device: str) -> Case:
    qkv = [random(sum(layout.lengths), 2, 8, device=device) for _ in range(3)]
    return fused_form(attend), (*qkv, layout, 0.0), qkv


def task_linear_case(layout: Layout, device: str) -> Case:
    maps = TaskLinear(MANY, 16, 24, nn.init.normal_).to(device)
    x_TD = random(sum(layout.lengths), 16, device=device)
    return fused_form(TaskLinear.forward), (maps, x_TD, layout), [x_TD, *maps.parameters()]


def task_vector_case(layout: Layout, device: str) -> Case:
    vectors = TaskVector(MANY, 16, nn.init.normal_).to(device)
    x_TD = random(sum(layout.lengths), 16, device=device)
    return fused_form(TaskVector.forward), (vectors, x_TD, layout), [*vectors.parameters()]


def norm_case(layout: Layout, device: str) -> Case:
    context = AdapterContext(MANY, layers=1, hidden=16, heads=2, ffn=16, dropout=0.0)
    adapter, norm = ConditionalNormLayer(context, ("attention",)).to(device), nn.LayerNorm(16).to(device)
    for parameter in adapter.parameters():
        nn.init.normal_(parameter)
    x_TD = random(sum(layout.lengths), 16, device=device)
    leaves = [x_TD, *adapter.parameters(), *norm.parameters()]
    return fused_form(LayerAdapter.norm), (adapter, "attention", norm, x_TD, layout), leaves


def mix_case(layout: Layout, device: str) -> Case:
    attention = Attention(16, 2, 0.0).to(device)
    x_TD = random(sum(layout.lengths), 16, device=device)
    form = fused_form(Attention.mix) if device == "cuda" else without_adapter
    return form, (attention, x_TD, layout, LayerAdapter()), [x_TD, *attention.parameters()]


def without_adapter(attention: Attention, x_TD: Tensor, layout: Layout, adapter: LayerAdapter) -> Tensor:
    """What the form computes where one product pays, which is on CUDA only."""
    return one_product_mix(attention, x_TD, layout)


def squared_distance_case(layout: Layout, device: str) -> Case:
    weights, centres, _ = distance_case(device)
    return (lambda one, two, _: distance(one, two)), (weights, centres, torch.device(device)), weights


def weighted_distance_case(layout: Layout, device: str) -> Case:
    weights, centres, factors = distance_case(device)
    return distance, (weights, centres, factors), weights


def distance_case(device: str) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    weights = [random(5, 3, device=device), random(7, device=device)]
    return weights, [torch.randn_like(w) for w in weights], [torch.rand_like(w) for w in weights]


CASES: Mapping[Any, Callable[[Layout, str], Case]] = {
    attend: attend_case,
    TaskLinear.forward: task_linear_case,
    TaskVector.forward: task_vector_case,
    LayerAdapter.norm: norm_case,
    Attention.mix: mix_case,
    squared_distance: squared_distance_case,
    weighted_distance: weighted_distance_case,
}
ELSEWHERE = {
    Dropout.forward: "test_dropout_has_the_distribution_of_the_definition",
    Bert.encode: "test_fused_layers_are_the_definition",
    Bert.embed: "test_fused_embeddings_of_given_words_are_the_definition",
    Bert.states: "test_fused_states_are_the_definition",
    ListOptimizer.update_lists: "test_optimizers_update_as_their_definitions",
}


def test_every_fused_form_has_a_case() -> None:
    layers = {type(layer) for adapter in map(made_adapter, all_forms()) for layer in adapter.layers}
    missing = set(FUSED_FORMS) - set(CASES) - set(ELSEWHERE) - layers
    assert not missing, f"add a case for {missing}"
    assert all(name in globals() for name in ELSEWHERE.values())


def with_gradients(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of these tensors."""
    generator = torch.Generator().manual_seed(1)
    towards = torch.randn(out.shape, generator=generator).to(out)
    grads = torch.autograd.grad(out, leaves, towards, allow_unused=True)
    return [out.detach(), *(torch.zeros(()) if g is None else g for g in grads)]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("definition", CASES, ids=lambda definition: definition.__qualname__)
def test_a_form_is_its_definition(definition: Any, kind: str, device: str) -> None:
    torch.manual_seed(0)
    form, args, leaves = CASES[definition](layout_of(kind, device), device)
    expected = with_gradients(definition_of(definition)(*args), leaves)
    for one, two in zip(with_gradients(form(*args), leaves), expected, strict=True):
        torch.testing.assert_close(one, two, atol=1e-3, rtol=1e-3)
    if device == "cuda":
        with torch.autocast("cuda", torch.bfloat16):
            outs = [form(*args), definition_of(definition)(*args)]
        ours, theirs = (error(with_gradients(out, leaves), expected) for out in outs)
        assert ours < 2 * theirs + 0.01


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative error of the tensors that are not nearly zero."""
    pairs = zip(found, expected, strict=True)
    return max(float((a.float() - b).norm() / (b.norm() + 1e-3)) for a, b in pairs if b.norm() > 1e-2)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_dropout_has_the_distribution_of_the_definition(device: str) -> None:
    torch.manual_seed(0)
    module, x = Dropout(0.25), random(400, 1000, device=device)
    for function in (fused_form(Dropout.forward), definition_of(Dropout.forward)):
        out = function(module, x)
        (slope,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(out, x * slope)
        torch.testing.assert_close(slope.unique(), torch.tensor([0.0, 4 / 3], device=device), atol=1e-4, rtol=0)
        assert abs(float((slope == 0).float().mean()) - 0.25) < 0.004
        assert torch.equal(function(Dropout(0.25).eval(), x), x)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_optimizers_update_as_their_definitions(device: str) -> None:
    """For every optimizer: tests/kernels/test_cpu_update.py."""
    grads = [torch.randn(5, 3, device=device), torch.randn(7, device=device)]
    ends = []
    for function in (fused_form(ListOptimizer.update_lists), definition_of(ListOptimizer.update_lists)):
        params = [torch.ones_like(grad) for grad in grads]
        lists = TensorLists(params, grads, {"exp_avg": [torch.zeros_like(grad) for grad in grads]}, [1.0, 1.0])
        optimizer = Lion(params)
        function(optimizer, lists, optimizer.defaults)
        ends.append(params)
    for one, two in zip(*ends, strict=True):
        assert torch.equal(one, two)
        assert not torch.equal(one, torch.ones_like(one))


# --- the forms of adapters, by their options --------------------------------------------------------------------------
def small(name: str) -> dict[str, Any]:
    return {option.name: SMALL[option.name] for option in options_of(ADAPTERS[name]) if option.name in SMALL}


def choices(kind: Any) -> list[Any]:
    """The values of an option that has few; for a list, one list with all of them."""
    if get_origin(kind) is Annotated:
        return choices(get_args(kind)[0])
    if kind is bool:
        return [False, True]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if get_origin(kind) is tuple and get_args(kind)[0] is MethodChoice:
        return [[{"name": name, **small(name)} for name in ADAPTERS if not must_be_first(name)]]
    if get_origin(kind) is tuple:
        return [values] if (values := choices(get_args(kind)[0])) else []
    return []


def must_be_first(name: str) -> bool:
    """Whether it can only be the first of a stack, or is made of other adapters."""
    options = {option.kind for option in options_of(ADAPTERS[name])}
    of_others = bool(options & {MethodChoice, tuple[MethodChoice, ...]})
    return of_others or bool(made_adapter(MethodChoice(name, small(name))).replacements())


def made_adapter(choice: MethodChoice) -> Adapter:
    return make_adapter(choice, TASKS, SHAPE)


def forms(name: str) -> Iterator[MethodChoice]:
    """An adapter with small sizes, once more with every value of each option that has few, and on the lowest layer."""
    yield MethodChoice(name, small(name))
    for option in options_of(ADAPTERS[name]):
        if option.name == "layers":
            yield MethodChoice(name, {**small(name), "layers": (0,)})
        for value in choices(option.kind):
            if value != option.default:
                yield MethodChoice(name, {**small(name), option.name: value})


def all_forms() -> list[MethodChoice]:
    return [choice for name in ADAPTERS for choice in forms(name)]


def form_id(choice: MethodChoice) -> str:
    changed = [f"{name}={value}" for name, value in choice.options.items() if name not in SMALL]
    return "-".join([choice.name, *(text if len(text) < 40 else f"{text[:36]}..." for text in changed)])


FORMS = [pytest.param(choice, id=form_id(choice)) for choice in all_forms()]


# --- the comparison ---------------------------------------------------------------------------------------------------
def random_model(choice: MethodChoice, device: str = "cpu", shape: BertShape = SHAPE) -> tuple[Bert, Adapter]:
    """With random numbers added everywhere: nothing is at its start."""
    torch.manual_seed(0)
    encoder, adapter = Bert(shape), make_adapter(choice, TASKS, shape)
    adapter.start_from(encoder)
    with torch.no_grad():
        for parameter in (*encoder.parameters(), *adapter.parameters()):
            parameter += torch.randn_like(parameter) * 0.1
    return encoder.to(device), adapter.to(device)


def stream_of(tasks: tuple[str, ...], static_shape: bool) -> Stream:
    rng = np.random.default_rng(0)
    parts = [Part(task, [(rng.integers(5, 50, n),) for n in (3, 9, 1)]) for task in tasks]
    return Packer(TASKS, 1, 2, 16).pack(parts, static_shape=static_shape)


def results(
    encoder: Bert, adapter: Adapter, run: Callable[[], Tensor], fused: bool, bf16: bool = False
) -> list[Tensor]:
    """The output of `run`, and the gradient of every parameter."""
    device = encoder.words.weight.device.type
    with (
        patch("polytask.kernels.fused.layer.fused_layer_fits", lambda _: fused),
        torch.autocast(device, torch.bfloat16, enabled=bf16),
    ):
        out = run()
    return with_gradients(out, [*encoder.parameters(), *adapter.parameters()])


def assert_same(fused: list[Tensor], plain: list[Tensor]) -> None:
    torch.testing.assert_close(fused[0], plain[0], atol=1e-4, rtol=1e-4)
    for one, two in zip(fused[1:], plain[1:], strict=True):
        torch.testing.assert_close(one, two, atol=5e-3, rtol=1e-3)


def compare(choice: MethodChoice, tasks: tuple[str, ...], static_shape: bool, shape: BertShape = SHAPE) -> None:
    encoder, adapter = random_model(choice, shape=shape)
    run = partial(encoder.encode, stream_of(tasks, static_shape), adapter)
    assert_same(*(results(encoder, adapter, run, fused) for fused in (True, False)))


# --- the kernels' formulas in torch -----------------------------------------------------------------------------------
def embed_and_norm_formula(
    tables: tuple[Tensor, ...],
    ids: tuple[Tensor | None, ...],
    cu_seqlens_S1: Tensor,
    affine: tuple[Tensor, Tensor],
    eps: float,
    half: torch.dtype,
    dropout: Draw,
) -> tuple[Tensor, Tensor]:
    words_TD, segments_TD, positions_TD = (
        table if rows is None else table[rows] for table, rows in zip(tables, ids, strict=True)
    )
    out_TD = F.layer_norm(words_TD + segments_TD + positions_TD, affine[0].shape, *affine, eps)
    return out_TD, out_TD.to(half)


def add_and_norm_formula(
    residual_TD: Tensor,
    y_TD: Tensor,
    bias_D: Tensor | None,
    branch_TD: Tensor | None,
    affine: tuple[Tensor, Tensor],
    eps: float,
    dropout: Draw,
) -> tuple[Tensor, Tensor]:
    for term in (y_TD, bias_D, branch_TD):
        residual_TD = residual_TD if term is None else residual_TD + term
    out_TD = F.layer_norm(residual_TD, affine[0].shape, *affine, eps)
    return out_TD, out_TD.to(y_TD.dtype)


def bias_gelu_formula(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    return F.gelu(x_TF + bias_F)


def bottleneck_formula(x_TD: Tensor, down_sD: Tensor, bias_s: Tensor, up_Ds: Tensor) -> tuple[Tensor, Tensor]:
    return x_TD, F.linear(F.gelu(F.linear(x_TD, down_sD, bias_s)), up_Ds)


FORMULAS: Mapping[Any, Any] = {
    add_and_norm: add_and_norm_formula,
    bias_gelu: bias_gelu_formula,
    bottleneck: bottleneck_formula,
    embed_and_norm: embed_and_norm_formula,
}


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces every kernel that a module of ours has imported by its formula."""
    ours = [module for name, module in sys.modules.items() if name.startswith("polytask.")]
    for module in ours:
        for name, value in list(vars(module).items()):
            if callable(value) and value in FORMULAS:
                monkeypatch.setattr(module, name, FORMULAS[value])


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("choice", FORMS)
def test_fused_layers_are_the_definition(choice: MethodChoice, stream: str) -> None:
    compare(choice, *STREAMS[stream])


VARIATIONS = {
    "one segment": replace(SHAPE, kind="roberta", segments=1),
    "no segments": replace(SHAPE, kind="distilbert", segments=0),
    "projected embeddings": replace(SHAPE, kind="electra", embedding=16),
    "position bias": replace(SHAPE, kind="mpnet", segments=0, relative_positions=True),
}
"""What RoBERTa, DistilBERT, ELECTRA and MPNet change in BERT."""


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("shape", VARIATIONS.values(), ids=VARIATIONS)
@pytest.mark.parametrize("name", ["none", "conditional_norm", "prefix"])
def test_fused_layers_of_variations_are_the_definition(name: str, shape: BertShape) -> None:
    for tasks, static_shape in STREAMS.values():
        compare(MethodChoice(name, small(name)), tasks, static_shape, shape)


@pytest.mark.usefixtures("without_kernels")
def test_fused_embeddings_of_given_words_are_the_definition() -> None:
    encoder, adapter = random_model(MethodChoice("conditional_norm"))
    stream = stream_of(*STREAMS["one task"])
    words_TD = torch.randn(len(stream.token_ids_T), SHAPE.hidden, requires_grad=True)

    def run() -> Tensor:
        return encoder.embed(stream, adapter, words_TD)

    assert_same(*(results(encoder, adapter, run, fused) for fused in (True, False)))


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("start", [0, 1])
def test_fused_states_are_the_definition(start: int) -> None:
    encoder, adapter = random_model(MethodChoice("pal", small("pal")))
    layout = stream_of(*STREAMS["one task"]).layout
    h_TD = torch.randn(sum(layout.lengths), SHAPE.hidden)

    def run() -> Tensor:
        return torch.stack(list(encoder.states(h_TD, layout, adapter, start)))

    assert len(run()) == SHAPE.layers - start
    assert_same(*(results(encoder, adapter, run, fused) for fused in (True, False)))


@pytest.mark.parametrize("choice", FORMS)
def test_what_a_form_calls_unchanged_is(choice: MethodChoice) -> None:
    """The fused layer does not call these slots."""
    encoder, adapter = random_model(choice)
    layout = stream_of(TASKS, static_shape=False).layout
    tokens = sum(layout.lengths)
    q, k, v = torch.randn(3, tokens, 2, 16).unbind(0)
    h_TD = torch.randn(tokens, SHAPE.hidden)
    for index in range(SHAPE.layers):
        layer = adapter.layer(index)
        fused = fused_adapter(layer)
        for site in get_args(LinearSite):
            base = encoder.linear(index, site)
            x = torch.randn(tokens, base.in_features)
            assert fused.changes_linear(site) or torch.equal(layer.linear(site, base, x, layout), base(x))
        for place in get_args(SublayerSite):
            assert fused.changes_sublayer(place) or torch.equal(layer.sublayer(place, h_TD, layout), h_TD)
        changed_THd = layer.attend(attend, q, k, v, layout)
        assert fused.changes_attention() or torch.equal(changed_THd, attend(q, k, v, layout))
        assert fused.changes_output() or torch.equal(layer.output(h_TD, layout), h_TD)


@pytest.mark.parametrize("definition", [d for d in FUSED_FORMS if isinstance(d, type)], ids=lambda d: d.__name__)
def test_a_subclass_has_no_form_of_its_base(definition: type[LayerAdapter]) -> None:
    """It may override a slot."""
    (layer, *_) = (x for a in map(made_adapter, all_forms()) for x in a.layers if type(x) is definition)
    subclass = type("Subclass", (definition,), {})
    assert isinstance(fused_adapter(layer), fused_form(definition))
    layer.__class__ = subclass
    assert type(fused_adapter(layer)) is FusedAdapter


# --- the kernels themselves -------------------------------------------------------------------------------------------
EVERY_KERNEL = {"none", "houlsby", "pal", "stack"}
"""Interpreting an adapter takes seconds. These use every kernel; the others use some of them again."""


@pytest.mark.slow
def test_kernels_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__, "-k", test_interpreted_kernels_are_the_definition.__name__)


@pytest.mark.slow
def test_kernels_with_all_other_adapters_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__, "-k", test_interpreted_kernels_are_the_definition.__name__, "-m", "slow")


@pytest.mark.parametrize(
    "name", [name if name in EVERY_KERNEL else pytest.param(name, marks=pytest.mark.slow) for name in ADAPTERS]
)
def test_interpreted_kernels_are_the_definition(name: str) -> None:
    compare(MethodChoice(name, small(name)), ("two",), static_shape=False, shape=replace(SHAPE, layers=1))


def test_interpreted_kernels_are_the_definition_of_variations() -> None:
    for shape in VARIATIONS.values():
        compare(MethodChoice("none"), ("two",), static_shape=False, shape=replace(shape, layers=1))


test_interpreted_kernels_are_the_definition.__test__ = INTERPRETED  # type: ignore[attr-defined]
test_interpreted_kernels_are_the_definition_of_variations.__test__ = INTERPRETED  # type: ignore[attr-defined]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("tasks", "static_shape"), [*STREAMS.values(), (TASKS, True)], ids=[*STREAMS, "all tasks, static shape"]
)
@pytest.mark.parametrize("choice", FORMS)
def test_on_cuda_in_bf16(choice: MethodChoice, tasks: tuple[str, ...], static_shape: bool) -> None:
    compare_on_cuda(choice, tasks, static_shape, SHAPE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("shape", VARIATIONS.values(), ids=VARIATIONS)
@pytest.mark.parametrize("name", ["none", "conditional_norm", "prefix"])
def test_variations_on_cuda_in_bf16(name: str, shape: BertShape) -> None:
    for tasks, static_shape in STREAMS.values():
        compare_on_cuda(MethodChoice(name, small(name)), tasks, static_shape, shape)


def compare_on_cuda(choice: MethodChoice, tasks: tuple[str, ...], static_shape: bool, shape: BertShape) -> None:
    """As near to float32 as torch's own kernels are, with room for chance."""
    encoder, adapter = random_model(choice, "cuda", shape)
    run = partial(encoder.encode, stream_of(tasks, static_shape).to(torch.device("cuda")), adapter)
    expected = results(encoder, adapter, run, fused=False)
    with torch.autocast("cuda", torch.bfloat16):
        assert fused_layer_fits(encoder.words.weight)
    ours, theirs = (error(results(encoder, adapter, run, fused, bf16=True), expected) for fused in (True, False))
    assert ours < 2 * theirs + 0.01
