"""How Python is started in a process of its own: never with code from the working directory. Knows no module."""

import sys


def python_module(name: str) -> list[str]:
    """The command for `python -m NAME`, to which arguments can be added.

    `python -m` alone puts the working directory first on the module search path: a file pip.py or difflib.py that lies
    beside the user's data would run. `-P` leaves the working directory out.
    """
    return [sys.executable, "-P", "-m", name]
