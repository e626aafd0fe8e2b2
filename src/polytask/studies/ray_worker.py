"""A worker on a node of a Ray cluster: the actor that starts a local worker there and passes on what it says.

The run is trained by the same process as on this machine (worker.py, cli/worker.py). If the node sees the study's
folder, the run is written there. Otherwise it is written to the node's cache folder, and the engine fetches its files
when it has finished. Imports neither PyTorch nor Ray.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polytask.disk.atomic import write_atomically
from polytask.disk.cache import cache_folder
from polytask.disk.lock import LOCK, wait_until_free
from polytask.plugins.trust import CONFIG, write_trusted
from polytask.studies.code import code_fingerprint
from polytask.studies.worker import Worker, wait_for
from polytask.types import UserError

LOG_BYTES = 2**20
RELEASE_SECONDS = 120.0
"""How long to wait for the process of a lost worker: it may be saving a checkpoint, or its node may just have died, and
file servers release the locks of a dead node after up to 90 s."""


@dataclass(frozen=True)
class NodeJob:
    """A cell as a node gets it: names and texts only."""

    key: str
    text: str
    """The content of the recipe file."""
    recipe: str
    folder: str
    log: str
    """Files and folder in the study's folder, on the machine that runs the command."""
    token: str
    """A file in the study's folder with a random name: a node that has it sees the folder."""
    own_code: bool


@dataclass(frozen=True)
class About:
    """What a worker says first."""

    node: str
    code: str
    """The fingerprint of the node's polytask."""


@dataclass(frozen=True)
class Answer:
    """How far a cell is."""

    step: int
    exit_code: int | None = None
    log: str = ""
    """The end of the log of a cell that has ended."""
    files: tuple[tuple[str, int], ...] | None = None
    """The files of a run that has ended and that only the node has, with their sizes."""


class RayWorker:
    """Runs one cell at a time on its node. Its calls are executed one after another."""

    def __init__(self, threads: int, hide_gpus: bool, trusted: Sequence[str]) -> None:
        """`trusted` are the hashes of the plug-ins that the user has trusted where the command runs: no others run."""
        self._config = tempfile.TemporaryDirectory(prefix="polytask-config-")
        write_trusted(Path(self._config.name), trusted)
        environment = {CONFIG: self._config.name}
        if hide_gpus:  # Ray does not, by default
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self.worker = Worker(threads, environment)

    def about(self) -> About:
        return About(socket.gethostname(), code_fingerprint())

    def start(self, job: NodeJob) -> Answer:
        """Starts a cell, or resumes it if its folder exists here."""
        self.shared = Path(job.token).is_file()
        if self.shared:
            recipe, self.folder, self.log = Path(job.recipe), Path(job.folder), Path(job.log)
        else:
            cells = cache_folder() / "cells"
            recipe, self.folder, self.log = cells / f"{job.key}.yaml", cells / job.key, cells / f"{job.key}.log"
            write_atomically(recipe, job.text)
        self.recipe = recipe
        if not wait_until_free(self.folder, RELEASE_SECONDS):
            raise UserError(f"{self.folder}: another process is working on this run; wait for it, or stop it")
        self.worker.start(recipe, self.folder, self.log, job.own_code)
        return Answer(0)

    def poll(self) -> Answer:
        """Waits until the cell has ended, or for a moment."""
        ended = bool(wait_for([self.worker]))
        self.worker.count_steps()
        if not ended:
            return Answer(self.worker.step)
        exit_code = self.worker.exit_code()
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_BYTES))
            log = file.read().decode(errors="replace")
        return Answer(self.worker.step, exit_code, log, None if self.shared else tuple(self._files()))

    def read(self, name: str, start: int, size: int) -> bytes:
        """Returns a part of a file of the run."""
        with (self.folder / name).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def forget(self) -> None:
        """Removes a run that only this node has."""
        assert not self.shared
        shutil.rmtree(self.folder, ignore_errors=True)
        for file in (self.recipe, self.log):
            file.unlink(missing_ok=True)

    def stop(self) -> None:
        """Ends the process; a run that is training saves a checkpoint first."""
        self.worker.end()
        self._config.cleanup()

    def _files(self) -> list[tuple[str, int]]:
        found = (Path(folder) / name for folder, _, names in os.walk(self.folder) for name in names if name != LOCK)
        return [(str(path.relative_to(self.folder)), path.stat().st_size) for path in sorted(found)]
