"""Folders with an ONNX model: what they hold, and prediction with them by onnxruntime. Knows no way to write them.

`model.onnx` has the encoder and the outputs of all tasks; `export.json` says what the outputs mean; `tokenizer.json` is
the tokenizer. A folder may come from anybody: hashes and values are checked, and no program in it runs unless the user
has trusted it (plug-ins).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from polytask.build import check_room, make_head, most_tokens
from polytask.disk.hashing import sha256
from polytask.disk.json_files import read_json
from polytask.disk.records import convert
from polytask.export.padded import INPUTS, WINDOWS
from polytask.heads.base import Head
from polytask.methods import KIND, find_method
from polytask.model import MultiTaskModel
from polytask.plugins.files import read_copies, using_plugins
from polytask.recipe.records import check_task_name
from polytask.runs.bundle import Bundle
from polytask.runs.folder import ONNX_RECORD
from polytask.runs.tasks_file import TaskEntry
from polytask.serving.predictor import Predictor
from polytask.settings import MaxLength, MethodChoice, Size, Truncate
from polytask.stream import Stream
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError

FORMAT = 1
MODEL, RECORD = "model.onnx", ONNX_RECORD
AGAIN = "export it again, or restore it from a copy"
SEVERITY = 3
"""Of the messages of onnxruntime that are shown: errors."""


@dataclass(frozen=True)
class OnnxTask:
    """A task in export.json."""

    output: str
    """The name of the task's output in the graph."""
    rows: int
    """The rows of the batch that are one example, or one option of it: 2 for pairs of separate texts, 3 for both
    together and each text. With windows, the texts of one example."""
    own_pass: bool
    """Whether the task has a pass of the encoder of its own, because it has adapter parameters."""
    entry: TaskEntry
    """The task as in tasks.json of a model folder."""


@dataclass(frozen=True)
class OnnxRecord:
    """All of export.json."""

    format: int
    precision: Literal["float32", "int8"]
    max_length: MaxLength
    truncate: Truncate
    hidden: Size
    inputs: tuple[str, ...]
    special_ids: Mapping[str, int]
    """The ids of the tokens cls, sep and pad."""
    tasks: Mapping[str, OnnxTask]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The tasks of the run that are not in the graph, with the reason."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the other files."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the files in plugins/, by name."""


class OnnxModel(MultiTaskModel):
    """A model whose outputs onnxruntime computes, in the place of a `MultiTaskModel`.

    It has the heads, which decode outputs, but no weights. onnxruntime always computes all outputs of a graph, so a
    task with a pass of its own gets a session with its part of the graph, when it is first used.
    """

    def __init__(self, path: Path, heads: Mapping[str, Head], tasks: Mapping[str, OnnxTask]) -> None:
        nn.Module.__init__(self)
        self.path = path
        self.heads = nn.ModuleDict(heads)
        self.tasks = tuple(heads)
        self.word_tags = None
        self.in_graph = tasks
        self.sessions: dict[str | None, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("encoder", "adapter"):
            raise UserError("an exported ONNX model computes the outputs of its tasks only; load the run for this")
        return super().__getattr__(name)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def is_plain(self) -> bool:
        return False

    def passes(self, tasks: Sequence[str]) -> list[tuple[str, ...]]:
        groups: dict[tuple[object, ...], list[str]] = {}
        for task in tasks:
            key = (self.input_format(task), task if self.in_graph[task].own_pass else None)
            groups.setdefault(key, []).append(task)
        return [tuple(group) for group in groups.values()]

    def session(self, task: str) -> Any:
        """The session that computes the task."""
        key = task if self.in_graph[task].own_pass else None
        if key not in self.sessions:
            tasks = [
                name for name, one in self.in_graph.items() if key in (name, None) and one.own_pass == (key == name)
            ]
            outputs = [self.in_graph[name].output for name in tasks]
            self.sessions[key] = open_session(self.path, outputs if len(tasks) < len(self.in_graph) else None)
        return self.sessions[key]

    def batch_outputs(self, tasks: Sequence[str], stream: Stream) -> dict[str, Tensor]:
        mask_SL, columns = padded_inputs(stream)
        columns[WINDOWS] = window_rows(stream.windows.get(tasks[0]), len(mask_SL))
        session = self.session(tasks[0])
        given = {one.name: columns[one.name] for one in session.get_inputs()}
        names = [self.in_graph[task].output for task in tasks]
        computed = session.run(names, given)
        outputs = {}
        for task, output in zip(tasks, map(torch.from_numpy, computed), strict=True):
            head = self.head(task)
            if head.kind.per_word:
                output = _of_words(output[mask_SL], stream.words[tasks[0]])
            elif head.reading == "options":
                output = output.view(-1, max(stream.layout.options, default=1))
            outputs[task] = output
        return outputs


def window_rows(starts_N1: Tensor | None, sequences: int) -> npt.NDArray[np.int64]:
    """[N, W]: the sequences that are the windows of each text, with -1 behind the last.

    `starts_N1` is the first sequence of each text, and the end; None: every text is one sequence.
    """
    starts = np.arange(sequences + 1) if starts_N1 is None else starts_N1.numpy()
    counts_N1 = np.diff(starts)[:, None]
    columns_W = np.arange(counts_N1.max())
    rows_NW: npt.NDArray[np.int64] = np.where(columns_W < counts_N1, starts[:-1, None] + columns_W, -1)
    return rows_NW


def padded_inputs(stream: Stream) -> tuple[npt.NDArray[np.bool_], dict[str, npt.NDArray[np.int64]]]:
    """The sequences of a stream as rows of a padded batch: which places are tokens, and the inputs of the graph."""
    lengths_S = np.array(stream.layout.lengths)
    mask_SL = np.arange(lengths_S.max()) < lengths_S[:, None]
    columns = {INPUTS[1]: mask_SL.astype(np.int64)}
    for name, values_T in ((INPUTS[0], stream.token_ids_T), (INPUTS[2], stream.segment_ids_T)):
        columns[name] = np.zeros(mask_SL.shape, np.int64)
        columns[name][mask_SL] = values_T.numpy()
    return mask_SL, columns


def _of_words(scores_TC: Tensor, places_SW: Tensor) -> Tensor:
    """[S, W, C + 1]: the scores of the first token of each word, as heads for tags return them."""
    is_word_SW1 = (places_SW >= 0)[..., None].to(scores_TC.dtype)
    return torch.cat([scores_TC[places_SW.clamp(min=0)] * is_word_SW1, is_word_SW1], -1)


def load_onnx(folder: str | Path, *, abstain_below: float | None = None, trust_plugins: bool = False) -> Predictor:
    """Loads a folder that `export_onnx` wrote, or that of a run's export; predictions are those of onnxruntime.

    `trust_plugins` remembers that the folder's plug-ins, which are Python programs, may run.
    """
    path = find_onnx(Path(folder))
    return Predictor(load_onnx_bundle(path, trust_plugins), abstain_below=abstain_below)


def find_onnx(folder: Path) -> Path:
    """The folder itself, or the export inside a run's folder."""
    candidates = (folder, folder / "onnx", folder / "onnx-int8")
    found = next((path for path in candidates if (path / RECORD).is_file() and (path / MODEL).is_file()), None)
    if found is None:
        raise UserError(f"{folder}: no exported ONNX model here; `polytask export RUN --format onnx` writes one")
    return found


def read_record(folder: Path) -> OnnxRecord:
    """The content of export.json, checked, and the hashes of the other files."""
    path = folder / RECORD
    try:
        content = read_json(path)
    except UserError as error:
        raise UserError(f"{path}: damaged: {error}; {AGAIN}") from None
    if content.get("format") != FORMAT:
        raise UserError(f"{path}: format: must be {FORMAT} for this version, found {content.get('format')!r:.40}")
    record: OnnxRecord = convert(content, OnnxRecord, str(path))
    if not record.tasks or not {MODEL, "tokenizer.json"} <= record.files.keys():
        raise UserError(f"{path}: damaged: it must describe tasks, {MODEL} and tokenizer.json; {AGAIN}")
    for name, task in record.tasks.items():
        check_task_name(name, f"{path}: tasks")
        if hasattr(nn.ModuleDict, name):  # the heads are in one, whose attributes cannot be used as keys
            raise UserError(f"{path}: tasks.{name}: this name is reserved")
        task.entry.check(f"{path}: tasks.{name}")
    for name, written in record.files.items():
        file = folder / name
        if Path(name).name != name or not file.is_file() or sha256(file) != written:
            raise UserError(f"{file}: missing or damaged: its SHA-256 differs from the one in {RECORD}; {AGAIN}")
    return record


def load_onnx_bundle(folder: Path, trust_plugins: bool = False) -> Bundle:
    """The exported model with everything that prediction needs."""
    _onnxruntime()  # before anything is read
    record = read_record(folder)
    specs = {name: task.entry.spec(name) for name, task in record.tasks.items()}
    tokenizer = TextTokenizer.load(folder, most_tokens(record.max_length, specs.values()), record.truncate)
    check_room(specs, tokenizer, record.max_length, str(folder / RECORD))
    plugins = read_copies(folder, record.plugins, trust_plugins)
    labels = {name: task.entry.labels() for name, task in record.tasks.items()}
    with using_plugins(plugins):
        for name, task in record.tasks.items():
            find_method(KIND, task.entry.kind, f"{folder / RECORD}: tasks.{name}.kind")
        heads = {name: make_head(spec, labels[name], record.hidden).eval() for name, spec in specs.items()}
    model = OnnxModel(folder / MODEL, heads, record.tasks)
    ids = tokenizer.cls_id, tokenizer.sep_id
    packer = Packer(tuple(specs), *ids, record.max_length, pair=tokenizer.pair, truncate=record.truncate)
    temperatures = {name: task.entry.temperature for name, task in record.tasks.items()}
    adapter = MethodChoice("none", {})
    return Bundle(model, tokenizer, packer, specs, labels, adapter, None, plugins, temperatures)


def open_session(path: Path, outputs: Sequence[str] | None = None) -> Any:
    """Opens a model, or the part of it that computes these outputs, on the CPU with as many threads as torch uses."""
    runtime = _onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = SEVERITY
    try:
        content = str(path) if outputs is None else _part(path, outputs)
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except UserError:
        raise
    except Exception as error:  # onnxruntime's errors have no common class but this
        raise UserError(f"{path}: onnxruntime cannot open it ({error!s:.300}); {AGAIN}") from error
    if not {one.name for one in session.get_inputs()} <= {*INPUTS, WINDOWS}:
        names = ", ".join((*INPUTS, WINDOWS))
        raise UserError(f"{path}: does not fit {RECORD}: its inputs must be of {names}; {AGAIN}")
    return session


def _part(path: Path, outputs: Sequence[str]) -> bytes:
    """The part of a model that computes these outputs."""
    try:
        import onnx.utils  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise UserError("ONNX models with an adapter for each task need onnx: pip install 'polytask[onnx]'") from error
    model = onnx.load(path)
    inputs = [one.name for one in model.graph.input]
    part: bytes = onnx.utils.Extractor(model).extract_model(inputs, list(outputs)).SerializeToString()
    return part


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise UserError("ONNX models need onnxruntime: pip install 'polytask[onnx]'") from error
    return onnxruntime
