"""polytask export: writes a run, or one of its tasks, for other programs or other runs."""

from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import echo, plain_console
from polytask.cli.options import RunFolder, TrustPlugins
from polytask.cli.tables import replay_table

FORMATS = ("onnx", "hf", "merged")


def run(
    folder: RunFolder,
    adapter: Annotated[
        str | None,
        typer.Option("--adapter", metavar="TASK", help="Write this task's adapter and head to a small file."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="onnx: all tasks in one ONNX model. hf: one task for transformers or sentence-transformers. "
            "merged: a model without an adapter.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="TASK", help="With --format hf or merged: the task.", show_default=False),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="With --format onnx: round linear maps to 8 bits.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="PATH",
            help="The file or folder to write. Default: TASK.adapter.safetensors, or a folder in the run's.",
            show_default=False,
        ),
    ] = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Write a run for other programs, or one task's adapter as a small file.

    An adapter file fits only the encoder that the task was trained on. With `train.parts: adapters` that is the
    pretrained encoder itself, so that files of several runs can be combined. An ONNX model is compared with the run on
    the dev rows, and refused if it answers differently.

    Examples:

        polytask export runs/quickstart --adapter opinion

        polytask export runs/quickstart --adapter opinion --output shared/mood.safetensors

        polytask export runs/quickstart --format onnx

        polytask export runs/quickstart --format onnx --int8 --output small

        polytask export runs/quickstart --format hf --task similarity
    """
    if (adapter is None) == (form is None):
        raise typer.BadParameter("pass either --adapter TASK or --format FORMAT")
    if form is not None and form not in FORMATS:
        raise typer.BadParameter(f"--format must be one of {', '.join(FORMATS)}, found {form!r}")
    if task is not None and form not in ("hf", "merged"):
        raise typer.BadParameter("--task is for --format hf and --format merged")
    if int8 and form != "onnx":
        raise typer.BadParameter("--int8 is for --format onnx")
    if adapter is not None:
        file = polytask.export_adapter(folder, adapter, output, trust_plugins)
        echo(f"{file}: {file.stat().st_size:,} bytes\nNext: polytask combine ENCODER {file} ... --output DIR")
    elif form == "onnx":
        _export_onnx(folder, output, int8, trust_plugins)
    elif form == "hf":
        written = polytask.export_hugging_face(folder, task, output, trust_plugins)
        echo("\n".join([f"{written.folder}: opened by {written.opened_by}", *written.notes]))
    else:
        merged = polytask.export_merged(folder, output, task, trust_plugins)
        echo(f"{merged}: a model without an adapter\nNext: polytask predict {merged} ...")


def _export_onnx(folder: Path, output: Path | None, int8: bool, trust_plugins: bool) -> None:
    done = polytask.export_onnx(folder, output, int8, trust_plugins)
    plain_console().print(replay_table(done.replays))
    for task in done.unchecked:
        echo(f"{task}: no dev rows to compare")
    for task, reason in done.left_out.items():
        echo(f"{task}: left out: {reason}")
    size = sum(path.stat().st_size for path in done.folder.rglob("*") if path.is_file())
    echo(f"{done.folder}: {size:,} bytes\nNext: polytask predict {done.folder} --engine onnx ...")
