"""The engine for a cluster: Ray places the workers on nodes, and tells when one of them is lost.

A worker (ray_worker.py) is a Ray actor that holds the CPUs and GPUs of one cell and runs cells one after another. The
cell of a lost worker runs again in a new one, and resumes from its checkpoint if its folder can be seen there. Knows
Ray; knows neither the cache nor the page of a study.
"""

import logging
import math
import os
import secrets
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polytask.cluster_room import check_numbers, default_gpus, no_room, room, words
from polytask.disk.atomic import atomic_folder, write_atomically
from polytask.machine import usable_cores
from polytask.plugins.trust import trusted_plugins
from polytask.ray_cluster import connect
from polytask.studies.code import code_fingerprint
from polytask.studies.engine import STOPPED, Job, Progress, is_stopped
from polytask.studies.ray_worker import About, Answer, NodeJob, RayWorker
from polytask.types import UserError

RETRIES = 3
"""How many times the cell of a lost worker runs again."""
POLL_SECONDS = 1.0
STOP_SECONDS = 60.0
"""How long to wait for the checkpoints of cells that are stopped."""
LEAVE_SECONDS = 10.0
"""How long to wait for a worker that is given up."""
VISIBLE_SECONDS = 60.0
"""How long a network file system may hide files that another node has written."""
CHUNK_BYTES = 16 * 2**20
"""Of files that are fetched from a node."""
PATIENCE_SECONDS = 60.0
"""After this time without a free node, the user is told what is waited for."""
log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Seat:
    """A worker on the cluster, and the cell that it runs or has run last."""

    actor: Any
    job: Job
    call: Any = None
    """The pending call."""
    step: int = 0
    node: str = ""
    """Empty until Ray has started the worker."""
    asked: float = field(default_factory=time.monotonic)
    reminded: bool = False


class RayEngine:
    """Runs cells on the nodes of a Ray cluster, which need polytask and the data at the same paths."""

    check_numbers = staticmethod(check_numbers)

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        cpus_per_cell: float = 1,
        gpus_per_cell: float | None = None,
        what: str = "polytask compare --engine ray",
    ) -> None:
        """Connects to the cluster, and refuses cells that no node has room for.

        Args:
            address: The cluster's address. Default: the environment variable RAY_ADDRESS or, without it, a Ray that is
                started on this machine.
            workers: How many cells run at a time. Default: as many as the cluster has room for now.
            cpus_per_cell: The CPUs that a cell is given; the whole part is its number of threads.
            gpus_per_cell: The GPUs that a cell is given; 0.5 lets two cells share one. Default: 1 if the cluster has
                GPUs, else 0.
            what: What needs Ray, for error messages.
        """
        self.check_numbers(workers, cpus_per_cell, gpus_per_cell)
        self._connection = ExitStack()
        own_cpus = max(usable_cores(), math.ceil((workers or 1) * cpus_per_cell))
        self._ray = self._connection.enter_context(connect(what, address, own_cpus))
        try:
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            if gpus_per_cell is None:
                gpus_per_cell = default_gpus(nodes)
            self.resources = {"num_cpus": cpus_per_cell, "num_gpus": gpus_per_cell}
            fitting = sum(room(node, cpus_per_cell, gpus_per_cell) for node in nodes)
            if fitting == 0:
                raise UserError(no_room(nodes, cpus_per_cell, gpus_per_cell))
        except BaseException:
            self._connection.close()
            raise
        self.workers = workers or fitting
        self._idle: list[_Seat] = []
        self._running: list[_Seat] = []
        self._lost: dict[str, int] = {}
        """By key of a cell: how many times its worker was lost."""
        self._token: Path | None = None

    # --- the interface of engines -------------------------------------------------------------------------------------
    def start(self, job: Job) -> None:
        write_atomically(job.log, "")
        if self._idle:
            self._send(self._idle.pop(), job)
        else:
            self._ask_for_seat(job)

    def wait(self) -> list[Progress]:
        calls = {seat.call: seat for seat in self._running}
        self._ray.wait(list(calls), num_returns=1, timeout=POLL_SECONDS)
        ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        # What is read may let another seat go, whose answer then counts no more.
        news = [self._news(calls[call]) for call in ready if calls[call] in self._running]
        self._remind()
        return [progress for progress in news if progress is not None]

    def close(self) -> None:
        seats = [*self._running, *self._idle]
        self._running, self._idle = [], []
        with suppress(self._ray.exceptions.RayError):
            stopping = [seat.actor.stop.remote() for seat in seats if seat.node]
            self._ray.wait(stopping, num_returns=len(stopping), timeout=STOP_SECONDS) if stopping else None
            for seat in seats:
                self._ray.kill(seat.actor)
        if self._token is not None:
            self._token.unlink(missing_ok=True)
            self._token = None
        self._connection.close()

    # --- workers ------------------------------------------------------------------------------------------------------
    def _ask_for_seat(self, job: Job) -> None:
        """Asks Ray for a worker, which waits until a node has room for it."""
        actor_class = self._ray.remote(**self.resources, max_restarts=0)(RayWorker)
        threads = max(1, math.floor(self.resources["num_cpus"]))
        actor = actor_class.remote(threads, self.resources["num_gpus"] == 0, trusted_plugins())
        self._running.append(_Seat(actor, job, actor.about.remote()))

    def _send(self, seat: _Seat, job: Job) -> None:
        """Sends a cell to a seat that runs none."""
        seat.job, seat.step = job, 0
        if seat not in self._running:
            self._running.append(seat)
        if self._token is None:
            self._token = write_token(job.study)
        files = {"recipe": str(job.recipe), "folder": str(job.folder), "log": str(job.log), "token": str(self._token)}
        text = job.recipe.read_text(encoding="utf-8")
        seat.call = seat.actor.start.remote(NodeJob(job.cell.key, text, **files, own_code=job.own_code))

    def _news(self, seat: _Seat) -> Progress | None:
        """Reads the answer of a seat and makes the next call; None if there is nothing to report."""
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(seat.call)
            if isinstance(answer, About):
                seat.node = answer.node
                _check_code(answer)
                self._send(seat, seat.job)
                return None
            news = answer.step > seat.step
            seat.step = max(seat.step, answer.step)
            if answer.exit_code is None:
                seat.call = seat.actor.poll.remote()
                return Progress(seat.job, seat.step) if news else None
            if is_stopped(answer.exit_code):
                return self._again(seat, f"its process ended with code {answer.exit_code}")
            self._receive(seat, answer)
        except errors.RayTaskError as error:
            return self._failed(seat, error)
        except errors.RayActorError as error:
            _check_started(error)
            return self._again(seat, first_line(error))
        except errors.RayError as error:  # the node's memory ran out, an answer was lost with its node ...
            return self._again(seat, f"{type(error).__name__}: {first_line(error)}")
        progress = Progress(seat.job, seat.step, answer.exit_code)
        self._running.remove(seat)
        self._free(seat)
        return progress

    def _again(self, seat: _Seat, reason: str) -> Progress | None:
        """Runs the cell of a lost worker again in a new one, as long as it may."""
        self._leave(seat)
        cell, where = seat.job.cell, f"on {seat.node}" if seat.node else "before it had started"
        count = self._lost[cell.key] = self._lost.get(cell.key, 0) + 1
        if count > RETRIES:
            error = f"its worker was lost {count} times, the last time {where}: {reason}"
            return Progress(seat.job, seat.step, -signal.SIGKILL, error)
        log.warning(
            "%s, seed %d: its worker was lost %s (%s); running it again (%d of %d)",
            *(cell.variant, cell.seed, where, reason, count, RETRIES),
        )
        if self._idle:
            self._send(self._idle.pop(), seat.job)
        else:
            self._ask_for_seat(seat.job)
        return None

    def _free(self, seat: _Seat) -> None:
        """Gives a free seat to a cell that waits for one: after a node was lost, there may be no room for another."""
        waiting = next((other for other in self._running if not other.node), None)
        if waiting is None:
            self._idle.append(seat)
        else:
            self._leave(waiting)
            self._send(seat, waiting.job)

    def _failed(self, seat: _Seat, error: Any) -> Progress:
        """A worker that could not start its cell. Nothing of the cell is moved, so that it can be resumed."""
        self._leave(seat)
        cause = error.cause if isinstance(error.cause, BaseException) else error
        return Progress(seat.job, seat.step, STOPPED[-1], f"on {seat.node}: {type(cause).__name__}: {cause}")

    def _leave(self, seat: _Seat) -> None:
        """Gives a worker up. One that is alive removes its files first."""
        self._running.remove(seat)
        if seat.node:
            with suppress(self._ray.exceptions.RayError):
                self._ray.get(seat.actor.stop.remote(), timeout=LEAVE_SECONDS)
        self._ray.kill(seat.actor)

    def _remind(self) -> None:
        for seat in self._running:
            if not seat.node and not seat.reminded and time.monotonic() > seat.asked + PATIENCE_SECONDS:
                seat.reminded = True
                log.warning("waiting for a node with %s; `ray status` shows what is in use", words(**self.resources))

    # --- results ------------------------------------------------------------------------------------------------------
    def _receive(self, seat: _Seat, answer: Answer) -> None:
        """Waits until the run of a cell that has ended is in the study's folder, or fetches it from its node."""
        job = seat.job
        if answer.files is None:
            deadline = time.monotonic() + (VISIBLE_SECONDS if answer.exit_code == 0 else 0)
            while not job.cell.done and time.monotonic() < deadline:
                with suppress(OSError):
                    os.listdir(job.folder)  # makes the client of a network file system look again
                time.sleep(0.2)
            if job.cell.done:
                return
        write_atomically(job.log, f"on {seat.node}:\n{answer.log}")
        if answer.files is not None:
            if answer.exit_code == 0:
                self._fetch(seat, answer.files)
            with suppress(self._ray.exceptions.RayError):  # the files are here, so a lost worker costs nothing now
                self._ray.get(seat.actor.forget.remote())

    def _fetch(self, seat: _Seat, files: tuple[tuple[str, int], ...]) -> None:
        with atomic_folder(seat.job.folder) as folder:
            for name, size in files:
                path = folder / name
                if not path.resolve().is_relative_to(folder.resolve()):
                    raise UserError(f"{seat.node}: this node sends a file that is not in the run's folder: {name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    while file.tell() < size:
                        part = self._ray.get(seat.actor.read.remote(name, file.tell(), CHUNK_BYTES))
                        if not part:
                            raise UserError(
                                f"{seat.node}: {name} became smaller while it was fetched ({size:,} bytes, now "
                                f"{file.tell():,}); run the command again"
                            )
                        file.write(part)


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def write_token(study: Path) -> Path:
    """Writes a file with a random name into the study's folder: a node on which it is there sees the folder.

    A name that no node has looked for before is in no cache of a network file system.
    """
    for left in study.glob(".cluster-*"):  # of a command that was killed
        left.unlink(missing_ok=True)
    token = study / f".cluster-{secrets.token_hex(8)}"
    write_atomically(token, "")
    return token


# --- refusals ---------------------------------------------------------------------------------------------------------
def _check_code(about: About) -> None:
    if about.code != code_fingerprint():
        raise UserError(
            f"{about.node}: this node of the cluster has another version of polytask than this machine, so its results "
            "could differ; install the same version on every node"
        )


def _check_started(error: Exception) -> None:
    """Refuses a cluster with a node on which a worker cannot even be created: without polytask, for example."""
    text = str(error).strip()
    if "creation task" in text:
        raise UserError(
            f"a node of the cluster cannot start a worker: {text.splitlines()[-1]}; install the same version of "
            "polytask on every node"
        ) from None
