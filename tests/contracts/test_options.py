"""Every numeric option of every method: a number outside its domain is refused by name, and any other one works."""

import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

import numpy as np
import pytest
import torch
from torch import nn

from polytask.adapters import ADAPTERS, NoAdapter
from polytask.adapters.base import AdapterContext
from polytask.build import make, make_adapter, make_head
from polytask.encoders.bert import Bert, BertShape
from polytask.heads import HEADS
from polytask.losses import LOSSES
from polytask.methods import TABLES, options_of
from polytask.model import MultiTaskModel
from polytask.policies.base import PolicyContext
from polytask.regularizers.base import RegularizerContext
from polytask.samplers.base import SamplerContext
from polytask.settings import Bounds, MethodChoice, TaskSpec
from polytask.text.masking import Masker
from polytask.text.packing import Packer, Part
from polytask.types import YES_NO, LabelSpace, Stage, UserError

VALUES = [-1, 0, 10**12, math.nan, math.inf, -math.inf]
SHAPE = BertShape(layers=1, hidden=12, heads=2, ffn=12, vocabulary=40, positions=16)
TASKS = ("one", "two")
SPACES = {
    "classes": LabelSpace("classes", ("a", "b", "c")),
    "yes_no": YES_NO,
    "score": LabelSpace("score", low=1, high=5),
    "multilabel": LabelSpace("multilabel", ("a", "b", "c"), separator="|"),
    "match": LabelSpace("match"),
    "choice": LabelSpace("choice"),
    "tokens": LabelSpace("tokens", ("O", "B-a", "I-a"), scheme="bio"),
    "text": LabelSpace("text", vocabulary=40),
}
PACKER = Packer(TASKS, 1, 2, 16, Masker(3, 40, (0, 1, 2, 3)))


def numeric(kind: Any) -> type | None:
    """int or float if the type is one of them, with or without bounds, or a list or a mapping of them."""
    if kind in (int, float):
        return kind  # type: ignore[no-any-return]
    if get_origin(kind) is typing.Literal:
        return None
    return next(filter(None, map(numeric, get_args(kind))), None)


def as_given(kind: Any, value: Any) -> Any:
    """The value in the form that the option takes: a number, a list, or a mapping by task."""
    choices = [kind, *get_args(kind)]
    if any(get_origin(one) is tuple for one in choices):
        inner = next(get_args(one) for one in choices if get_origin(one) is tuple)
        return [value] if Ellipsis in inner else [value] * len(inner)
    if any(get_origin(one) in (Mapping, dict) for one in choices):
        return {"one": value, "two": 1}
    return value


def options() -> Iterator[tuple[str, str, str]]:
    for table, methods in TABLES.items():
        for name, method in methods.items():
            yield from ((table, name, option.name) for option in options_of(method) if numeric(option.kind))


# --- a method of each table, made and used once -----------------------------------------------------------------------
def model_of(adapter: str | MethodChoice = "none", head: str = "cross") -> MultiTaskModel:
    torch.manual_seed(0)
    choice = adapter if isinstance(adapter, MethodChoice) else MethodChoice(adapter)
    parts = make_adapter(choice, TASKS, SHAPE)
    bert = Bert(SHAPE)
    parts.start_from(bert)
    return MultiTaskModel(bert, parts, {task: HEADS[head](task, YES_NO, SHAPE.hidden) for task in TASKS})


def run(model: MultiTaskModel) -> Any:
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(5, 40, 3) for _ in range(2)) for _ in range(3)]
    labels = np.array([0, 1, 1], dtype=np.float32)
    return model.run(PACKER.pack([Part(task, texts, model.head(task).reading, labels) for task in model.tasks]))


def use_adapter(choice: MethodChoice) -> None:
    sum(outputs.sum() for outputs in run(model_of(choice)).outputs.values()).backward()


def use_head(choice: MethodChoice) -> None:
    method = HEADS[choice.name]
    kind = method.kinds[-1]
    spec = TaskSpec("one", kind, ("a", "b")[: method.texts[-1]], None, "", "", head=choice)
    head = make_head(spec, SPACES[kind], SHAPE.hidden)
    model = MultiTaskModel(Bert(SHAPE), NoAdapter(AdapterContext(("one",), 1, 12, 2, 12, 0.1)), {"one": head})
    options = 2 if head.reading == "options" else 0
    texts = [tuple(np.arange(5, 9) for _ in range(len(spec.text) + options))] * 2 * head.copies
    part = Part("one", texts, head.reading)
    if head.mask_share is not None:
        rng = np.random.default_rng(0)
        part = Part.masked("one", [PACKER.mask(text, head.mask_share, rng) for (text,) in texts], head.mask_share)
    stream = PACKER.pack([part])
    outputs = model(stream)["one"]
    shapes = {"classes": (2,), "choice": (2, 2), "tokens": tuple(outputs.shape[:2]), "match": (2, 2)}
    labels = torch.ones(shapes[kind], dtype=torch.long) if kind in shapes else torch.ones(outputs.shape)
    head.loss(outputs, labels)


def use_loss(choice: MethodChoice) -> None:
    kind = LOSSES[choice.name].kinds[0]
    loss = make("loss", choice, "recipe: loss", SPACES[kind], (5, 5, 5))
    loss(torch.randn(2, 3, requires_grad=True), torch.tensor([0, 2])).mean().backward()


def use_regularizer(choice: MethodChoice) -> None:
    model = model_of("own_encoder" if choice.name == "soft_sharing" else "none", "bi")
    stages = tuple(Stage(task, step, step) for step, task in enumerate(TASKS, 1))
    context = RegularizerContext(model, dict.fromkeys(TASKS, 1.0), 2, stages, lambda *_: iter([run(model).stream]))
    regularizer = make("regularizer", choice, "recipe: regularizers", context)
    regularizer.after_step(model, 1)
    regularizer.penalty(model, run(model))


def use_sampler(choice: MethodChoice) -> None:
    sampler = make("sampler", choice, "recipe: sampler", SamplerContext({"one": 30, "two": 70}, 4, 0, 5, 2))
    assert all(draw.count > 0 for _ in range(10) for draw in sampler.next_step())


def use_policy(choice: MethodChoice) -> None:
    context = PolicyContext(dict.fromkeys(TASKS, 1.0), dict.fromkeys(TASKS, "yes_no"), 5)
    policy = make("policy", choice, "recipe: policy", context)
    policy.weigh({task: torch.tensor(1.0, requires_grad=True) for task in TASKS}).backward()


def use_optimizer(choice: MethodChoice) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = make("optimizer", choice, "recipe: optimizer", [{"params": [weight]}])
    weight.sum().backward()
    optimizer.step()


USES: dict[str, Callable[[MethodChoice], None]] = {
    "adapter": use_adapter,
    "head": use_head,
    "loss": use_loss,
    "regularizer": use_regularizer,
    "sampler": use_sampler,
    "policy": use_policy,
    "optimizer": use_optimizer,
}


def test_every_table_is_tried() -> None:
    assert USES.keys() == TABLES.keys()
    assert set(ADAPTERS) == set(TABLES["adapter"])


def refused(table: str, choice: MethodChoice) -> str | None:
    try:
        USES[table](choice)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("table", "name", "option"), list(options()))
def test_any_number_is_refused_by_name_or_works(table: str, name: str, option: str) -> None:
    kind = next(one.kind for one in options_of(TABLES[table][name]) if one.name == option)
    USES[table](MethodChoice(name))  # the defaults work, so that a refusal below is about the number
    for value in VALUES:
        message = refused(table, MethodChoice(name, {option: as_given(kind, value)}))
        assert math.isfinite(value) if message is None else option in message


@pytest.mark.parametrize(("table", "name", "option"), list(options()))
def test_defaults_lie_within_their_bounds(table: str, name: str, option: str) -> None:
    declared = next(one for one in options_of(TABLES[table][name]) if one.name == option)
    found = [get_args(one)[1] for one in (declared.kind, *get_args(declared.kind)) if get_origin(one) is Annotated]
    if declared.default is not None and not isinstance(declared.default, tuple):
        assert all(declared.default in bounds for bounds in found if isinstance(bounds, Bounds))


OUT_OF_BOUNDS = [
    ("head", "mlm", "share", 0.0),
    ("head", "mlm", "share", 1.0),
    ("head", "simcse", "temperature", 0.0),
    ("loss", "cross_entropy", "smoothing", 1.0),
    ("loss", "focal", "gamma", -1.0),
    ("loss", "ordinal", "slope", 0.0),
    ("policy", "cagrad", "c", -0.1),
    ("policy", "dwa", "temperature", 0.0),
    ("policy", "gem", "batch", 0),
    ("policy", "gem", "margin", -1.0),
    ("policy", "replay", "size", 0),
    ("regularizer", "ewc", "decay", 1.5),
    ("regularizer", "ewc", "samples", 0),
    ("regularizer", "in_batch_negatives", "threshold", 4.0),
    ("regularizer", "lnsr", "share", -0.1),
    ("regularizer", "lwf", "temperature", 0.0),
    ("regularizer", "smart", "sigma", 0.0),
    ("regularizer", "smart", "steps", 0),
    ("sampler", "annealed", "last", 1.2),
    ("sampler", "mixed", "alpha", 2.0),
    ("sampler", "power", "alpha", -0.1),
    ("sampler", "weights", "weights", {"one": -1, "two": 1}),
]


@pytest.mark.parametrize(("table", "name", "option", "value"), OUT_OF_BOUNDS)
def test_a_number_outside_its_bounds_is_refused(table: str, name: str, option: str, value: Any) -> None:
    message = refused(table, MethodChoice(name, {option: value}))
    assert message is not None
    assert re.search(rf"{option}.*: must be (above|at least|in) .*, found -?\d", message)
