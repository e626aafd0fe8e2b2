"""Whether and why not a place can be written to: one message for each thing that the disk refuses. Writes nothing."""

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
    errno.EISDIR: "give the name of a file",
    errno.ENOTDIR: "a part of the path is a file where a folder is needed",
    errno.EEXIST: "there is a file where a folder is needed",
    errno.ENAMETOOLONG: "a name has 255 bytes at most; choose a shorter one",
    errno.EACCES: "choose a place where you may write",
    errno.EPERM: "choose a place where you may write",
    errno.EROFS: "choose a place on another disk",
    errno.ELOOP: "remove the link",
    errno.EINVAL: "give the name of a regular file",
    **dict.fromkeys(DISK_FULL, "when there is room, run the command again (a run that was training: with --resume)"),
}


class Unwritable(UserError, OSError):
    """The disk refuses the target: it is a folder, is read-only, has too long a name, there is no room ...

    Also an OSError, for callers that handle those.
    """

    def __init__(self, target: Path, reason: str, number: int | None) -> None:
        hint = f"; {HINTS[number]}" if number in HINTS else ""
        super().__init__(f"{target}: cannot be written: {reason}{hint}")
        self.reason, self.errno, self.filename = reason, number, str(target)

    __str__ = ValueError.__str__  # OSError's would be "[Errno 21] ..."


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turns the system's errors into an `Unwritable` that names the target and says what to do."""
    try:
        yield
    except Unwritable:
        raise
    except (OSError, SafetensorError) as error:
        raise unwritable(target, error) from error


def unwritable(target: Path, error: OSError | SafetensorError) -> Unwritable:
    """The error that says why the target cannot be written, and what to do."""
    if isinstance(error, Unwritable):  # of a file inside the target
        return Unwritable(target, error.reason, error.errno)
    if isinstance(error, OSError):
        return Unwritable(target, error.strerror or str(error), error.errno)
    return Unwritable(target, str(error), None)


def check_target(path: Path, folder: bool = False) -> None:
    """Refuses at once what could not be written after hours of work: a folder for a file, too long a name ..."""
    with writing(path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:  # nothing there, or a link to nothing
            return
        if folder and not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "there is a file of this name")
        if not folder and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "there is a folder of this name")
        if not folder and not stat.S_ISREG(mode):  # renaming a file to /dev/null would replace the device
            raise OSError(errno.EINVAL, "not a regular file")


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, where they are missing."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def open_in_place(path: Path, mode: str) -> IO[Any]:
    """Opens a file that grows in its place, as text in UTF-8 or as bytes; a link is refused, not followed."""
    encoding = None if "b" in mode else "utf-8"
    with writing(path):
        return open(
            path, mode, encoding=encoding, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666)
        )
