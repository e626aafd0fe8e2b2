"""A worker of `polytask compare`: one process that runs `polytask train` again and again.

Imports, the start of CUDA, compiled kernels, the tokenizer and the encoder's weights are paid for once. The study sends
a line of JSON per run to standard input, {"arguments": ["train", ...], "log": FILE}; the output of the run goes to the
log, and a run that succeeded is answered with a line on standard output. After a run that failed or was stopped, the
worker exits with that run's exit code: memory or the CUDA context may be damaged, and the next worker is fresh.

A run in a worker is bit-identical to the same run in a process of its own: `restored_state` undoes what a run may
change in the process, and everything that is kept between runs is never written to.
"""

import gc
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import polytask
from polytask.child_processes import end_with_parent
from polytask.cli.main import main
from polytask.cli.stopping import handled_by, leave
from polytask.disk.kept import keeping_values
from polytask.disk.writable import open_in_place


def serve() -> None:
    """Runs what standard input asks for, until its end."""
    # The study's two pipes are moved, so that no program which a run starts can read or write them.
    with os.fdopen(os.dup(0), encoding="utf-8") as requests, os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        _ = polytask.start_training  # imports what every run needs
        gc.freeze()  # what is imported never becomes garbage; captured steps and `release_memory` collect often
        for line in requests:
            request = json.loads(line)
            write_output_to(Path(request["log"]))
            code = run(request["arguments"])
            if code != 0:
                sys.exit(code)
            release_memory()
            answers.write(json.dumps({"exit_code": 0}) + "\n")
            answers.flush()


def write_output_to(log: Path) -> None:
    """Appends standard output and standard error to a file, of this process and of programs that it starts."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open_in_place(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def run(arguments: list[str]) -> int:
    """Runs a command of `polytask` and returns its exit code. Unexpected errors are not caught."""
    sys.argv[1:] = arguments
    with restored_state():
        try:
            main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


@contextmanager
def restored_state() -> Iterator[None]:
    """Restores what a run may change in its process, so that the next run starts as in a fresh one."""
    folder, environment = Path.cwd(), dict(os.environ)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    # The context manager of warnings also forgets which warnings were shown: every log has its own.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn


def release_memory() -> None:
    """Frees the memory of a run that has ended, also that of its CUDA graphs."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch._C._cuda_clearCublasWorkspaces()  # some were allocated inside a graph's memory pool and would keep it
        torch.cuda.empty_cache()


if __name__ == "__main__":
    end_with_parent()  # the run saves a checkpoint and releases its folder, so that the study can be continued at once
    with handled_by(leave), keeping_values():
        serve()
