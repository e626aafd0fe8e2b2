"""Writes all tasks of a run as one ONNX model, and refuses to if its answers differ from the run's."""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.export import Dim

from polytask.disk.atomic import atomic_folder
from polytask.disk.hashing import sha256
from polytask.export.adapter import check_new
from polytask.export.card import export_card
from polytask.export.onnx_folder import (
    FORMAT,
    MODEL,
    RECORD,
    OnnxRecord,
    OnnxTask,
    load_onnx_bundle,
)
from polytask.export.padded import INPUTS, WINDOWS, PaddedModel, unsupported
from polytask.export.replay import Replay, read_dev_rows, replay
from polytask.fused_forms import only_definitions
from polytask.plugins.files import copy_plugins
from polytask.runs.bundle import Bundle
from polytask.runs.tasks_file import TaskEntry
from polytask.types import UserError

TOLERANCE = 1e-4
"""The largest difference of an output in float32."""
MAX_BYTES = 1_900_000_000
"""Weights that fit into one ONNX file, which has at most 2 GiB."""
OPSET = 20


@dataclass(frozen=True)
class Exported:
    """An exported model: its folder, and how it was checked."""

    folder: Path
    replays: Mapping[str, Replay]
    """By task: the comparison with the run on the dev rows."""
    left_out: Mapping[str, str]
    """By task that was not exported: why."""
    unchecked: tuple[str, ...] = ()
    """The exported tasks without dev rows."""


def export_onnx(
    run: str | Path, output: str | Path | None = None, int8: bool = False, trust_plugins: bool = False
) -> Exported:
    """Writes all tasks of a run as one ONNX model with its tokenizer (default: to onnx or onnx-int8 in the run).

    The dev rows are predicted with the exported model. It is refused if an output differs by more than 1e-4 from the
    run's; with `int8`, which rounds weights and activations of linear maps, if a task's score leaves the 95 % interval
    of the run's. `trust_plugins` remembers that the run's plug-ins, which are Python programs, may run.
    """
    _check_installed()
    name = "onnx-int8" if int8 else "onnx"
    target = check_new(Path(run) / name if output is None else Path(output))
    rows = read_dev_rows(Path(run), trust_plugins)
    tasks, left_out = exported_tasks(rows.bundle, str(run))
    with atomic_folder(target) as folder:
        write_graph(rows.bundle, tasks, folder / MODEL)
        if int8:
            quantize(folder / MODEL)
        _write_record(rows.bundle, tasks, left_out, folder, int8)
        replays = replay(rows, load_onnx_bundle(folder, trust_plugins).model)
        check_replays(replays, int8, str(run))
        unchecked = tuple(task for task in tasks if task not in replays)
        card = export_card(Path(run), replays, left_out, unchecked, "int8" if int8 else "float32")
        (folder / "README.md").write_text(card, encoding="utf-8")
    return Exported(target, replays, left_out, unchecked)


def exported_tasks(bundle: Bundle, run: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The tasks that a padded graph can compute, and the others with the reason."""
    if bundle.word_tags is not None:
        raise UserError(
            f"{run}: the model reads the part-of-speech tags of words, which an exported model has no input for; "
            "train without word tags to export it"
        )
    reasons = {task: unsupported(bundle.model.head(task)) for task in bundle.specs}
    tasks = tuple(task for task, reason in reasons.items() if reason is None)
    if not tasks:
        raise UserError(f"{run}: no task can be exported: {'; '.join(f'{t}: {r}' for t, r in reasons.items())}")
    return tasks, {task: reason for task, reason in reasons.items() if reason is not None}


def output_name(task: str) -> str:
    """The name of a task's output. A name without a dot could be that of a value inside the graph."""
    return f"output.{task}"


def write_graph(bundle: Bundle, tasks: tuple[str, ...], path: Path) -> None:
    """Writes the graph with dynamic numbers of rows and tokens."""
    padded = _padded(bundle, tasks).eval().cpu()
    # Six rows are whole examples of one, two and three rows.
    ids_BL = torch.full((6, min(9, bundle.packer.max_length)), bundle.tokenizer.unk_id)
    examples = dict(zip(INPUTS, (ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL)), strict=True))
    sizes = {name: {0: Dim("batch"), 1: Dim("length")} for name in INPUTS}
    if WINDOWS in padded.inputs:
        examples[WINDOWS] = torch.tensor([[0, 1, 2], [3, -1, -1], [4, -1, -1], [5, -1, -1]])
        sizes[WINDOWS] = {0: Dim("texts"), 1: Dim("windows")}
    with only_definitions(), torch.no_grad(), _quiet():
        try:
            program = torch.onnx.export(
                padded,
                tuple(examples.values()),
                None,
                input_names=list(examples),
                output_names=[output_name(task) for task in tasks],
                dynamic_shapes=sizes,
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise UserError(f"torch cannot export this model to ONNX: {error!s:.500}") from error
        assert program is not None
        program.save(str(path), external_data=_bytes(padded) > MAX_BYTES)


def _padded(bundle: Bundle, tasks: tuple[str, ...]) -> PaddedModel:
    return PaddedModel(bundle.model, tasks, {task: len(bundle.specs[task].text) for task in tasks})


def quantize(path: Path) -> None:
    """Rounds the weights of linear maps to 8 bits, in place; activations are rounded when the model runs."""
    import onnx  # noqa: PLC0415  (extras)
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415

    model = onnx.load(path)
    del model.graph.value_info[:]  # the shapes of weights, which the quantizer transposes
    with _quiet():
        quantize_dynamic(model, path, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"])


def _write_record(
    bundle: Bundle, tasks: tuple[str, ...], left_out: Mapping[str, str], folder: Path, int8: bool
) -> None:
    model, tokenizer = bundle.model, bundle.tokenizer
    tokenizer.save(folder, model.encoder.shape.positions)
    copy_plugins(bundle.plugins, folder)
    padded = _padded(bundle, tasks)
    record = OnnxRecord(
        FORMAT,
        "int8" if int8 else "float32",
        bundle.packer.max_length,
        bundle.packer.truncate,
        model.encoder.shape.hidden,
        padded.inputs,
        {"cls": tokenizer.cls_id, "sep": tokenizer.sep_id, "pad": tokenizer.pad_id},
        {
            task: OnnxTask(
                output_name(task),
                padded.rows[task],
                bool(model.adapter.task_parameters(task)),
                TaskEntry.of(bundle.specs[task], bundle.labels[task], bundle.temperatures.get(task, 1.0)),
            )
            for task in tasks
        },
        left_out,
        {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.is_file()},
        {plugin.name: plugin.sha256 for plugin in bundle.plugins},
    )
    (folder / RECORD).write_text(json.dumps(asdict(record), indent=1, ensure_ascii=False), encoding="utf-8")


def check_replays(replays: Mapping[str, Replay], int8: bool, run: str) -> None:
    """Raises a UserError if a task's answers differ too much from the run's."""
    for task, one in replays.items():
        if not int8 and not one.largest <= TOLERANCE:
            raise UserError(
                f"{run}: not exported: an output of task {task} differs by {one.largest:.2g} from that of the run on "
                f"dev, more than {TOLERANCE:g}"
            )
        if int8 and not one.is_inside:
            raise UserError(
                f"{run}: not exported: with int8, the dev {one.metric} of task {task} changes by {one.change:+.4f} and "
                f"leaves its 95 % interval, {one.low:.3f} to {one.high:.3f}; export it without --int8"
            )


def _bytes(module: torch.nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401, PLC0415  (extras)
        import onnxruntime  # noqa: F401, PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise UserError(f"export to ONNX needs {error.name}: pip install 'polytask[onnx]'") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the warnings of the exporter, which are about its own parts."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
