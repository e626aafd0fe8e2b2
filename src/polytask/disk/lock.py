"""One process at a time works on a run's folder. Knows files; knows nothing of what is in them.

The lock is the kernel's, on a file in the folder: it goes with the process that holds it, however that ends.
"""

import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import IO

from polytask.disk.writable import open_in_place
from polytask.types import UserError

LOCK = ".lock"
SECONDS_TO_GO = 5.0
"""A process that was killed may have started another just then, which has the lock until it has started its program."""
log = logging.getLogger(__name__)

_held: dict[Path, IO[str]] = {}
"""By folder. A process that has the lock may ask for it again: a notebook that starts a run anew, say."""


def hold(folder: Path) -> bool:
    """Makes the folder this process's own until it ends or lets go; a UserError where it is another's.

    Whether it was this process's own before.
    """
    folder = folder.resolve()
    if folder in _held:
        return True
    file = open_in_place(folder / LOCK, "a+")
    try:
        _take(file, folder)
    except BaseException:
        file.close()
        raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    _held[folder] = file
    return False


def let_go(folder: Path) -> None:
    file = _held.pop(folder.resolve(), None)
    if file is not None:
        file.close()


def _take(file: IO[str], folder: Path) -> None:
    until = time.monotonic() + SECONDS_TO_GO
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                log.warning("%s: this disk has no locks (%s): see that no other process works here", folder, error)
                return
        file.seek(0)
        holder = file.read().strip()
        if not _is_gone(holder) or time.monotonic() > until:
            raise UserError(
                f"{folder}: {holder or 'another process'} is working on this run; wait for it, stop it, or give "
                "--run DIR"
            )
        time.sleep(0.05)


def _is_gone(holder: str) -> bool:
    """Whether it is a process of this machine that has ended."""
    words = holder.split()
    if len(words) != 4 or words[3] != socket.gethostname() or not words[1].isdecimal():
        return False
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return False
    return False
