"""Hashes of files."""

import hashlib
import os
import time
from pathlib import Path

SETTLED_SECONDS = 2.0
"""A file that was changed more recently could change again without a new time stamp: its hash is not remembered."""
_known: dict[str, tuple[tuple[int, ...], str]] = {}


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_sha256(path: Path) -> str:
    """The same, for large files that are hashed often: reads the file again only if it has changed since."""
    name, stamp, now = os.path.abspath(path), _stamp(path), time.time_ns()
    if name in _known and _known[name][0] == stamp:
        return _known[name][1]
    digest = sha256(path)
    if now - max(stamp[-2:]) > SETTLED_SECONDS * 1e9 and _stamp(path) == stamp:
        _known[name] = (stamp, digest)
    return digest


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes whenever the file's content does; the times of the last changes are at the end."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
