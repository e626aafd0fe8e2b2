"""Hidden folders in which something is written before it gets its name.

A hidden folder lies beside its target and has a random name, at which nobody can plant a link. Its process holds a lock
on it, so that the next write of the same target removes the folders of processes that were killed, and leaves those of
processes that are still writing. Knows nothing of what is written.
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
"""Where no lock tells whether a hidden folder's process is gone, it is after a day without a write."""
LONG_NAME = 200
"""Bytes of a target's name above which its hidden folder has a hash in its place: a name has 255 bytes at most."""
_locks: dict[Path, int] = {}
"""The open handles that hold the locks of this process's hidden folders."""


def fresh_folder(target: Path, mode: int = 0o777) -> Path:
    """An empty hidden folder beside `target`; what killed processes left of the same target is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{glob.escape(_stem(target))}.{'[0-9a-f]' * 32}"):
        _sweep(leftover)
    while True:
        fresh = hidden_name(target)
        fresh.mkdir(mode)
        if _hold(fresh):
            return fresh


def discard(fresh: Path) -> None:
    """Removes a hidden folder, if it is still there, and lets go of its lock."""
    shutil.rmtree(fresh, ignore_errors=True)
    handle = _locks.pop(fresh, None)
    if handle is not None:
        os.close(handle)


def clear_leftovers(folder: Path) -> None:
    """Removes what killed processes left of any target in a folder that no other process writes to now."""
    for leftover in folder.glob(f".*.{'[0-9a-f]' * 32}"):
        shutil.rmtree(leftover, ignore_errors=True)


def _stem(target: Path) -> str:
    name = os.fsencode(target.name)
    return target.name if len(name) <= LONG_NAME else hashlib.sha256(name).hexdigest()


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def hidden_name(target: Path) -> Path:
    """A new name beside the target. Its last 32 letters: 8 that stand for this machine, 24 at random."""
    return target.with_name(f".{_stem(target)}.{_host()}{uuid.uuid4().hex[:24]}")


def _open_folder(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, or a link, or another user's
        return None


def _lock(handle: int) -> bool | None:
    """Whether the lock is this process's now; None where the disk has no locks (of folders, NFS has none)."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _hold(fresh: Path) -> bool:
    """Locks a new hidden folder; False where another process took it for a leftover before it was locked."""
    handle = _open_folder(fresh)
    if handle is None:
        return False
    if _lock(handle) is False or not fresh.is_dir():
        os.close(handle)
        return False
    _locks[fresh] = handle
    return True


def _sweep(leftover: Path) -> None:
    """Removes a hidden folder if its process is gone. Locks are trusted on the same machine only: not every disk that
    several machines share tells one of the locks of another."""
    handle = _open_folder(leftover)
    if handle is None:
        return
    try:
        free = _lock(handle)
        gone = free is True and leftover.name[-32:].startswith(_host())
        if gone or (free is not False and time.time() - _last_written(leftover) > LEFTOVER_SECONDS):
            shutil.rmtree(leftover, ignore_errors=True)
    finally:
        os.close(handle)


def _last_written(folder: Path) -> float:
    """When anything in it was written last: a folder's own time stands still while its files grow."""
    latest = 0.0
    for path in (folder, *folder.rglob("*")):
        with suppress(OSError):  # its process is just clearing it away
            latest = max(latest, path.stat().st_mtime)
    return latest
