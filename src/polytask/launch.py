"""Starts the processes of a run on this machine, with PyTorch's launcher, and waits for them.

What torchrun does, without its messages: if a process ends early, the others are stopped, and the error says which one
it was. Signals are passed on to the processes, which save a checkpoint.
"""

import logging
import os
import signal
import uuid
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from polytask.child_processes import python_module
from polytask.types import UserError

SHUTDOWN_SECONDS = 3600
"""How long the processes may take to stop after a signal."""


def launch(count: int, arguments: Sequence[str]) -> None:
    """Runs `polytask ARGUMENTS` in `count` processes, and returns when all have ended well.

    Exits with the exit code of the process that failed, which has shown its error. Raises a UserError if a process was
    killed. After SIGINT or SIGTERM it exits as the processes do: with 130 or 143.
    """
    # Importing torch takes a second: not for `polytask train --help`.
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    from polytask.machine import usable_cores  # noqa: PLC0415

    if count > usable_cores():
        logging.getLogger(__name__).warning("%d processes share %d cores, which is slow", count, usable_cores())
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // count)))
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    # A long evaluation or checkpoint must end before the launcher kills the processes, 30 s after a signal by default.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_SECONDS))
    program, *options = python_module("polytask")
    with TemporaryDirectory(prefix="polytask-processes-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(logs),
        )
        try:
            elastic_launch(config, program)(*options, *arguments)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()  # later ones are those that the launcher has stopped
            raise failed(rank, count, failure.exitcode) from None
        except SignalException as stopped:
            raise SystemExit(128 + stopped.sigval) from None


def failed(rank: int, count: int, code: int) -> UserError | SystemExit:
    """The error of a run in which this process failed first: with an exit code, or -SIGNAL if it was killed."""
    if code > 0:
        return SystemExit(code)  # it has shown its error
    names = {number.value: number.name for number in signal.Signals}
    hint = "; SIGKILL is often the system's answer to too little memory" if -code == signal.SIGKILL else ""
    return UserError(
        f"process {rank} of {count} was killed ({names.get(-code, f'signal {-code}')}{hint}), and the others were "
        "stopped; --resume continues the run from its last checkpoint"
    )
