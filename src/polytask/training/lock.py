"""One process at a time works on a run's folder. Knows files; knows nothing of what is in them.

The lock is the kernel's, on a file in the folder: it goes with the process that holds it, however that ends.
"""

import errno
import fcntl
import logging
import os
import socket
from pathlib import Path
from typing import IO

from polytask.types import UserError

LOCK = ".lock"
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
    file = (folder / LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            log.warning(
                "%s: this disk has no locks (%s): see to it that no other process works on the run", folder, error
            )
        else:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise UserError(
                f"{folder}: {holder} is working on this run; wait for it, stop it, or give --run DIR"
            ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    _held[folder] = file
    return False


def let_go(folder: Path) -> None:
    file = _held.pop(folder.resolve(), None)
    if file is not None:
        file.close()
