"""Child processes: the command with which every one of them is started. Imports nothing, so that starting is cheap."""

import sys


def python_module(name: str) -> list[str]:
    """The command `python -P -m NAME`, to which arguments can be appended.

    Without `-P`, Python searches the working directory first: a file pip.py or difflib.py in the user's data folder
    would be executed.
    """
    return [sys.executable, "-P", "-m", name]
