"""A worker: trains one cell after another in a process of its own, on this machine.

The process (cli/worker.py) trains a cell as `polytask train` would, so that a stopped cell resumes, and pays for
imports, CUDA and the encoder once. After a cell that failed, or that ran the user's code, the next cell gets a new
process. Knows processes and files; imports neither PyTorch nor Ray, because a node of a cluster imports it as well.
"""

import json
import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polytask.child_processes import python_module
from polytask.disk.writable import make_folder, open_in_place
from polytask.runs.folder import RunFolder

SHOWN_LINES = 12
POLL_SECONDS = 0.3


class Worker:
    """A place where one cell at a time is trained."""

    def __init__(self, threads: int, environment: Mapping[str, str] | None = None) -> None:
        """`threads` is the number of CPU threads, unless this process's environment has OMP_NUM_THREADS; `environment`
        has variables for the worker's processes."""
        defaults = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        self.environment = {**defaults, **os.environ, **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, recipe: Path, folder: Path, log: Path, own_code: bool = False) -> None:
        """Starts a cell, or resumes it if its folder exists. `own_code`: the run calls the user's code, which may leave
        anything behind in its process."""
        self.folder, self.log, self.own_code = folder, log, own_code
        self.step, self._bytes_read = 0, 0
        arguments = ["train", str(recipe), "--run", str(folder)]
        if folder.exists():
            arguments.append("--resume")
        make_folder(log.parent)
        open_in_place(log, "wb").close()
        request = json.dumps({"arguments": arguments, "log": str(log)}).encode() + b"\n"
        if self.process is not None and not self._send(request):
            self.end()  # it was killed while it was idle
        if self.process is None:
            self.process = self._new_process(log)
            self._send(request)  # if it has died already, its exit code says so

    def fileno(self) -> int:
        """The pipe that can be read when the cell has ended, for `wait_for`."""
        return int(self._answers.fileno())

    def exit_code(self) -> int:
        """Returns the exit code of a cell that has ended: 0 if its process has said so, else that of the process."""
        assert self.process is not None
        answer = self._answers.read(1000)
        code = int(json.loads(answer)["exit_code"]) if answer else self.process.wait()
        if code != 0 or self.own_code:
            self.end()
        return code

    def count_steps(self) -> bool:
        """Counts the steps that the run has written since the last call; returns whether there were any."""
        try:
            with RunFolder(self.folder).metrics.open("rb") as file:
                if self._bytes_read == 0:
                    self.step = 0
                file.seek(self._bytes_read)
                new = file.read()
        except OSError:
            return False
        complete = new[: new.rfind(b"\n") + 1]
        self._bytes_read += len(complete)
        count = complete.count(b'"kind": "step"')
        self.step += count
        return count > 0

    def terminate(self) -> None:
        """Asks the process to end; a run that is training saves a checkpoint first."""
        if self.process is not None:
            self.process.terminate()

    def end(self) -> None:
        """Ends the process, and waits for it."""
        if self.process is not None:
            self.process.terminate()
            self.process.communicate()
            self.process = None

    @property
    def _answers(self) -> Any:
        assert self.process is not None
        return self.process.stdout

    def _send(self, request: bytes) -> bool:
        """Sends a request; returns whether the process is alive."""
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(request)
        except BrokenPipeError:
            return False
        return True

    def _new_process(self, log: Path) -> "subprocess.Popen[bytes]":
        """The log of its first cell also gets what goes wrong before the cell starts."""
        with open_in_place(log, "ab") as stderr:
            return subprocess.Popen(
                python_module("polytask.cli.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self.environment,
                bufsize=0,
            )


def wait_for(workers: Sequence[Worker]) -> list[Worker]:
    """Waits until cells of these workers have ended, or for a moment; returns those workers."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker, selectors.EVENT_READ, worker)
        return [key.data for key, _ in selector.select(POLL_SECONDS)]


def last_lines(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.strip().splitlines()[-SHOWN_LINES:])
