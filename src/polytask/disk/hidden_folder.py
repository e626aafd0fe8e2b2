"""Hidden folders in which files are written before they are renamed to their final name.

A hidden folder is next to its target and has a random name, so nobody can plant a link at that name in advance.
The process that writes to it holds a lock on it: the next write of the same target removes the folders of killed
processes and leaves those that are still in use.
"""

import fcntl
import glob
import hashlib
import os
import shutil
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path

LEFTOVER_SECONDS = 24 * 3600.0
"""Where locks cannot show whether a folder is in use, it is removed after a day without a write."""
LONG_NAME = 200
"""Targets with longer names (in bytes) have a hash in the hidden folder's name: file names have at most 255 bytes."""


class HiddenFolder:
    """An empty hidden folder next to `target`, locked until `discard`.

    Creating it also removes the hidden folders that killed processes left for the same target.
    """

    def __init__(self, target: Path, mode: int = 0o777) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        for leftover in target.parent.glob(f".{glob.escape(_stem(target))}.{'[0-9a-f]' * 32}"):
            _remove_leftover(leftover)
        handle = None
        while handle is None:  # another process may take the new folder for a leftover before it is locked
            self.path = hidden_name(target)
            self.path.mkdir(mode)
            handle = _open_locked(self.path)
        self._handle: int | None = handle

    def discard(self) -> None:
        """Removes the folder, if it still exists, and releases its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.unlock()

    def unlock(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def clear_leftovers(folder: Path) -> None:
    """Removes all hidden folders in a folder, except those that a process is still writing to.

    For callers that know that no other machine writes there: its locks may not be seen here.
    """
    for leftover in folder.glob(f".*.{'[0-9a-f]' * 32}"):
        handle = _open_folder(leftover)
        if handle is None:
            continue
        try:
            if _lock(handle) is not False:
                shutil.rmtree(leftover, ignore_errors=True)
        finally:
            os.close(handle)


def hidden_name(target: Path) -> Path:
    """A new hidden name next to the target. It ends in 8 hex digits for this machine and 24 random ones."""
    return target.with_name(f".{_stem(target)}.{_host()}{uuid.uuid4().hex[:24]}")


def _stem(target: Path) -> str:
    name = os.fsencode(target.name)
    return target.name if len(name) <= LONG_NAME else hashlib.sha256(name).hexdigest()


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _open_folder(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # removed, a link, or another user's
        return None


def _lock(handle: int) -> bool | None:
    """Whether the lock was acquired; None if the file system has no locks (NFS has none for folders)."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _open_locked(folder: Path) -> int | None:
    """The handle that holds the folder's lock; None if another process has removed or locked the folder."""
    handle = _open_folder(folder)
    if handle is None:
        return None
    if _lock(handle) is False or not folder.is_dir():
        os.close(handle)
        return None
    return handle


def _remove_leftover(folder: Path) -> None:
    """Removes a hidden folder if its process has ended.

    Locks are trusted only for folders of this machine: not every shared file system shows one machine's locks to
    another.
    """
    handle = _open_folder(folder)
    if handle is None:
        return
    try:
        unlocked = _lock(handle)
        ended = unlocked is True and folder.name[-32:].startswith(_host())
        if ended or (unlocked is not False and time.time() - _last_written(folder) > LEFTOVER_SECONDS):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


def _last_written(folder: Path) -> float:
    """The latest modification time of the folder and its files: the folder's own does not change as files grow."""
    latest = 0.0
    for path in (folder, *folder.rglob("*")):
        with suppress(OSError):  # its process may be removing it
            latest = max(latest, path.stat().st_mtime)
    return latest
