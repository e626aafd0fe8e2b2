"""Starts the processes of a run on this machine, with PyTorch's launcher, and waits for them.

What torchrun does, without its messages: if a process ends early, the others are stopped, and the error says which one
it was. Signals are passed on to the processes, which save a checkpoint.
"""

import logging
import os
import signal
import uuid
from collections.abc import Sequence

from polytask.child_processes import python_module
from polytask.types import UserError


def launch(count: int, arguments: Sequence[str]) -> None:
    """Runs `polytask ARGUMENTS` in `count` processes, and returns when all have ended well.

    Exits with the exit code of the process that failed, which has shown its error. Raises a UserError if a process was
    killed. After SIGINT or SIGTERM it exits as the processes do: with 130 or 143.
    """
    # Importing torch takes a second: not for `polytask train --help`.
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    from polytask.machine import usable_cores  # noqa: PLC0415

    if count > usable_cores():
        logging.getLogger(__name__).warning("%d processes share %d cores, which is slow", count, usable_cores())
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // count)))
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        program, *options = python_module("polytask")
        elastic_launch(config, program)(*options, *arguments)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        killed = {rank: -code for rank, code in codes.items() if code in (-signal.SIGKILL, -signal.SIGSEGV)}
        for rank, number in killed.items():
            raise UserError(
                f"process {rank} of {count} was killed ({signal.Signals(number).name}; SIGKILL is often the system's "
                "answer to too little memory), and the others were stopped; --resume continues the run from its last "
                "checkpoint"
            ) from None
        raise SystemExit(next((code for code in codes.values() if code > 0), 1)) from None
    except SignalException as stopped:
        raise SystemExit(128 + stopped.sigval) from None
