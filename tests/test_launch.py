"""Why a run of several processes on this machine ended: the first process that failed says so.

Whole runs are in tests/runs/test_processes.py.
"""

import signal

import pytest

from polytask.launch import failed
from polytask.types import UserError


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGKILL, "process 1 of 4 was killed (SIGKILL; SIGKILL is often"),
        (-signal.SIGBUS, "process 1 of 4 was killed (SIGBUS), and the others were stopped"),
        (-signal.SIGABRT, "process 1 of 4 was killed (SIGABRT), and"),
        (-100, "process 1 of 4 was killed (signal 100), and"),
    ],
)
def test_a_killed_process_is_named_with_its_signal(code: int, words: str) -> None:
    error = failed(1, 4, code)
    assert isinstance(error, UserError)
    assert words in str(error)


def test_a_process_that_has_shown_its_error_gives_its_exit_code() -> None:
    error = failed(1, 4, 3)
    assert isinstance(error, SystemExit)
    assert error.code == 3
