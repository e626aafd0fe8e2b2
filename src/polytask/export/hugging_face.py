"""Writes one task of a run for transformers or sentence-transformers, or the encoder for embeddings.

An adapter is merged into the encoder first. Neither library is needed to write the files.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from polytask.adapters.base import Adapter, LayerAdapter
from polytask.build import head_choice
from polytask.disk.atomic import atomic_folder
from polytask.disk.json_files import read_json
from polytask.export.adapter import check_new
from polytask.export.card import card_with
from polytask.export.logits import Logits, logits_of
from polytask.export.merge import merged_bundle
from polytask.export.padded import reads_windows
from polytask.heads.base import Head
from polytask.model import MultiTaskModel
from polytask.pretrained.kinds import kind_of
from polytask.pretrained.weights import save_encoder
from polytask.runs.bundle import Bundle, load_run
from polytask.stream import Pooling
from polytask.types import UserError

TANH_HEADS = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""The encoders whose class for sequences has a dense layer with tanh on the first token: our pooler."""
TOKEN_CLASSES = ("bert", *TANH_HEADS, "electra", "distilbert")
"""The encoders whose class for tokens has one linear layer on the states."""
ST = "sentence_transformers.models"
MODES = {"mean": "mean_tokens", "first": "cls_token", "pooler": "cls_token"}
ALL_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


@dataclass(frozen=True)
class HuggingFaceFolder:
    """A written folder."""

    folder: Path
    opened_by: str
    """The class that opens it."""
    notes: tuple[str, ...]
    """What the folder does not hold, and what to know about its answers."""


def export_hugging_face(
    run: str | Path, task: str | None = None, output: str | Path | None = None, trust_plugins: bool = False
) -> HuggingFaceFolder:
    """Writes one task as a folder of transformers or sentence-transformers (default: to hf-TASK in the run).

    Heads on the pooler become a class such as BertForSequenceClassification, or BertForMultipleChoice for kind choice,
    and tags of words BertForTokenClassification. Other heads become a sentence-transformers folder: its `encode`
    returns the logits of heads that are one linear layer, and the embeddings of heads that compare two texts. Without a
    task, the folder is the plain encoder for embeddings. `trust_plugins` remembers that the run's plug-ins, which are
    Python programs, may run.
    """
    target = check_new(Path(run) / (f"hf-{task}" if task else "hf") if output is None else Path(output))
    loaded = load_run(Path(run), trust_plugins)
    if loaded.word_tags is not None:
        raise UserError(f"{run}: the model reads the part-of-speech tags of words, which transformers has no input for")
    bundle = _plain(loaded) if task is None else merged_bundle(loaded, task, str(run))
    with atomic_folder(target) as folder:
        write = _for_embeddings if task is None else _writer_of(bundle, task, str(run))
        written = write(bundle, folder, task)
        written = replace(written, folder=target, notes=(*written.notes, *_notes_about(loaded, task)))
        _save_tokenizer(bundle, folder)
        (folder / "README.md").write_text(card_with(Path(run), _section(written)), encoding="utf-8")
    return written


def _plain(bundle: Bundle) -> Bundle:
    """The encoder without the adapter, as `Predictor.embed` uses it."""
    model = bundle.model
    parts = (LayerAdapter() for _ in model.encoder.layers)
    adapter = Adapter(LayerAdapter(), parts, model.tasks)
    return replace(bundle, model=MultiTaskModel(model.encoder, adapter, {t: model.head(t) for t in model.tasks}))


def _notes_about(bundle: Bundle, task: str | None) -> Iterator[str]:
    """What the folder leaves out of the run's model."""
    if task is None:
        if not bundle.model.is_plain:
            yield f"The adapter {bundle.adapter.name} is not part of the folder, which has the shared encoder only."
        yield f"The tasks are not part of the folder; --task exports one of: {', '.join(bundle.specs)}."
    elif reads_windows(bundle.model.head(task)):
        yield f"A text of more than {bundle.packer.max_length} tokens is truncated; polytask reads it in windows."


def _writer_of(bundle: Bundle, task: str, run: str) -> Any:
    """The function that writes the task; raises a UserError that says why there is none."""
    head, name, kind = bundle.model.head(task), head_choice(bundle.specs[task]).name, bundle.model.encoder.shape.kind
    texts = len(bundle.specs[task].text)
    if texts > 2:
        raise UserError(
            f"{run}: task {task} reads {texts} texts, and tokenizers of transformers take at most two; use --format "
            "onnx"
        )
    if name in ("linear", "cross", "choice"):
        is_pooled = head.pooling == "pooler" and (kind == "bert" or kind in TANH_HEADS)
        if not is_pooled:
            return _for_logits
        return _for_options if name == "choice" else _for_sequences
    if name == "tags":
        if kind in TOKEN_CLASSES:
            return _for_tokens
        raise UserError(
            f"{run}: the class of transformers for tags with a {kind} encoder has layers that the head of task {task} "
            "does not have; use --format onnx"
        )
    if name in ("bi", "cosine", "match"):
        return _for_embeddings
    reason = {
        "joint": "it reads each pair both as one sequence and as two texts, which no class of transformers does",
        "mlm": "it has no predictions; leave --task out to export the encoder for embeddings",
        "simcse": "it has no predictions; leave --task out to export the encoder for embeddings",
    }.get(name, "transformers has no such head")
    raise UserError(f"{run}: task {task} with the head {name} cannot be exported for transformers: {reason}")


# --- transformers -----------------------------------------------------------------------------------------------------
def _for_sequences(bundle: Bundle, folder: Path, task: str) -> HuggingFaceFolder:
    kind = kind_of(bundle.model.encoder.shape)
    logits = logits_of(bundle, task)
    if kind.model == "Bert":
        names = {"weight": "classifier.weight", "bias": "classifier.bias"}
        moved = {"pooler.": f"{kind.prefix}pooler."}
    else:
        names = {"weight": "classifier.out_proj.weight", "bias": "classifier.out_proj.bias"}
        moved = {"pooler.dense.": "classifier.dense."}
    return _write_class(bundle, folder, f"{kind.model}ForSequenceClassification", logits, names, moved)


def _for_options(bundle: Bundle, folder: Path, task: str) -> HuggingFaceFolder:
    kind = kind_of(bundle.model.encoder.shape)
    names = {"weight": "classifier.weight", "bias": "classifier.bias"}
    moved = {"pooler.": f"{kind.prefix}pooler."}
    return _write_class(bundle, folder, f"{kind.model}ForMultipleChoice", logits_of(bundle, task), names, moved)


def _for_tokens(bundle: Bundle, folder: Path, task: str) -> HuggingFaceFolder:
    kind = kind_of(bundle.model.encoder.shape)
    names = {"weight": "classifier.weight", "bias": "classifier.bias"}
    logits = logits_of(bundle, task)
    return _write_class(bundle, folder, f"{kind.model}ForTokenClassification", logits, names, {"pooler.": None})


def _write_class(
    bundle: Bundle, folder: Path, name: str, logits: Logits, names: Mapping[str, str], moved: Mapping[str, str | None]
) -> HuggingFaceFolder:
    encoder, weights = bundle.model.encoder, folder / "model.safetensors"
    save_encoder(encoder, folder, bundle.tokenizer.pad_id)
    tensors = {names["weight"]: logits.weight, names["bias"]: logits.bias}
    for key, tensor in load_file(weights).items():
        start = next((start for start in moved if key.startswith(start)), None)
        if start is None:
            tensors[f"{kind_of(encoder.shape).prefix}{key}"] = tensor
        elif moved[start] is not None:
            tensors[key.replace(start, str(moved[start]), 1)] = tensor
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, weights, metadata={"format": "pt"})
    config = read_json(folder / "config.json") | {"architectures": [name]} | logits.config()
    _write_json(folder / "config.json", config)
    return HuggingFaceFolder(folder, f"transformers.{name}", logits.notes)


# --- sentence-transformers --------------------------------------------------------------------------------------------
def _for_logits(bundle: Bundle, folder: Path, task: str) -> HuggingFaceFolder:
    logits, pooling = logits_of(bundle, task), bundle.model.head(task).pooling
    assert pooling is not None
    modules = [
        *_pooling_modules(bundle, folder, pooling),
        _dense(folder, "Logits", logits.weight, logits.bias, "linear.Identity"),
    ]
    _write_modules(bundle, folder, modules)
    names = ", ".join(logits.names)
    note = f"`encode` returns the logits of {names}, not embeddings. {_why_no_class(bundle, pooling)}"
    return HuggingFaceFolder(folder, "sentence_transformers.SentenceTransformer", (note, *logits.notes))


def _why_no_class(bundle: Bundle, pooling: Pooling) -> str:
    """Why the task is no plain class of transformers."""
    kind = kind_of(bundle.model.encoder.shape)
    if pooling == "pooler":
        return f"{kind.model}ForSequenceClassification has other layers on the first token than the pooler."
    return f"{kind.model}ForSequenceClassification does not use the {pooling} of a text's states, as this head does."


def _for_embeddings(bundle: Bundle, folder: Path, task: str | None) -> HuggingFaceFolder:
    head = None if task is None else bundle.model.head(task)
    pooling = "mean" if head is None or head.pooling is None else head.pooling
    modules = _pooling_modules(bundle, folder, pooling)
    name = "" if task is None else head_choice(bundle.specs[task]).name
    if name in ("", "match"):
        modules.append({"path": "9_Normalize", "type": f"{ST}.Normalize"})
        (folder / "9_Normalize").mkdir()
    _write_modules(bundle, folder, modules)
    notes = ("`encode` returns the embeddings of single texts.", *_pair_notes(name, head))
    return HuggingFaceFolder(folder, "sentence_transformers.SentenceTransformer", notes)


def _pair_notes(name: str, head: Head | None) -> Sequence[str]:
    """How the embeddings of two texts become the prediction, or that they cannot."""
    if head is None:
        return ()
    if name == "match":
        return ("The prediction is the cosine of the two embeddings.",)
    if name == "bi":
        return ("The classifier on the two embeddings is not part of the folder: it has no place for it.",)
    if head.labels.kind == "yes_no":
        scale, shift = (getattr(head, value).item() for value in ("scale", "shift"))
        return (f"The logit of yes is {scale:.6g} cos {shift:+.6g}, with the cosine of the two embeddings.",)
    low, size = head.labels.low, head.labels.high - head.labels.low
    form = {"linear": "(1 + cos) / 2", "direct": "cos", "sigmoid": "sigmoid(cos)"}[str(getattr(head, "map", ""))]
    return (f"The score is {low:g} + {size:g} * {form}, with the cosine of the two embeddings; polytask clips it.",)


def _pooling_modules(bundle: Bundle, folder: Path, pooling: Pooling) -> list[dict[str, str]]:
    encoder = bundle.model.encoder
    save_encoder(encoder, folder, bundle.tokenizer.pad_id)
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode == MODES[pooling] for mode in ALL_MODES}
    config = {"word_embedding_dimension": encoder.shape.hidden, **modes, "include_prompt": True}
    _write_json(folder / "1_Pooling" / "config.json", config)
    modules = [{"path": "", "type": f"{ST}.Transformer"}, {"path": "1_Pooling", "type": f"{ST}.Pooling"}]
    if pooling == "pooler":
        pooler = encoder.pooler
        modules.append(_dense(folder, "Pooler", pooler.weight.data, pooler.bias.data, "activation.Tanh"))
    return modules


def _dense(folder: Path, name: str, weight: Tensor, bias: Tensor, activation: str) -> dict[str, str]:
    """Writes a linear layer; the name of its activation is that of the class in torch.nn.modules."""
    path = folder / f"2_{name}"
    path.mkdir()
    outputs, features = weight.shape
    config = {"in_features": features, "out_features": outputs, "bias": True}
    _write_json(path / "config.json", config | {"activation_function": f"torch.nn.modules.{activation}"})
    save_file({"linear.weight": weight.contiguous(), "linear.bias": bias.contiguous()}, path / "model.safetensors")
    return {"path": path.name, "type": f"{ST}.Dense"}


def _write_modules(bundle: Bundle, folder: Path, modules: Sequence[dict[str, str]]) -> None:
    numbered = [{"idx": i, "name": str(i), **module} for i, module in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(numbered, indent=2) + "\n", encoding="utf-8")
    _write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": bundle.packer.max_length, "do_lower_case": False}
    )
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})


# --- both -------------------------------------------------------------------------------------------------------------
def _save_tokenizer(bundle: Bundle, folder: Path) -> None:
    """Writes the tokenizer, which truncates as the run does."""
    bundle.tokenizer.save(folder, bundle.packer.max_length)
    config = read_json(folder / "tokenizer_config.json")
    side = "left" if bundle.packer.cut_start else "right"
    _write_json(folder / "tokenizer_config.json", config | {"truncation_side": side})


def _section(written: HuggingFaceFolder) -> str:
    library, _, name = written.opened_by.partition(".")
    call = f"{name}.from_pretrained(FOLDER)" if library == "transformers" else f"{name}(FOLDER)"
    lines = [f"## Use with {library.replace('_', '-')}\n", f"Open this folder with `{call}` of {library}."]
    return "\n".join([*lines, *written.notes]) + "\n"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
