"""The composition root: recipe -> objects. The only file that knows every table of methods.

A method's positional arguments without a default are what every method of its table is given; its other arguments are
the recipe's options, and an unknown method or option is an error that lists the valid ones.
"""

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import torch

from polytask import seeds
from polytask.adapters.base import Adapter, AdapterContext
from polytask.disk.hashing import sha256
from polytask.disk.records import convert
from polytask.encoders.bert import ACTIVATIONS, Bert, BertShape
from polytask.heads import HEADS
from polytask.heads.base import Head
from polytask.losses import LOSSES
from polytask.losses.base import Loss
from polytask.model import MultiTaskModel
from polytask.pretrained.find import find_encoder, hub_revision
from polytask.pretrained.limits import AtMost, check_parameters, most_parameters
from polytask.pretrained.weights import load_encoder, load_tensors, weight_files
from polytask.recipe.records import Recipe
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import LabelSpace, MethodChoice, TaskSpec, UserError, unknown


class Tables(Mapping[str, Mapping[str, Callable[..., Any]]]):
    """The tables of methods by name. Each is imported when it is first used: prediction needs only two of them."""

    places = {  # noqa: RUF012  (never changed)
        "adapter": ("polytask.adapters", "ADAPTERS"),
        "head": ("polytask.heads", "HEADS"),
        "loss": ("polytask.losses", "LOSSES"),
        "regularizer": ("polytask.regularizers", "REGULARIZERS"),
        "sampler": ("polytask.samplers", "SAMPLERS"),
        "policy": ("polytask.policies", "POLICIES"),
        "optimizer": ("polytask.optim", "OPTIMIZERS"),
    }

    def __getitem__(self, table: str) -> Mapping[str, Callable[..., Any]]:
        module, name = self.places[table]
        methods: Mapping[str, Callable[..., Any]] = getattr(import_module(module), name)
        return methods

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


TABLES = Tables()


@dataclass(frozen=True)
class Option:
    """One option of a method, as its constructor declares it."""

    name: str
    kind: Any
    default: Any


def options_of(method: Callable[..., Any]) -> list[Option]:
    """The arguments of a method's constructor that are keyword-only or have a default (an optimizer's lr)."""
    init = method.__init__ if inspect.isclass(method) else method
    hints = typing.get_type_hints(init, include_extras=True)
    parameters = inspect.signature(method).parameters.values()
    return [Option(p.name, hints[p.name], p.default) for p in parameters if is_option(p)]


def is_option(p: inspect.Parameter) -> bool:
    return p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty)


def make(table: str, swap: MethodChoice, where: str, *context: Any) -> Any:
    """The method a recipe names, made with the recipe's options."""
    methods = TABLES[table]
    if swap.name not in methods:
        raise UserError(unknown(where, swap.name, methods, table))
    method = methods[swap.name]
    kinds = {option.name: option.kind for option in options_of(method)}
    for name in swap.options:
        if name not in kinds:
            raise UserError(unknown(where, name, kinds, f"option of {swap.name}"))
    return method(*context, **{k: convert(v, kinds[k], f"{where}.{k}") for k, v in swap.options.items()})


def option(table: str, swap: MethodChoice, name: str, where: str) -> Any:
    """An option's value: the recipe's, or the method's default."""
    if swap.name not in TABLES[table]:
        raise UserError(unknown(where, swap.name, TABLES[table], table))
    declared = {o.name: o for o in options_of(TABLES[table][swap.name])}[name]
    return convert(swap.options[name], declared.kind, f"{where}.{name}") if name in swap.options else declared.default


def complete(swap: MethodChoice, where: str, saved: bool = False) -> MethodChoice:
    """An adapter with every option written out as plain values: two ways to write one adapter become the same.

    `saved`: it is read from a file, which may be older than some of the options (`Adapter.earlier_options`).
    """
    methods = TABLES["adapter"]
    if swap.name not in methods:
        raise UserError(unknown(where, swap.name, methods, "adapter"))
    method = methods[swap.name]
    declared = [one.name for one in options_of(method)]
    for name in swap.options:
        if name not in declared:
            raise UserError(unknown(where, name, declared, f"option of {swap.name}"))
    if saved:
        swap = MethodChoice(swap.name, {**getattr(method, "earlier_options", {}), **swap.options})

    def plain(value: Any) -> Any:
        if isinstance(value, MethodChoice):
            inner = complete(value, where, saved)
            return {"name": inner.name, **inner.options}
        return [plain(one) for one in value] if isinstance(value, tuple) else value

    return MethodChoice(swap.name, {name: plain(option("adapter", swap, name, where)) for name in declared})


# --- the encoder ------------------------------------------------------------------------------------------------------
def encoder_folder(encoder: str | Mapping[str, Any]) -> Path:
    """Where the encoder's files are; an untrained one has only the small built-in vocabulary."""
    if isinstance(encoder, str):
        return find_encoder(encoder)
    return Path(str(resources.files("polytask.text") / "small_vocabulary"))


def encoder_origin(encoder: str | Mapping[str, Any]) -> dict[str, str | None]:
    """SHA-256 of the encoder's weights, and the commit of one of the hub.

    An untrained one is known by its numbers, which stand in the recipe.
    """
    if not isinstance(encoder, str):
        return {"encoder_sha256": "untrained", "encoder_revision": None}
    folder = find_encoder(encoder)
    weights = " ".join(sha256(path) for path in weight_files(folder))
    return {"encoder_sha256": weights, "encoder_revision": hub_revision(folder)}


def make_encoder(recipe: Recipe, folder: Path, tokenizer: TextTokenizer) -> Bert:
    if isinstance(recipe.encoder, str):
        encoder = load_encoder(folder, recipe.dropout, recipe.attention_dropout)
    else:
        given = {"dropout": recipe.dropout, "attention_dropout": recipe.attention_dropout}
        numbers = {"vocabulary": tokenizer.vocabulary} | {k: v for k, v in given.items() if v is not None}
        shape: BertShape = convert({**numbers, **recipe.encoder}, BertShape, "recipe: encoder")
        if shape.hidden % shape.heads:
            raise UserError(f"recipe: encoder: {shape.heads} heads do not divide a hidden size of {shape.hidden}")
        if shape.activation not in ACTIVATIONS:
            raise UserError(unknown("recipe: encoder.activation", shape.activation, ACTIVATIONS, "activation"))
        check_parameters(shape, "recipe: encoder")
        encoder = Bert(shape)
    check_vocabulary(tokenizer, encoder.shape, folder)
    if recipe.max_length > encoder.shape.positions:
        raise UserError(
            f"recipe: max_length: the encoder has {encoder.shape.positions} positions, found {recipe.max_length}"
        )
    return encoder


def check_vocabulary(tokenizer: TextTokenizer, shape: BertShape, folder: Path) -> None:
    """Refuses a tokenizer whose ids the encoder has no vectors for: they would fail at some later text."""
    if tokenizer.vocabulary > shape.vocabulary:
        raise UserError(
            f"{folder}: the tokenizer has token ids up to {tokenizer.vocabulary - 1}, and the encoder has vectors for "
            f"{shape.vocabulary} ids: they are not a pair"
        )


def make_packer(recipe: Recipe, tokenizer: TextTokenizer) -> Packer:
    tasks = tuple(recipe.tasks)
    assert recipe.max_length <= tokenizer.max_tokens, "texts were cut before they were packed"
    return Packer(tasks, tokenizer.cls_id, tokenizer.sep_id, recipe.max_length, tokenizer.masker)


# --- the model --------------------------------------------------------------------------------------------------------
def head_swap(spec: TaskSpec) -> MethodChoice:
    """The recipe's head, or mlm for plain text, linear for one text and cross for a pair."""
    return spec.head or MethodChoice("mlm" if spec.kind == "text" else "cross" if spec.is_pair else "linear")


def make_head(spec: TaskSpec, labels: LabelSpace, hidden: int) -> Head:
    where = f"recipe: tasks.{spec.name}.head"
    swap = head_swap(spec)
    fits, problem = fitting_heads(spec, labels), None
    method = HEADS.get(swap.name)  # None: unknown, which `make` refuses
    if method is not None and labels.kind not in method.kinds:
        problem = f"{swap.name} does not fit kind {labels.kind}"
    elif method is not None and len(spec.text) not in method.texts:
        problem = f"{swap.name} does not take {len(spec.text)} text(s)"
    if problem:
        raise UserError(f"{where}: {problem}; these do: {', '.join(fits) or 'none'}")
    head: Head = make("head", swap, where, spec.name, labels, hidden)
    return head


def fitting_heads(spec: TaskSpec, labels: LabelSpace) -> list[str]:
    """The heads that take a task's kind of label and its number of texts."""
    return [name for name, head in HEADS.items() if labels.kind in head.kinds and len(spec.text) in head.texts]


def make_loss(spec: TaskSpec, labels: LabelSpace, counts: tuple[int, ...]) -> Loss | None:
    """The loss a recipe names for the task; None: its head's own."""
    if spec.loss is None:
        return None
    where = f"recipe: tasks.{spec.name}.loss"
    fits = [name for name, method in LOSSES.items() if labels.kind in method.kinds]
    if spec.loss.name in LOSSES and spec.loss.name not in fits:
        others = f"these do: {', '.join(fits)}" if fits else "leave it out"
        raise UserError(f"{where}: {spec.loss.name} does not fit kind {labels.kind}; {others}")
    try:
        loss: Loss = make("loss", spec.loss, where, labels, counts)
    except UserError as error:
        raise UserError(str(error).replace("recipe: loss", where, 1)) from None
    return loss


def make_adapter(swap: MethodChoice, tasks: tuple[str, ...], shape: BertShape) -> Adapter:
    numbers = (shape.layers, shape.hidden, shape.heads, shape.ffn, shape.dropout)
    context = AdapterContext(tasks, *numbers, make=lambda inner: make_adapter(inner, tasks, shape))
    adapter: Adapter = make("adapter", swap, "recipe: adapter", context)
    return adapter


def make_model(
    specs: Mapping[str, TaskSpec],
    labels: Mapping[str, LabelSpace],
    adapter: MethodChoice,
    encoder: Callable[[], Bert],
    seed: int = 0,
    most: int | None = None,
) -> MultiTaskModel:
    """The whole model; what is not pretrained starts from the seed alone.

    `most` is the largest number of parameters of adapter and heads; left out: what the memory can hold.
    """
    for name in specs:
        if hasattr(torch.nn.ModuleDict, name):  # heads are kept in one, which has attributes of its own
            raise UserError(f"recipe: tasks.{name}: this name is taken; call the task something else")
    torch.manual_seed(seeds.derive(seed, "start"))
    bert = encoder()
    most = most_parameters() if most is None else most
    with AtMost(most, f"recipe: adapter and heads need more than {most:,} parameters; choose smaller sizes"):
        parts = make_adapter(adapter, tuple(specs), bert.shape)
        parts.start_from(bert)
        heads = {name: make_head(spec, labels[name], bert.shape.hidden) for name, spec in specs.items()}
    return MultiTaskModel(bert, parts, heads)


def start_heads(model: MultiTaskModel, encoder: Path) -> None:
    """Heads that an encoder comes with start from its own weights: see `Head.pretrained`."""
    for task in model.tasks:
        head = model.head(task)
        own = head.state_dict()
        found = load_tensors(encoder, head.pretrained) if head.pretrained else {}
        if found:  # a head may have fewer tokens than the encoder, whose matrix is often rounded up
            head.load_state_dict({name: tensor[: len(own[name])] for name, tensor in found.items()})
