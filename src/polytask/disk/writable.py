"""Checks whether a path can be written to, and turns the operating system's errors into messages with a remedy."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from polytask.types import UserError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
HINTS = {
    errno.EISDIR: "choose the name of a file",
    errno.ENOTDIR: "a part of the path is a file instead of a folder",
    errno.EEXIST: "a part of the path is a file instead of a folder",
    errno.ENAMETOOLONG: "names are limited to 255 bytes; choose a shorter one",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder on another disk",
    errno.ELOOP: "remove the link",
    errno.EINVAL: "choose the name of a regular file",
    **dict.fromkeys(DISK_FULL, "free some space and run the command again (with --resume if it was training)"),
}


class Unwritable(UserError, OSError):
    """The target cannot be written: it is a folder, is read-only, its name is too long, the disk is full ...

    It is also an OSError, for callers that handle those.
    """

    def __init__(self, target: Path, reason: str, number: int | None) -> None:
        hint = f"; {HINTS[number]}" if number in HINTS else ""
        super().__init__(f"{target}: cannot be written: {reason}{hint}")
        self.reason, self.errno, self.filename = reason, number, str(target)

    __str__ = ValueError.__str__  # OSError's would be "[Errno 21] ..."


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turns the operating system's errors into an `Unwritable` that names the target and says what to do."""
    try:
        yield
    except Unwritable:
        raise
    except (OSError, SafetensorError) as error:
        raise unwritable(target, error) from error


def unwritable(target: Path, error: OSError | SafetensorError) -> Unwritable:
    """The error that says why the target cannot be written, and what to do."""
    if isinstance(error, Unwritable):  # about a file inside the target
        return Unwritable(target, error.reason, error.errno)
    if isinstance(error, OSError):
        return Unwritable(target, error.strerror or str(error), error.errno)
    return Unwritable(target, str(error), None)


def check_target(path: Path, folder: bool = False) -> None:
    """Raises at once, before hours of work, if the path cannot be written: it is a folder, its name is too long ..."""
    with writing(path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:  # it does not exist, or is a link to nothing
            return
        if folder and not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "a file with this name exists")
        if not folder and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "a folder with this name exists")
        if not folder and not stat.S_ISREG(mode):  # renaming a file to /dev/null would replace the device
            raise OSError(errno.EINVAL, "it is not a regular file")


def make_folder(path: Path) -> None:
    """Creates a folder and its missing parents."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def open_in_place(path: Path, mode: str) -> IO[Any]:
    """Opens a file that is written in place, as UTF-8 text or as bytes; raises if it is a link."""
    encoding = None if "b" in mode else "utf-8"
    with writing(path):
        return open(
            path, mode, encoding=encoding, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666)
        )
