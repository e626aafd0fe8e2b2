"""polytask serve: answers requests over HTTP with a trained run."""

import os
from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import plain_console
from polytask.cli.cuda import start_cuda
from polytask.cli.options import RunFolder, TrustPlugins

KEY_VARIABLE = "POLYTASK_API_KEY"


def run(
    folder: RunFolder,
    host: Annotated[str, typer.Option(help="The address to listen to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen to; 0 chooses a free one.", min=0, max=65535)] = 8000,
    max_batch_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens that are computed at once. Default: 8192, or those of the longest input, if it has more.",
            show_default=False,
        ),
    ] = None,
    max_wait_ms: Annotated[
        float, typer.Option(help="Milliseconds that a batch with fewer inputs than lately waits for the next one.")
    ] = 5.0,
    max_inputs: Annotated[int, typer.Option(help="Inputs of a request.")] = 256,
    max_characters: Annotated[int, typer.Option(help="Characters of an input.")] = 100_000,
    max_options: Annotated[int, typer.Option(help="Options of an input, for kind choice.")] = 16,
    max_body_bytes: Annotated[int, typer.Option(help="Bytes of a request.")] = 8_000_000,
    max_requests: Annotated[int, typer.Option(help="Requests that are open at the same time.")] = 1024,
    max_queue_inputs: Annotated[int, typer.Option(help="Inputs that are waiting or being computed.")] = 4096,
    max_queue_seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds of work before a new request, at the pace of recent batches. Default: 1, or half of the "
            "deadline.",
            show_default=False,
        ),
    ] = None,
    max_queue_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens that are waiting. Default: those of four of the largest requests.", show_default=False
        ),
    ] = None,
    deadline_ms: Annotated[float, typer.Option(help="Milliseconds until a request is given up.")] = 30_000.0,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"A file with the key that requests must have. Default: the variable {KEY_VARIABLE}, if it is set.",
            show_default=False,
        ),
    ] = None,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen to an address of the network without an API key.")
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="On SIGHUP, load the run again and replace the model.")
    ] = False,
    examples: Annotated[
        bool | None,
        typer.Option(
            "--examples/--no-examples",
            help="Whether the page shows a few rows of each task's dev split. Default: only if no other machine can "
            "connect.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:NUMBER.")] = "auto",
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
    abstain_below: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Leave the label empty where no class has at least this probability. Default: as in the recipe.",
            show_default=False,
        ),
    ] = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Answer requests over HTTP with all tasks of a run.

    Needs FastAPI, uvicorn and prometheus-client: `pip install 'polytask[serve]'`. Requests of all tasks are computed
    together. After SIGTERM or Ctrl-C, requests that were accepted are answered, and new ones are refused.

    Examples:

        polytask serve runs/quickstart

        polytask serve runs/quickstart --host 0.0.0.0 --port 8080 --api-key-file key.txt
    """
    key = read_key(api_key_file)
    start_cuda(device)
    limits = polytask.ServingLimits(
        max_body_bytes=max_body_bytes,
        max_inputs=max_inputs,
        max_characters=max_characters,
        max_options=max_options,
        max_requests=max_requests,
        max_queue_inputs=max_queue_inputs,
        max_queue_seconds=max_queue_seconds,
        max_queue_tokens=max_queue_tokens,
        max_batch_tokens=max_batch_tokens,
        max_wait_ms=max_wait_ms,
        deadline_ms=deadline_ms,
    )
    console = plain_console()

    def started(address: str) -> None:
        found = f"Serving {folder} at {address} (endpoints and examples: {address}/docs)"
        console.print(found, highlight=False, soft_wrap=True)
        console.file.flush()  # a program that reads a pipe waits for this line

    polytask.serve(
        folder,
        host,
        port,
        limits,
        api_key=key,
        allow_anyone=allow_anyone,
        reload=reload,
        examples=examples,
        started=started,
        device=device,
        precision=precision,
        abstain_below=abstain_below,
        trust_plugins=trust_plugins,
    )


def read_key(file: Path | None) -> str | None:
    """The API key: of the file, or of the environment."""
    if file is None:
        return os.environ.get(KEY_VARIABLE)
    key = file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else ""
    if not key:
        raise polytask.UserError(f"{file}: no API key found; expected a file with the key as its only line")
    return key
