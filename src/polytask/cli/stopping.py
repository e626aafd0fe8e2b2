"""Handles SIGTERM and Ctrl-C: a run that is training saves a checkpoint first, other commands exit at once.

The exit codes are those of a shell, 143 and 130.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import polytask
from polytask.cli.console import echo

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Lets the handler handle both signals inside the context. Only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def leave(number: int, frame: FrameType | None = None) -> None:
    raise SystemExit(128 + number)


class Stop:
    """Records the first signal. A second Ctrl-C exits at once; a second SIGTERM does not: job queues often send two.

    Before the first step there is nothing to save, so that the first signal exits at once too: the evaluation of a
    large dev set takes minutes on a CPU. Several processes evaluate together, and stop together after a step; they get
    signals from their launcher, which forwards only the first one.
    """

    def __init__(
        self, shown: bool = True, several: bool = False, before_first_step: Callable[[], bool] = lambda: False
    ) -> None:
        self.signal: int | None = None
        self.before_first_step = before_first_step
        hint = "" if several else "; press Ctrl-C again to exit at once"
        self.message = f"\nstopping after this step, with a checkpoint{hint}\n".encode() if shown else b""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.before_first_step():
            os.write(2, b"\nstopped before the first step: there is nothing to save\n")
            leave(number)
        if self.signal is None:
            self.signal = number
            # Not with print, which the signal may have interrupted.
            os.write(2, self.message)
        elif number == signal.SIGINT:
            leave(number)


def until_stopped(running: "polytask.Running") -> Iterator["polytask.StepReport"]:
    """Yields the reports of all steps. After a signal it finishes the step, saves a checkpoint and exits."""
    several = running.processes.several
    stop = Stop(running.is_main, several, lambda: running.session.step == 0 and not several)
    with handled_by(stop):
        for report in running.steps():
            yield report
            if running.any_process(stop.signal is not None):
                path = report.checkpoint or running.save()
                running.session.writer.wait()
                if running.is_main:
                    echo(
                        f"stopped after step {running.session.step} of {report.steps} and saved {path}; run the same "
                        "command with --resume to continue",
                        err=True,
                    )
                running.any_process(False)  # none ends before the first one has written: the launcher would stop it
                leave(stop.signal or signal.SIGTERM)
