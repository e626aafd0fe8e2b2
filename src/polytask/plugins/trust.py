"""Which plug-in files may run: the user trusts a file once, and its SHA-256 is remembered.

For each trusted file, the user's configuration folder has a marker: a file named after the SHA-256. A plug-in that has
changed has another SHA-256, and must be trusted again. Removing a marker takes the trust back.
"""

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from polytask.disk.json_files import read_bytes
from polytask.disk.writable import writing
from polytask.types import UserError

CONFIG = "POLYTASK_CONFIG"
"""The environment variable that names the user's configuration folder."""
FOLDER = "trusted-plugins"
MAX_BYTES = 2**20


def config_folder() -> Path:
    """$POLYTASK_CONFIG, else $XDG_CONFIG_HOME/polytask, else ~/.config/polytask."""
    if folder := os.environ.get(CONFIG):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "polytask"


def trust_plugin(path: str | Path) -> str:
    """Remembers that a plug-in file may run, as `--trust-plugins` does; returns its SHA-256.

    Read the file first: a plug-in is a Python program, which can do all that you can do.
    """
    path = Path(path)
    digest = hashlib.sha256(read_plugin(path)).hexdigest()
    if not is_trusted(digest):
        marker = config_folder() / FOLDER / digest
        with writing(marker):
            marker.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_only_ours(marker.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(marker, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(f"{path.absolute()}\n")
    return digest


def is_trusted(digest: str) -> bool:
    """Whether the user has trusted a file with this SHA-256. A folder that others may write to does not count."""
    return digest in trusted_plugins()


def trusted_plugins() -> list[str]:
    """The SHA-256 of all files that the user has trusted."""
    folder = config_folder() / FOLDER
    try:
        if _others_can_write(folder):
            return []
        return sorted(marker.name for marker in folder.iterdir() if marker.is_file())
    except OSError:
        return []


def _others_can_write(folder: Path) -> bool:
    return bool(folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _check_only_ours(folder: Path) -> None:
    if _others_can_write(folder):
        raise UserError(
            f"{folder}: other users can write to this folder, so the plug-ins that it names are not trusted; remove "
            f"what you did not put there, and run: chmod 700 {folder}"
        )


def write_trusted(config: Path, digests: Iterable[str]) -> None:
    """Writes a configuration folder in which exactly these files are trusted, for a process on another machine."""
    folder = config / FOLDER
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True)
        for digest in digests:
            (folder / digest).touch(mode=0o600, exist_ok=False)


def check_trusted(path: Path, digest: str) -> None:
    if not is_trusted(digest):
        raise UserError(
            f"{path}: this plug-in is not trusted (SHA-256 {digest}). It is a Python program that would run with your "
            f"rights: read it first (less {path}). To trust it, pass --trust-plugins, or call "
            f"polytask.trust_plugin({str(path)!r}) in Python; that is remembered until the file changes"
        )


def check_all_trusted(paths: Iterable[Path]) -> None:
    """Raises a UserError that names all of the files that are not trusted, because --trust-plugins trusts them all."""
    digests = {path: hashlib.sha256(read_plugin(path)).hexdigest() for path in paths}
    untrusted = {path: digest for path, digest in digests.items() if not is_trusted(digest)}
    if len(untrusted) > 1:
        named = "".join(f"  {path} (SHA-256 {digest})\n" for path, digest in untrusted.items())
        raise UserError(
            f"{len(untrusted)} plug-ins are not trusted:\n{named}They are Python programs that would run with your "
            f"rights: read them all first (less {' '.join(map(str, untrusted))}). To trust them, pass --trust-plugins, "
            "or call polytask.trust_plugin(FILE) in Python for each; that is remembered until a file changes"
        )
    for path, digest in untrusted.items():
        check_trusted(path, digest)


def read_plugin(path: Path) -> bytes:
    if path.suffix != ".py":
        raise UserError(f"{path}: a plug-in must be a Python file, whose name ends in .py")
    return read_bytes(path, "plug-in", MAX_BYTES)
