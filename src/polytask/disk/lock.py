"""The lock of a run's folder: one process at a time works on a run.

It is the kernel's lock on a file in the folder, so it is released when the process that holds it ends, however it ends.
"""

import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from polytask.disk.writable import writing
from polytask.types import UserError

LOCK = ".lock"
BUSY = "is working on this run; wait for it, stop it, or pass --run DIR for another folder"
RELEASE_SECONDS = 5.0
"""How long to wait for the lock of a process that has ended: a child it was just starting keeps it for a moment."""
log = logging.getLogger(__name__)


class FolderLock:
    """The lock of one folder. Use it as a context manager, or call `acquire` and `release`.

    A process that holds the lock may acquire it again through another FolderLock: in a notebook, for example, a second
    run may start in the same folder. The lock is released together with the first of them.
    """

    def __init__(self, folder: Path, busy: str = BUSY) -> None:
        """`busy` is what the error says about the process that holds the lock, and what to do."""
        self._handle: int | None = None
        self.folder, self.busy = folder.resolve(), busy

    def __enter__(self) -> "FolderLock":
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()  # a run that was abandoned, in a notebook for example, does not keep its folder locked

    def acquire(self) -> None:
        """Locks the folder; raises a UserError if another process holds the lock."""
        if self._handle is not None:
            return
        path = self.folder / LOCK
        with writing(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            if self._lock(handle):
                os.truncate(handle, 0)
                os.write(handle, _this_process().encode())
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _lock(self, handle: int) -> bool:
        """Whether the lock is new; False if this process holds it already, or if the disk has no locks."""
        deadline = time.monotonic() + RELEASE_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    log.warning(
                        "%s: this disk does not support locks (%s); make sure that no other process uses the folder",
                        self.folder,
                        error,
                    )
                    return False
            holder = os.pread(handle, 1000, 0).decode(errors="replace").strip()
            if holder == _this_process():
                return False
            if not _has_ended(holder) or time.monotonic() > deadline:
                raise UserError(f"{self.folder}: {holder or 'another process'} {self.busy}")
            time.sleep(0.05)


def wait_until_free(folder: Path, seconds: float) -> bool:
    """Waits until no process holds the folder's lock; returns whether that is so. Changes nothing."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # nobody has locked it yet; if it cannot be read, whoever wants to write there says so
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):  # this disk does not support locks
                return True
        finally:
            os.close(handle)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _has_ended(holder: str) -> bool:
    """Whether the holder is a process of this machine that has ended."""
    words = holder.split()
    if len(words) != 4 or words[3] != socket.gethostname() or not words[1].isdecimal():
        return False
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to another user
        return False
    return False
