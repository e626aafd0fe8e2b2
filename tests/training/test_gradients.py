"""Inner products and weighted sums computed layer by layer, against whole gradients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polytask.adapters import ADAPTERS
from polytask.build import make_model
from polytask.encoders.base import EncoderShape
from polytask.encoders.bert import BertShape
from polytask.model import MultiTaskModel
from polytask.pretrained.kinds import KINDS, new_encoder
from polytask.settings import MethodChoice, TaskSpec
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.training.gradients import Gradients, Source, cut_pass, own_parameters, shared_by_layer
from polytask.types import YES_NO, LabelSpace

SHAPE = BertShape(layers=3, hidden=24, heads=3, ffn=32, vocabulary=60, positions=32)
LABELS = {"one": LabelSpace("classes", ("a", "b", "c")), "two": YES_NO, "three": LabelSpace("score", low=0, high=5)}
OPTIONS = {"pal": {"size": 12, "heads": 3}, "houlsby": {"size": 4}, "low_rank": {"size": 4}}
SMALL = [{"name": name, **OPTIONS[name]} for name in ("pal", "low_rank")]


def model_with(adapter: str, shape: EncoderShape = SHAPE) -> MultiTaskModel:
    heads = {
        "one": MethodChoice("linear", {"pooling": "pooler"}),
        "two": MethodChoice("cross"),
        "three": MethodChoice("bi"),
    }
    specs = {
        task: TaskSpec(task, space.kind, ("t",) if task == "one" else ("t", "u"), "l", "", "", head=heads[task])
        for task, space in LABELS.items()
    }
    options: dict[str, Any] = {"adapters": SMALL} if adapter == "stack" else OPTIONS.get(adapter, {})
    model = make_model(specs, LABELS, MethodChoice(adapter, options), lambda: new_encoder(shape), seed=1)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # so that nothing starts at zero
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def stream_of(task: str, seed: int) -> Stream:
    rng = np.random.default_rng(seed)
    texts = [tuple(rng.integers(5, 60, rng.integers(2, 8)) for _ in range(1 if task == "one" else 2)) for _ in range(4)]
    gold = rng.integers(0, 3, 4) if task == "one" else rng.integers(0, 2, 4).astype(np.float32)
    return Packer(tuple(LABELS), 2, 3, 16).pack([Part(task, texts, "separate" if task == "three" else "joined", gold)])


def sources_and_gradients(model: MultiTaskModel, passes: int = 2) -> tuple[list[Source], torch.Tensor, list[Any]]:
    """Each task's source, its whole gradient on shared parameters, and its gradient on its own."""
    shared = [parameter for _, layer in shared_by_layer(model) for parameter in layer]
    sources, rows, own = [], [], []
    for k, task in enumerate(model.tasks):
        parts, total = [], torch.zeros(())
        for number in range(passes):
            stream = stream_of(task, 10 * k + number)
            torch.manual_seed(number)
            outputs = model.run(stream).outputs[task]
            torch.manual_seed(number)
            cut = cut_pass(model, stream)
            assert torch.equal(outputs, cut.forward.outputs[task])  # the same dropout too
            total = total + model.head(task).loss(outputs, stream.labels[task])
            parts.append((cut, model.head(task).loss(cut.forward.outputs[task], stream.labels[task])))
        sources.append(Source(task, parts))
        found = torch.autograd.grad(total, [*shared, *own_parameters(model, task)], allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(shared, found, strict=False)]
        rows.append(torch.cat([g.flatten() for g in filled]).double())
        own.append(dict(zip(own_parameters(model, task), found[len(shared) :], strict=True)))
    return sources, torch.stack(rows), own


SIZES = {name: getattr(SHAPE, name) for name in ("layers", "hidden", "ffn", "vocabulary", "positions")}
OTHERS = {
    kind: replace(KINDS[kind].shape, **SIZES, heads=2, dropout=0.1) for kind in ("electra", "mpnet", "modernbert")
}


@pytest.mark.parametrize(
    ("adapter", "shape"),
    [
        *((name, SHAPE) for name in ADAPTERS if name not in ("own_encoder", "shared")),
        *(("lora", shape) for shape in OTHERS.values()),
    ],
)
def test_products_sums_and_own_gradients_are_those_of_whole_gradients(adapter: str, shape: EncoderShape) -> None:
    model = model_with(adapter, shape)
    sources, rows, own = sources_and_gradients(model)
    gradients = Gradients(model, sources, {"two": ["two"]})
    torch.testing.assert_close(gradients.gram_KK, rows @ rows.T, atol=1e-6, rtol=1e-5)
    assert list(gradients.by_layer) == ["pooler", "layer 2", "layer 1", "layer 0", "embeddings"]
    weights = [0.5, -2.0, 3.0]
    gradients.add(weights)
    shared = [parameter for _, layer in shared_by_layer(model) for parameter in layer]
    made = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in shared])
    torch.testing.assert_close(made.double(), torch.tensor(weights).double() @ rows, atol=1e-5, rtol=1e-4)
    for parameter, grad in own[1].items():
        if grad is not None:
            torch.testing.assert_close(parameter.grad, grad, atol=1e-6, rtol=1e-5)
    for k in (0, 2):
        assert all(parameter.grad is None for parameter in own[k])


def test_each_layers_products_are_of_its_own_parameters() -> None:
    model = model_with("none")
    sources, rows, _ = sources_and_gradients(model, passes=1)
    sizes = [sum(p.numel() for p in layer) for _, layer in shared_by_layer(model)]
    by_layer = Gradients(model, sources, {}).by_layer
    for found, part in zip(by_layer.values(), rows.split(sizes, dim=1), strict=True):
        torch.testing.assert_close(found, part @ part.T, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("norms", [False, True])
def test_a_frozen_encoder_has_only_what_learns(norms: bool) -> None:
    model = model_with("lora")
    for name, parameter in model.encoder.named_parameters():
        parameter.requires_grad_(norms and "norm" in name)
    sources, rows, own = sources_and_gradients_of_what_learns(model)
    gradients = Gradients(model, sources, {task: [task] for task in model.tasks})
    assert bool(gradients.gram_KK.any()) == norms
    if norms:
        torch.testing.assert_close(gradients.gram_KK, rows @ rows.T, atol=1e-6, rtol=1e-5)
    gradients.add([1.0, 1.0, 1.0])
    for grads in own:
        for parameter, grad in grads.items():
            if grad is not None:
                torch.testing.assert_close(parameter.grad, grad, atol=1e-6, rtol=1e-5)


def sources_and_gradients_of_what_learns(model: MultiTaskModel) -> tuple[list[Source], torch.Tensor, list[Any]]:
    if any(parameter.requires_grad for parameter in model.encoder.parameters()):
        return sources_and_gradients(model)
    sources, own = [], []
    for k, task in enumerate(model.tasks):
        stream = stream_of(task, k)
        torch.manual_seed(k)
        loss = model.head(task).loss(model.run(stream).outputs[task], stream.labels[task])
        torch.manual_seed(k)
        cut = cut_pass(model, stream)
        sources.append(Source(task, [(cut, model.head(task).loss(cut.forward.outputs[task], stream.labels[task]))]))
        mine = own_parameters(model, task)
        own.append(dict(zip(mine, torch.autograd.grad(loss, mine, allow_unused=True), strict=True)))
    return sources, torch.zeros(3, 1), own


def test_word_vectors_that_a_head_uses_too_have_both_gradients() -> None:
    """mlm's decoder is the word embeddings: part of their gradient bypasses the layers."""
    spec = TaskSpec("words", "text", ("t",), None, "", "", head=MethodChoice("mlm"))
    labels = {"words": LabelSpace("text", vocabulary=SHAPE.vocabulary)}
    model = make_model({"words": spec}, labels, MethodChoice("none"), lambda: new_encoder(SHAPE)).eval()
    rng = np.random.default_rng(0)
    hidden = np.array([[2, 11, 20, 29], [7, 8, 9, 10]])
    part = Part("words", [(rng.integers(5, 60, 6),) for _ in range(4)], labels=hidden)
    stream = Packer(("words",), 2, 3, 16).pack([part])
    loss = model.head("words").loss(model.run(stream).outputs["words"], stream.labels["words"])
    (whole,) = torch.autograd.grad(loss, [model.encoder.words.weight])
    cut = cut_pass(model, stream)
    cut_loss = model.head("words").loss(cut.forward.outputs["words"], stream.labels["words"])
    gradients = Gradients(model, [Source("words", [(cut, cut_loss / 2), (cut, cut_loss / 2)])], {})
    gradients.add([3.0])
    assert model.encoder.words.weight.grad is not None
    torch.testing.assert_close(model.encoder.words.weight.grad, 3 * whole, atol=1e-6, rtol=1e-5)
    others = [p.grad for p in (*model.encoder.positions.parameters(), *model.encoder.segments.parameters())]
    others += [p.grad for p in model.encoder.norm.parameters()]
    squares = sum(float(grad.double().square().sum()) for grad in [3 * whole, *others] if grad is not None)
    assert float(gradients.by_layer["embeddings"]) == pytest.approx(squares / 9, rel=1e-5)


def test_word_vectors_of_one_task_with_a_head_and_one_without() -> None:
    """One source has a gradient on every word embedding, the other on those of its texts."""
    specs = {
        "words": TaskSpec("words", "text", ("t",), None, "", "", head=MethodChoice("mlm")),
        "one": TaskSpec("one", "classes", ("t",), "l", "", "", head=MethodChoice("linear")),
    }
    labels = {"words": LabelSpace("text", vocabulary=SHAPE.vocabulary), "one": LABELS["one"]}
    model = make_model(specs, labels, MethodChoice("none"), lambda: new_encoder(SHAPE)).eval()
    rng = np.random.default_rng(0)
    texts = [(rng.integers(5, 60, 6),) for _ in range(4)]
    gold = {"words": np.array([[2, 10, 18, 26], [7, 7, 7, 7]]), "one": rng.integers(0, 3, 4)}
    shared = [parameter for _, layer in shared_by_layer(model) for parameter in layer]
    sources, rows = [], []
    for task in labels:
        stream = Packer(tuple(labels), 2, 3, 16).pack([Part(task, texts, labels=gold[task])])
        whole = model.head(task).loss(model.run(stream).outputs[task], stream.labels[task])
        found = torch.autograd.grad(whole, shared, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(shared, found, strict=True)]
        rows.append(torch.cat([grad.flatten() for grad in filled]).double())
        cut = cut_pass(model, stream)
        sources.append(Source(task, [(cut, model.head(task).loss(cut.forward.outputs[task], stream.labels[task]))]))
    rows_KN = torch.stack(rows)
    gradients = Gradients(model, sources, {})
    torch.testing.assert_close(gradients.gram_KK, rows_KN @ rows_KN.T, atol=1e-6, rtol=1e-5)
    gradients.add([2.0, -1.0])
    made = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in shared])
    torch.testing.assert_close(made.double(), 2 * rows_KN[0] - rows_KN[1], atol=1e-5, rtol=1e-4)


def test_what_no_weighted_gradient_has_gets_none() -> None:
    """Not zeros: an optimizer would decay the weights. Only the head of task one uses the pooler."""
    pooler_grads = []
    for weights in ([0.0, 1.0, 1.0], [1.0, 0.0, 0.0]):
        model = model_with("none")
        sources, _, _ = sources_and_gradients(model, passes=1)
        Gradients(model, sources, {}).add(weights)
        pooler_grads.append(model.encoder.pooler.weight.grad)
        assert model.encoder.words.weight.grad is not None
    assert pooler_grads[0] is None
    assert pooler_grads[1] is not None


def test_gradients_are_added_to_those_that_are_there() -> None:
    model = model_with("none")
    sources, rows, own = sources_and_gradients(model, passes=1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    Gradients(model, sources, {"two": ["two"]}).add([1.0, 2.0, 3.0])
    shared = [parameter for _, layer in shared_by_layer(model) for parameter in layer]
    made = torch.cat([p.grad.flatten() for p in shared if p.grad is not None])
    torch.testing.assert_close(made.double() - 1, torch.tensor([1.0, 2.0, 3.0]).double() @ rows, atol=1e-5, rtol=1e-4)
    for parameter, grad in own[1].items():
        torch.testing.assert_close(parameter.grad, 1 + grad, atol=1e-6, rtol=1e-5)


def test_no_two_gradients_are_one_tensor() -> None:
    """Autograd may share a tensor between parameters that are only added; clipping in place would then apply twice."""
    model = model_with("none")
    left, right = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3))
    model.head("one").register_parameter("left", left)
    model.head("one").register_parameter("right", right)
    stream = stream_of("one", 0)
    cut = cut_pass(model, stream)
    loss = model.head("one").loss(cut.forward.outputs["one"] + (left + right), stream.labels["one"])
    Gradients(model, [Source("one", [(cut, loss)])], {"one": ["one"]}).add([1.0])
    places = [parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None]
    assert len(set(places)) == len(places)


def test_graphs_are_given_back_on_the_way_down() -> None:
    model = model_with("none")
    sources, _, _ = sources_and_gradients(model, passes=1)
    Gradients(model, sources, {})
    cut, _ = sources[0].parts[0]
    for out in cut.outs:
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(out.sum(), list(model.encoder.parameters()), allow_unused=True)


class Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_products_and_sums_cost_few_operations_compared_with_the_passes() -> None:
    """A GPU launches each operation: one matmul per parameter or a second backward pass would show here."""
    model = model_with("none")
    streams = {task: stream_of(task, 1) for task in model.tasks}
    sources = []
    with Ops() as plain:
        for task, stream in streams.items():
            model.head(task).loss(model.run(stream).outputs[task], stream.labels[task]).backward()
    model.zero_grad()
    with Ops() as per_task:
        for task, stream in streams.items():
            cut = cut_pass(model, stream)
            loss = model.head(task).loss(cut.forward.outputs[task], stream.labels[task])
            sources.append(Source(task, [(cut, loss)]))
        gradients = Gradients(model, sources, {task: [task] for task in model.tasks})
        gram_KK = gradients.gram_KK
        gradients.add([1.0, 2.0, 3.0])
    assert gram_KK.shape == (3, 3)
    views = {"view", "t", "transpose", "detach", "split", "split_with_sizes", "slice", "select", "unsqueeze", "squeeze"}
    counts = [sum(name not in views for name in ops.names) for ops in (plain, per_task)]
    assert counts[1] < 1.1 * counts[0]
    waits = [ops.names.count("_local_scalar_dense") for ops in (plain, per_task)]  # for the device
    assert waits[1] <= waits[0]
