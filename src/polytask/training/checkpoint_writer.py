"""Writes the checkpoints of a run, if wanted while training continues. Knows checkpoints, and no state of training."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from polytask.training.checkpoint import Checkpoint, write_checkpoint


def do_nothing() -> None: ...


class CheckpointWriter:
    """Writes checkpoints one after another: in the caller, or in one background thread.

    In the background a checkpoint is written from a copy of its tensors in host memory. At most two copies exist at a
    time. If a write fails, the writes after it are not started, and the next `write` or `wait` raises its error. Python
    waits for the thread when it exits.
    """

    def __init__(self, background: bool = False) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoints") if background else None
        self._unfinished: dict[Path, Future[None]] = {}
        self._error: BaseException | None = None

    def write(self, folder: Path, checkpoint: Checkpoint, afterwards: Callable[[], None] = do_nothing) -> None:
        """Writes a checkpoint to `folder`, whole or not at all; calls `afterwards` when it is complete."""
        if self._thread is None:
            write_checkpoint(folder, checkpoint)
            afterwards()
            return
        for earlier in list(self._unfinished)[: None if self._error else -1]:
            self.wait(earlier)
        # Training changes tensors in place, those on the CPU too. A copy that this thread makes comes between two
        # steps; one that the other thread makes would also disturb a capture of CUDA graphs.
        tensors = {
            name: {key: tensor.detach().to("cpu", copy=True) for key, tensor in part.items()}
            for name, part in checkpoint.tensors.items()
        }
        copied = replace(checkpoint, tensors=tensors)
        self._unfinished[folder] = self._thread.submit(self._write, folder, copied, afterwards)

    def _write(self, folder: Path, checkpoint: Checkpoint, afterwards: Callable[[], None]) -> None:
        if self._error is not None:  # `afterwards` removes checkpoints, and this one may need the one that failed
            raise self._error
        try:
            write_checkpoint(folder, checkpoint)
            afterwards()
        except BaseException as error:
            self._error = error
            raise

    def wait(self, folder: Path | None = None) -> None:
        """Waits until this checkpoint is complete, or all; raises the error of a write that failed."""
        for path in [folder] if folder is not None else list(self._unfinished):
            if path not in self._unfinished:
                continue
            error = self._unfinished[path].exception()
            if error is not None:
                wait(self._unfinished.values())
                self._unfinished.clear()
                self._error = None
                raise error
            del self._unfinished[path]


class NoCheckpoints(CheckpointWriter):
    """Writes nothing, in a process that leaves the run's files to another one."""

    def write(self, folder: Path, checkpoint: Checkpoint, afterwards: Callable[[], None] = do_nothing) -> None:
        pass
