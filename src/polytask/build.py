"""Builds the objects that a recipe names: methods, encoder, heads, model. The only file that imports every table.

All methods of a table get the same positional arguments. A method's other arguments (keyword-only or with a default)
are its options in the recipe. An unknown method or option is an error that lists the valid ones.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import polytask.kernels  # noqa: F401  (registers the fused forms of the definitions)
from polytask import seeds
from polytask.adapters.base import Adapter, AdapterContext
from polytask.disk.hashing import remembered_sha256
from polytask.disk.records import convert
from polytask.encoders.attention import attend
from polytask.encoders.base import ACTIVATIONS, Encoder, EncoderShape
from polytask.heads import HEADS
from polytask.heads.base import Head
from polytask.losses import LOSSES
from polytask.losses.base import Loss
from polytask.methods import find_method, options_of
from polytask.model import MultiTaskModel, TagEmbedding
from polytask.pretrained.find import find_encoder, hub_revision
from polytask.pretrained.kinds import KINDS, new_encoder
from polytask.pretrained.limits import AtMost, check_parameters, most_parameters
from polytask.pretrained.weights import load_encoder, load_tensors, weight_files
from polytask.recipe.records import Recipe
from polytask.settings import MethodChoice, TaskSpec
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import LabelSpace, UserError, unknown


def make(table: str, choice: MethodChoice, where: str, *context: Any) -> Any:
    """Creates the method that a recipe names, with the recipe's options."""
    method = find_method(table, choice.name, where)
    kinds = {option.name: option.kind for option in options_of(method)}
    _check_options(choice, kinds, where)
    return method(*context, **{k: convert(v, kinds[k], f"{where}.{k}") for k, v in choice.options.items()})


def option(table: str, choice: MethodChoice, name: str, where: str) -> Any:
    """The value of an option: the recipe's, or the method's default."""
    declared = {o.name: o for o in options_of(find_method(table, choice.name, where))}[name]
    if name in choice.options:
        return convert(choice.options[name], declared.kind, f"{where}.{name}")
    return declared.default


def complete(choice: MethodChoice, where: str, saved: bool = False) -> MethodChoice:
    """An adapter with all its options as plain values, so that equal adapters compare equal.

    `saved`: it comes from a file, which may be older than some of the options (`Adapter.earlier_options`).
    """
    method = find_method("adapter", choice.name, where)
    declared = [one.name for one in options_of(method)]
    _check_options(choice, declared, where)
    if saved:
        choice = MethodChoice(choice.name, {**getattr(method, "earlier_options", {}), **choice.options})

    def plain(value: Any) -> Any:
        if isinstance(value, MethodChoice):
            inner = complete(value, where, saved)
            return {"name": inner.name, **inner.options}
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    return MethodChoice(choice.name, {name: plain(option("adapter", choice, name, where)) for name in declared})


def _check_options(choice: MethodChoice, declared: Iterable[str], where: str) -> None:
    declared = list(declared)
    for name in choice.options:
        if not declared:
            raise UserError(
                f"{where}: there is no option {name!r} of {choice.name}, which has no options; write "
                "`{name: NAME, option: value}` to choose another method"
            )
        if name not in declared:
            raise UserError(unknown(where, name, declared, "option", f" of {choice.name}"))


# --- the encoder ------------------------------------------------------------------------------------------------------
def encoder_folder(encoder: str | Mapping[str, Any]) -> Path:
    """The folder of the encoder's files. An untrained encoder uses the small built-in vocabulary."""
    if isinstance(encoder, str):
        return find_encoder(encoder)
    return Path(str(resources.files("polytask.text") / "small_vocabulary"))


def encoder_origin(encoder: str | Mapping[str, Any]) -> dict[str, str | None]:
    """The SHA-256 of the encoder's weights, and its commit if it comes from the hub.

    An untrained encoder is defined by its shape, which is in the recipe.
    """
    if not isinstance(encoder, str):
        return {"encoder_sha256": "untrained", "encoder_revision": None}
    folder = find_encoder(encoder)
    weights = " ".join(remembered_sha256(path) for path in weight_files(folder))
    return {"encoder_sha256": weights, "encoder_revision": hub_revision(folder)}


def make_encoder(recipe: Recipe, folder: Path, tokenizer: TextTokenizer) -> Encoder:
    """Loads the recipe's pretrained encoder, or creates an untrained one of the recipe's shape."""
    if isinstance(recipe.encoder, str):
        encoder = load_encoder(folder, recipe.dropout, recipe.attention_dropout, keep=True)
    else:
        rates = {"dropout": recipe.dropout, "attention_dropout": recipe.attention_dropout}
        shape = untrained_shape(recipe.encoder, {k: v for k, v in rates.items() if v is not None}, tokenizer)
        check_parameters(shape, "recipe: encoder")
        encoder = new_encoder(shape)
    check_vocabulary(tokenizer, encoder.shape, folder)
    if recipe.max_length > encoder.shape.positions:
        raise UserError(
            f"recipe: max_length: must be at most {encoder.shape.positions}, the encoder's positions; found "
            f"{recipe.max_length}"
        )
    return encoder


def untrained_shape(given: Mapping[str, Any], rates: Mapping[str, float], tokenizer: TextTokenizer) -> EncoderShape:
    """The shape of an untrained encoder: what the recipe says, else what its kind and the tokenizer have."""
    name = given.get("kind", "bert")
    if name not in KINDS:
        raise UserError(unknown("recipe: encoder.kind", str(name), KINDS, "kind of encoder"))
    kind = KINDS[name]
    defaults = {**asdict(kind.shape), "vocabulary": tokenizer.vocabulary}
    if kind.after_padding:
        defaults["first_position"] = tokenizer.pad_id + 1
    shape: EncoderShape = convert({**defaults, **rates, **given}, type(kind.shape), "recipe: encoder")
    if shape.hidden % shape.heads:
        raise UserError(f"recipe: encoder.heads: must divide the hidden size {shape.hidden}, found {shape.heads}")
    if kind.is_modern and shape.hidden // shape.heads % 2:
        raise UserError(f"recipe: encoder.heads: the size of a head, {shape.hidden // shape.heads}, must be even")
    if shape.activation not in ACTIVATIONS:
        raise UserError(unknown("recipe: encoder.activation", shape.activation, ACTIVATIONS, "activation"))
    return shape


def check_vocabulary(tokenizer: TextTokenizer, shape: EncoderShape, folder: Path) -> None:
    """Raises a UserError if the tokenizer has ids without an embedding: some text would fail later."""
    if tokenizer.vocabulary > shape.vocabulary:
        raise UserError(
            f"{folder}: the tokenizer has ids up to {tokenizer.vocabulary - 1}, but the encoder has embeddings for "
            f"{shape.vocabulary} ids; use the tokenizer that belongs to the encoder"
        )


def make_packer(recipe: Recipe, tokenizer: TextTokenizer, tagged: bool = False) -> Packer:
    tasks = tuple(recipe.tasks)
    most = most_tokens(recipe.max_length, recipe.tasks.values())
    assert most <= tokenizer.max_tokens, "texts were truncated before packing"
    special_ids = tokenizer.cls_id, tokenizer.sep_id
    check_room(recipe.tasks, tokenizer, recipe.max_length, "recipe")
    return Packer(tasks, *special_ids, recipe.max_length, tokenizer.masker, tagged, tokenizer.pair, recipe.truncate)


def check_room(specs: Mapping[str, TaskSpec], tokenizer: TextTokenizer, max_length: int, where: str) -> None:
    """Raises a UserError if a sequence has no room for the special tokens of a task and a token of each text."""
    for name, spec in specs.items():
        texts = 2 if spec.has_options else len(spec.text)
        special = tokenizer.pair.special_tokens(texts)
        least = special + texts if texts > 2 else special
        if max_length < least:
            raise UserError(
                f"{where}: max_length: must be at least {least} for task {name}, whose sequences have {special} "
                f"special tokens; found {max_length}"
            )


# --- the model --------------------------------------------------------------------------------------------------------
def head_choice(spec: TaskSpec) -> MethodChoice:
    """The recipe's head, or the default: that of the kind, else linear for one text and cross for several."""
    usual = {"text": "mlm", "tokens": "tags", "match": "match", "choice": "choice"}
    return spec.head or MethodChoice(usual.get(spec.kind, "linear" if len(spec.text) == 1 else "cross"))


def make_head(spec: TaskSpec, labels: LabelSpace, hidden: int) -> Head:
    where = f"recipe: tasks.{spec.name}.head"
    choice = head_choice(spec)
    method: Any = find_method("head", choice.name, where)
    problem = None
    if labels.kind not in method.kinds:
        problem = f"{choice.name} does not support kind {labels.kind}"
    elif len(spec.text) not in method.texts:
        problem = f"{choice.name} does not support {len(spec.text)} text(s)"
    elif _lacks_range(method, labels):
        problem = (
            f"{choice.name} needs scores with a range (to use it, write tasks.{spec.name}.range: [LOWEST, HIGHEST])"
        )
    if problem:
        raise UserError(f"{where}: {problem}; choose one of: {', '.join(fitting_heads(spec, labels)) or 'none'}")
    head: Head = make("head", choice, where, spec.name, labels, hidden)
    if spec.windows is not None:
        check_windows(spec, head, choice.name)
        head.windows = spec.windows
    return head


def check_windows(spec: TaskSpec, head: Head, name: str) -> None:
    """Raises a UserError if the head cannot read texts in windows."""
    problem = None
    if head.reading == "options":
        problem = f"the head {name} reads the text together with each option"
    elif len(spec.text) > 1 and head.reading != "separate":
        problem = f"the head {name} reads several texts in one sequence; choose bi or cosine for a pair"
    elif head.pooling is None or head.copies > 1 or head.mask_share is not None:
        problem = f"the head {name} reads more than one vector of a text; choose another head"
    if problem:
        raise UserError(f"recipe: tasks.{spec.name}.windows: {problem}; or leave windows out")


def most_tokens(max_length: int, specs: Iterable[TaskSpec]) -> int:
    """The most tokens of a text that some task reads, in one sequence or in windows."""
    rooms = (spec.windows.room(max_length) for spec in specs if spec.windows is not None)
    return max([max_length, *rooms])


def fitting_heads(spec: TaskSpec, labels: LabelSpace) -> list[str]:
    """The heads that support a task's kind of labels and its number of texts."""
    fitting = {name: head for name, head in HEADS.items() if labels.kind in head.kinds and len(spec.text) in head.texts}
    return [name for name, head in fitting.items() if not _lacks_range(head, labels)]


def _lacks_range(head: type[Head], labels: LabelSpace) -> bool:
    return labels.kind == "score" and head.needs_range and not labels.bounded


def make_loss(spec: TaskSpec, labels: LabelSpace, counts: tuple[int, ...]) -> Loss | None:
    """The loss that the recipe names for the task; None for the head's default loss."""
    if spec.loss is None:
        return None
    where = f"recipe: tasks.{spec.name}.loss"
    find_method("loss", spec.loss.name, where)
    fits = [name for name, method in LOSSES.items() if labels.kind in method.kinds]
    if spec.loss.name not in fits:
        remedy = f"choose one of: {', '.join(fits)}" if fits else "leave it out"
        raise UserError(f"{where}: {spec.loss.name} does not support kind {labels.kind}; {remedy}")
    try:
        loss: Loss = make("loss", spec.loss, where, labels, counts)
    except UserError as error:
        raise UserError(str(error).replace("recipe: loss", where, 1)) from None
    return loss


def make_adapter(choice: MethodChoice, tasks: tuple[str, ...], shape: EncoderShape) -> Adapter:
    numbers = (shape.layers, shape.hidden, shape.heads, shape.ffn, shape.dropout)

    def make_inner(inner: MethodChoice, inner_tasks: tuple[str, ...] | None = None) -> Adapter:
        return make_adapter(inner, inner_tasks or tasks, shape)

    context = AdapterContext(
        tasks,
        *numbers,
        make=make_inner,
        attend=attend,
        embedding=shape.embedding_size,
        up=shape.up_size,
        pre_norm=shape.pre_norm,
    )
    adapter: Adapter = make("adapter", choice, "recipe: adapter", context)
    return adapter


def make_model(
    specs: Mapping[str, TaskSpec],
    labels: Mapping[str, LabelSpace],
    adapter: MethodChoice,
    encoder: Callable[[], Encoder],
    seed: int = 0,
    most: int | None = None,
    tags: int | None = None,
) -> MultiTaskModel:
    """Creates the whole model. Parameters that are not pretrained depend only on the seed.

    `tags` is the number of part-of-speech tags, if words have tags. `most` is the maximum number of parameters of
    adapter and heads; by default what fits in memory.
    """
    for name in specs:
        if hasattr(torch.nn.ModuleDict, name):  # the heads are in one, whose attributes cannot be used as keys
            raise UserError(f"recipe: tasks.{name}: this name is reserved; choose another name for the task")
    torch.manual_seed(seeds.derive(seed, "start"))
    shared = encoder()
    most = most_parameters() if most is None else most
    with AtMost(most, f"recipe: adapter and heads need more than {most:,} parameters; choose smaller sizes"):
        parts = make_adapter(adapter, tuple(specs), shared.shape)
        parts.start_from(shared)
        heads = {name: make_head(spec, labels[name], shared.shape.hidden) for name, spec in specs.items()}
        _check_decoders(heads, shared.shape)
        word_tags = None if tags is None else TagEmbedding(tags, shared.shape.embedding_size)
    return MultiTaskModel(shared, parts, heads, word_tags)


def _check_decoders(heads: Mapping[str, Head], shape: EncoderShape) -> None:
    """Raises a UserError for heads that predict tokens with word embeddings of another size than the hidden states."""
    for name, head in heads.items():
        if head.mask_share is not None and shape.embedding_size != shape.hidden:
            raise UserError(
                f"recipe: tasks.{name}: masked language modelling needs word embeddings of the hidden size "
                f"{shape.hidden}, but those of this {shape.kind} encoder have {shape.embedding_size} numbers; choose "
                "another encoder, or leave the task out"
            )


def start_heads(model: MultiTaskModel, encoder: Path) -> None:
    """Initializes heads with the pretrained weights that come with the encoder, if any: see `Head.pretrained`."""
    for task in model.tasks:
        head = model.head(task)
        own = head.state_dict()
        found = (load_tensors(encoder, names) for names in head.pretrained)
        pretrained: dict[str, Tensor] = next(filter(None, found), {})
        if pretrained:  # a head may have fewer tokens than the encoder, whose matrix is often padded
            head.load_state_dict(own | {name: tensor[: len(own[name])] for name, tensor in pretrained.items()})
