"""SIGTERM and Ctrl-C: a run that is training saves itself first; everything else leaves at once.

The exit codes are the shell's for these signals, 143 and 130.
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
    """Inside, both signals come to the handler. Only a process's main thread has a say in this."""
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
    """Remembers the first signal. A second Ctrl-C leaves at once; SIGTERM never does: queues like to send it twice."""

    def __init__(self) -> None:
        self.asked: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked = number
            # Not by print: the signal may have come in the middle of one.
            os.write(2, b"\nstopping after this step, with a checkpoint; Ctrl-C again leaves at once\n")
        elif number == signal.SIGINT:
            leave(number)


def until_stopped(running: "polytask.Running") -> Iterator["polytask.StepReport"]:
    """Every step of a run. When a signal comes: the step under way, a checkpoint of it, and the end of the process."""
    stop = Stop()
    with handled_by(stop):
        for report in running.steps():
            yield report
            if stop.asked is not None:
                path = report.checkpoint or running.save()
                echo(
                    f"stopped after step {running.session.step} of {report.steps}; it is saved in {path}: go on with "
                    "the same command and --resume",
                    err=True,
                )
                leave(stop.asked)
