"""A process that has imported everything, trained a run once, and forks a child for each line of JSON it is given.

A run that is to be killed then starts in a tenth of a second instead of five. The children are real processes: they are
killed by real signals, and leave what a killed process leaves.
"""

import errno
import json
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from polytask import read_recipe, start_training, train
from polytask.cli.main import main
from polytask.runs import session
from polytask.training.checkpoint_writer import CheckpointWriter

EVENTS = {"open": 0, "os.rename": 1, "os.mkdir": 0, "os.remove": 0, "os.rmdir": 0, "shutil.rmtree": 0}
"""What a process does to files, by the name of its audit event; and which argument is the path it is done to."""


class Faults:
    """Looks at everything the process does to the files of one folder: counts it, and strikes at one of them.

    kill_at: the process kills itself before the nth; halt_at: it halts at paths like these, one after another;
    full_from: from the nth on nothing more can be written; record: a file to list them in.
    """

    def __init__(
        self,
        inside: str,
        kill_at: int | None = None,
        halt_at: Sequence[str] = (),
        full_from: int | None = None,
        record: str | None = None,
    ) -> None:
        self.inside = inside
        self.kill_at, self.halt_at, self.full_from = kill_at, list(halt_at), full_from
        self.record = None if record is None else os.open(record, os.O_WRONLY | os.O_CREAT)
        self.seen = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS:
            return
        path = str(arguments[EVENTS[event]])
        below = event in ("os.remove", "os.rmdir") and arguments[-1] != -1  # of a tree that is removed
        if not below and not path.startswith(self.inside):
            return
        self.seen += 1
        if self.record is not None:
            os.write(self.record, f"{event} {path.removeprefix(self.inside)}\n".encode())
        if self.seen == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.halt_at and re.search(self.halt_at[0], path):
            self.halt_at.pop(0)
            os.write(2, f"halted at {path}\n".encode())
            os.kill(os.getpid(), signal.SIGSTOP)
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if self.full_from is not None and self.seen >= self.full_from and (writes or event == "os.mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def steps(recipe: str, run: str, resume: bool) -> None:
    """All steps of a run, and nothing of what comes after them."""
    running = start_training(read_recipe(recipe), run, resume)
    for _ in running.steps():
        pass
    running.session.writer.wait()


def write_in_background() -> None:
    """Checkpoints are written in another thread, as on a GPU."""
    session.CheckpointWriter = lambda background: CheckpointWriter(background=True)  # type: ignore


def child(order: dict[str, Any]) -> int:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if "file_limit" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"], order["file_limit"]))
    if order.get("background"):
        write_in_background()
    if "faults" in order:
        sys.addaudithook(Faults(order["run"], **order["faults"]))
    try:
        if "arguments" in order:
            sys.argv = ["polytask", *order["arguments"]]
            main()
        else:
            steps(order["recipe"], order["run"], order["resume"])
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def warm_up(recipe: str) -> None:
    """Runs everything once that is slow the first time in a process, so that no child has to.

    Not on a machine with a GPU: a process that has used CUDA cannot fork.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asks without starting CUDA
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a child would have none of the threads
    if not torch.cuda.is_available():
        with tempfile.TemporaryDirectory() as folder:
            train(recipe, Path(folder) / "run")


def serve() -> None:
    torch.set_num_threads(1)
    warm_up(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = child(order)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
