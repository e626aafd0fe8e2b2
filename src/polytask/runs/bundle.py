"""The model folder: what predict, export and add-task load, in files that other programs can open too.

config.json and model.safetensors are the encoder in the layout of Hugging Face Transformers; tokenizer.json is its
tokenizer; parts.safetensors has the weights of the adapter and the heads; plugins/ has the plug-in files that the model
needs, which run only if the user has trusted them; tasks.json, written last, describes the tasks and has the hashes of
the other files. Knows no training.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file, save_file
from torch import Tensor

from polytask.build import check_room, check_vocabulary, complete, make_model, most_tokens
from polytask.disk.atomic import atomic_file, write_atomically
from polytask.disk.cache import cache_folder
from polytask.disk.hashing import sha256
from polytask.disk.json_files import read_json
from polytask.heads.base import Head
from polytask.kinds.table import KINDS
from polytask.kinds.tokens import sure_tags
from polytask.methods import KIND, find_method
from polytask.model import MultiTaskModel
from polytask.plugins.files import Plugin, copy_plugins, read_copies, using_plugins
from polytask.pretrained.header import FLOATS, Entry, check_finite, read_header
from polytask.pretrained.weights import load_encoder, read_shape, save_encoder
from polytask.runs.folder import ONNX_RECORD, ModelFolder, RunFolder, find_model
from polytask.runs.tasks_file import AGAIN, FORMAT, Method, TaskEntry, TasksFile, read_tasks
from polytask.settings import MethodChoice, TaskSpec
from polytask.tasks.task import Split, read_split
from polytask.text.options import mark_dropped, widened
from polytask.text.packing import Packer
from polytask.text.tagging import (
    TaggedWord,
    Tagger,
    TagIds,
    TagVocabulary,
    column_words,
    encode_tagged,
    make_tagger,
    tags_of,
)
from polytask.text.texts import Texts
from polytask.text.tokenizer import TextTokenizer
from polytask.text.words import WordText, encode_words
from polytask.types import Label, LabelSpace, Prediction, UserError, errors_in

SPARE = 2**20
"""Numbers that an adapter may allocate temporarily, in addition to its weights."""


@dataclass(frozen=True)
class Bundle:
    """A trained model with everything that prediction needs."""

    model: MultiTaskModel
    tokenizer: TextTokenizer
    packer: Packer
    specs: Mapping[str, TaskSpec]
    labels: Mapping[str, LabelSpace]
    adapter: MethodChoice
    word_tags: TagVocabulary | None = None
    plugins: tuple[Plugin, ...] = ()
    temperatures: Mapping[str, float] = field(default_factory=dict)
    """By task: the number that outputs are divided by to get calibrated probabilities. Left out: 1."""

    @cached_property
    def tagger(self) -> Tagger | None:
        """The tagger that the model was trained with."""
        return None if self.word_tags is None else make_tagger(self.word_tags.tagger)

    def tokenize(
        self,
        examples: Sequence[tuple[str, ...]],
        tags: Sequence[tuple[str, ...]] | None = None,
        options: bool = False,
    ) -> Texts:
        """The token ids of examples, and the tags of their words if the model has tags.

        `tags` are the values of the columns with tags. Without them, and without a tagger, the words have no tags.
        With `options`, an example is its text, followed by its options, of which it may have fewer than others.
        """
        width = max(map(len, examples), default=1)
        assert options or all(len(example) == width for example in examples)
        texts = [text for example in examples for text in widened(example, width)]
        if self.word_tags is None:
            ids, token_tags = self.tokenizer.encode(texts), list[TagIds]()
        else:
            encoded = encode_tagged(self.tokenizer, texts, self._words(texts, tags), self.word_tags.ids)
            ids, token_tags = [one.ids for one in encoded], [one.tags for one in encoded]
        if options:
            mark_dropped(texts, ids, token_tags, self.tokenizer.unk_id)
        found = Texts.of([tuple(ids[i : i + width]) for i in range(0, len(ids), width)])
        return found if self.word_tags is None else replace(found, tags=np.concatenate(token_tags))

    def _words(self, texts: Sequence[str], tags: Sequence[tuple[str, ...]] | None) -> list[list[TaggedWord]]:
        """The tagged words of each text."""
        if self.tagger is not None:
            return [self.tagger.words(text) for text in texts]
        if tags is None:
            return [[] for _ in texts]
        columns_of_tags = [value for example in tags for value in example]
        return [column_words(*one) for one in zip(texts, columns_of_tags, strict=True)]

    def tokenize_words(self, texts: Sequence[WordText]) -> Texts:
        """The token ids of whole texts, with the first tokens of their words."""
        encoded = encode_words(self.tokenizer, texts)
        ids = Texts.of([(one.ids,) for one in encoded])
        words = np.concatenate([one.is_first for one in encoded]) if encoded else np.zeros(0, bool)
        if self.word_tags is None:
            return replace(ids, words=words)
        tagged = [[] if self.tagger is None else self.tagger.words(one.text) for one in texts]
        both = zip((one.starts for one in encoded), tagged, strict=True)
        return replace(ids, words=words, tags=np.concatenate([tags_of(*one, self.word_tags.ids) for one in both]))

    def text_lengths(self, examples: Sequence[tuple[str, ...]], texts: Texts) -> npt.NDArray[np.int64]:
        """The number of tokens of each text, [N, W]; also of those of which `tokenize` returned only a part."""
        lengths_NW = texts.lengths_NW.astype(np.int64)
        for n, w in np.argwhere(lengths_NW >= self.tokenizer.max_tokens).tolist():
            lengths_NW[n, w] = self.tokenizer.count(examples[n][w])
        return lengths_NW

    def predictions(
        self,
        task: str,
        outputs: Tensor,
        lengths_NW: npt.NDArray[np.int64],
        abstain_below: float | None = None,
        keep_labels: bool = False,
    ) -> list[Prediction]:
        """A task's predictions from the outputs of its head and the lengths of the texts.

        Labels are those of the outputs; probabilities are those of the outputs divided by the task's temperature.
        `keep_labels`: examples of which the model abstains are only marked. Options are named by their indices.
        """
        head, temperature = self.model.head(task), self.temperatures.get(task, 1.0)
        labelled = head.decode(outputs)
        calibrated = labelled if temperature == 1 else head.decode(head.kind.scaled(outputs, temperature))
        threshold = self.specs[task].abstain_below if abstain_below is None else abstain_below
        threshold = threshold if KINDS[head.labels.kind].has_confidence else None
        form, predictions = self.model.input_format(task), []
        tokens_N = self.packer.full_lengths(lengths_NW, head.reading).tolist()
        windows_N = self.packer.window_counts(lengths_NW, form).max(1).tolist()
        for one, scaled, tokens, windows in zip(labelled, calibrated, tokens_N, windows_N, strict=True):
            sure = one.label if threshold is None else _sure_label(replace(scaled, label=one.label), head, threshold)
            measured = {"tokens": tokens, "truncated": tokens > self.packer.longest(form), "windows": windows}
            label = one.label if keep_labels else sure
            index = None if label is None else one.index
            predictions.append(replace(scaled, label=label, index=index, abstained=sure != one.label, **measured))
        return predictions


def _sure_label(prediction: Prediction, head: Head, threshold: float) -> Label:
    """The label of a prediction without what is less probable than the threshold: None, or tags with fewer spans."""
    if prediction.word_probabilities is not None:
        tags, scheme = prediction.label, head.labels.scheme
        assert isinstance(tags, tuple)
        assert scheme is not None
        return sure_tags(tags, prediction.word_probabilities, scheme, threshold)
    assert prediction.probabilities is not None
    return prediction.label if max(prediction.probabilities.values()) >= threshold else None


def save_bundle(bundle: Bundle, folder: Path) -> None:
    encoder, target = bundle.model.encoder, ModelFolder(folder)
    save_encoder(encoder, folder, bundle.tokenizer.pad_id)
    bundle.tokenizer.save(folder, encoder.shape.positions)
    parts = {
        name: t.cpu().contiguous() for name, t in bundle.model.state_dict().items() if not name.startswith("encoder.")
    }
    with atomic_file(target.parts) as file:
        save_file(parts, file)
    copy_plugins(bundle.plugins, folder)
    content = TasksFile(
        format=FORMAT,
        max_length=bundle.packer.max_length,
        adapter=Method.of(complete(bundle.adapter, "recipe: adapter")),
        tasks={
            name: TaskEntry.of(spec, bundle.labels[name], bundle.temperatures.get(name, 1.0))
            for name, spec in bundle.specs.items()
        },
        files={file.name: sha256(file) for file in target.files if file != target.tasks},
        word_tags=bundle.word_tags,
        plugins={plugin.name: plugin.sha256 for plugin in bundle.plugins},
        truncate=bundle.packer.truncate,
    )
    write_atomically(target.tasks, json.dumps(asdict(content), indent=1, ensure_ascii=False))


def load_run(run: Path, trust_plugins: bool = False) -> Bundle:
    """The model of a run; `run` may also be the model folder itself."""
    if not run.is_dir():
        raise UserError(f"{run}: there is no such run")
    inner = RunFolder(run).model.path
    if inner.is_dir():
        return load_bundle(inner, trust_plugins)
    if find_model(run) is None:
        raise no_model(run)
    return load_bundle(run, trust_plugins)


def load_bundle(folder: Path, trust_plugins: bool = False) -> Bundle:
    """The model in a folder that may come from a stranger: every file is checked before its content is used.

    The folder's plug-ins run only if the user has trusted them; `trust_plugins` trusts them first.
    """
    files = ModelFolder(folder).files
    for file in files:
        if not file.is_file():
            raise UserError(f"{file} is missing: a trained model has {', '.join(f.name for f in files)}")
    path = ModelFolder(folder).tasks
    content = read_tasks(path)
    hashes = {file: content.files[file.name] for file in files if file.name in content.files}
    for file, written in hashes.items():  # folders of the first versions have no hashes
        if sha256(file) != written:
            raise UserError(f"{file}: damaged: its SHA-256 differs from the one in {path.name}; {AGAIN}")
    shape = read_shape(folder)
    if content.max_length > shape.positions:
        raise UserError(
            f"{path}: max_length: must be in [4, {shape.positions}], the encoder's positions, found "
            f"{content.max_length}"
        )
    specs = {name: entry.spec(name) for name, entry in content.tasks.items()}
    tokenizer = TextTokenizer.load(folder, most_tokens(content.max_length, specs.values()), content.truncate)
    check_vocabulary(tokenizer, shape, folder)
    plugins = read_copies(folder, content.plugins, trust_plugins)
    check_room(specs, tokenizer, content.max_length, str(path))
    labels = {name: entry.labels(tokenizer.vocabulary) for name, entry in content.tasks.items()}
    tags = content.word_tags
    with using_plugins(plugins):
        for name, entry in content.tasks.items():
            find_method(KIND, entry.kind, f"{path}: tasks.{name}.kind")
        adapter = complete(content.adapter.choice(), f"{path}: adapter", saved=True)
        model = _load_model(folder, specs, labels, adapter, None if tags is None else len(tags.names))
    ids, tagged = (tokenizer.cls_id, tokenizer.sep_id), tags is not None
    packer = Packer(tuple(specs), *ids, content.max_length, tokenizer.masker, tagged, tokenizer.pair, content.truncate)
    temperatures = {name: entry.temperature for name, entry in content.tasks.items()}
    return Bundle(model.eval(), tokenizer, packer, specs, labels, adapter, tags, plugins, temperatures)


def read_split_for(bundle: Bundle, spec: TaskSpec, source: str, name: str) -> Split:
    """Reads a file of a task that the model knows."""
    parts = bundle.labels[spec.name], source, bundle.tokenizer, cache_folder(), name, bundle.tagger
    split = read_split(spec, *parts)
    return split if bundle.word_tags is None else split.with_tags(bundle.word_tags)


def _load_model(
    folder: Path,
    specs: Mapping[str, TaskSpec],
    labels: Mapping[str, LabelSpace],
    adapter: MethodChoice,
    tags: int | None,
) -> MultiTaskModel:
    path, tasks = ModelFolder(folder).parts, ModelFolder(folder).tasks
    header = read_header(path, AGAIN)
    # tasks.json may describe an adapter of any size; it is not built larger than the file has numbers for.
    held = sum(math.prod(entry.shape) for entry in header.values())
    with errors_in(tasks):
        model = make_model(specs, labels, adapter, lambda: load_encoder(folder), most=2 * held + SPARE, tags=tags)
    _check_parts(path, header, model)
    parts = load_file(path)
    for name, tensor in parts.items():
        check_finite(path, name, tensor)
    model.load_state_dict(parts, strict=False)
    return model


def _check_parts(path: Path, header: Mapping[str, Entry], model: MultiTaskModel) -> None:
    """Refuses names and shapes other than the model's, and weights of the encoder, which were checked before."""
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("encoder.")}
    wrong = sorted(own.keys() ^ header.keys())
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise UserError(f"{path}: does not fit tasks.json: {', '.join(wrong[:5])}{more}")
    for name, tensor in own.items():
        entry = header[name]
        if entry.shape != tuple(tensor.shape):
            raise UserError(
                f"{path}: tensor {name} has shape {list(entry.shape)}, but by tasks.json it is {list(tensor.shape)}"
            )
        if entry.dtype not in FLOATS:
            raise UserError(f"{path}: tensor {name} is {entry.dtype}, must be one of: {', '.join(sorted(FLOATS))}")


def no_model(run: Path) -> UserError:
    """The error for a run without a model folder."""
    summary = RunFolder(run).summary
    refused = read_json(summary).get("refused") if summary.is_file() else None
    if refused:
        return UserError(f"{run}: no trained model here: it was not saved, because {refused}")
    if (run / ONNX_RECORD).is_file():
        return UserError(f"{run}: this is an exported ONNX model; predict with --engine onnx, or use the run itself")
    return UserError(f"{run}: no trained model here: the run has not finished (pass --resume to continue it)")


def task_tensors(model: MultiTaskModel, task: str) -> dict[str, Tensor]:
    """The weights that belong to one task alone, by their names in an adapter file; not copies."""
    adapter = {f"adapter.{name}": tensor.data for name, tensor in model.adapter.task_state(task).items()}
    return adapter | {f"head.{name}": tensor for name, tensor in model.head(task).state_dict().items()}
