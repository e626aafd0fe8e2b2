"""Signals: the first one asks a run to stop after its step, and every command exits with the shell's code.

Whole runs that get signals are in tests/faults/test_signals.py.
"""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polytask.cli.stopping import SIGNALS, Stop, handled_by, leave, until_stopped
from polytask.processes import ALONE
from polytask.training.checkpoint_writer import CheckpointWriter


def test_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with handled_by(leave), pytest.raises(SystemExit, match="130"):
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_another_thread_leaves_the_handlers_as_they_are() -> None:
    """Only the main thread may set them."""
    inside: list[bool] = []

    def work() -> None:
        with handled_by(leave):
            inside.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [True]


@pytest.mark.parametrize(
    ("first", "second", "exits"),
    [
        (signal.SIGINT, signal.SIGINT, True),
        (signal.SIGTERM, signal.SIGINT, True),
        (signal.SIGTERM, signal.SIGTERM, False),
        (signal.SIGINT, signal.SIGTERM, False),
    ],
)
def test_only_a_second_interrupt_exits_at_once(first: int, second: int, exits: bool, capfd: Any) -> None:
    stop = Stop()
    stop(first, None)
    assert "stopping after this step" in capfd.readouterr().err
    if exits:
        with pytest.raises(SystemExit, match="130"):
            stop(second, None)
    else:
        stop(second, None)
    assert stop.signal == first


def test_several_processes_show_one_message_without_what_their_launcher_does_not_do(capfd: Any) -> None:
    for shown in (True, False):
        Stop(shown, several=True)(signal.SIGINT, None)
    assert capfd.readouterr().err.strip() == "stopping after this step, with a checkpoint"


class FakeRun:
    """A run of three steps in one process that gets SIGTERM in one of them, or in the evaluation before the first."""

    is_main = True
    processes = ALONE

    def __init__(self, saves_itself: bool, signalled: int = 2) -> None:
        self.session = SimpleNamespace(step=0, writer=CheckpointWriter())
        self.saves_itself, self.saved, self.signalled = saves_itself, 0, signalled

    def steps(self) -> Iterator[SimpleNamespace]:
        for step in (0, 1, 2, 3):
            self.session.step = step
            if step == self.signalled:
                signal.raise_signal(signal.SIGTERM)
            if step == 0:
                continue
            yield SimpleNamespace(step=step, steps=3, checkpoint=Path("own") if self.saves_itself else None)

    def any_process(self, flag: bool) -> bool:
        return flag

    def save(self) -> Path:
        self.saved += 1
        return Path("asked")


@pytest.mark.parametrize("saves_itself", [False, True])
def test_a_run_saves_once_after_the_step_and_exits(saves_itself: bool, capfd: Any) -> None:
    run: Any = FakeRun(saves_itself)
    reports = until_stopped(run)
    assert [next(reports).step, next(reports).step] == [1, 2]
    with pytest.raises(SystemExit, match="143"):
        next(reports)
    assert run.saved == (0 if saves_itself else 1)
    saved = "own" if saves_itself else "asked"
    words = f"stopped after step 2 of 3 and saved {saved}; run the same command with --resume"
    assert words in " ".join(capfd.readouterr().err.split())


def test_a_signal_in_the_evaluation_before_the_first_step_exits_at_once(capfd: Any) -> None:
    run: Any = FakeRun(saves_itself=False, signalled=0)
    with pytest.raises(SystemExit, match="143"):
        next(until_stopped(run))
    assert run.session.step == run.saved == 0
    assert "stopped before the first step" in capfd.readouterr().err
