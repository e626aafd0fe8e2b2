"""Child processes: the command with which every one of them is started, and how it ends with its parent.

Imports nothing of polytask, so that starting is cheap.
"""

import sys

PR_SET_PDEATHSIG = 1
"""A constant of Linux."""


def python_module(name: str) -> list[str]:
    """The command `python -P -m NAME`, to which arguments can be appended.

    Without `-P`, Python searches the working directory first: a file pip.py or difflib.py in the user's data folder
    would be executed.
    """
    return [sys.executable, "-P", "-m", name]


def end_with_parent() -> None:
    """Ask the kernel to send SIGTERM to this process when its parent has ended, also if that is killed (Linux only)."""
    import ctypes  # noqa: PLC0415  (only in child processes)
    import signal  # noqa: PLC0415
    from contextlib import suppress  # noqa: PLC0415

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
