"""Files and folders that appear whole or not at all: written in a hidden folder, flushed to the disk, and renamed.

A process that is killed leaves at most a hidden folder beside the target, which the next write of the same target
removes. Two processes may write the same target at once: the last one wins. Files get the mode that the user's umask
gives to new files. A target that is a link is replaced, not followed. What the disk refuses is an `Unwritable` error
that names the target. Knows nothing of what is written.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from polytask.disk.hidden_folder import discard, fresh_folder, hidden_name
from polytask.disk.writable import DISK_FULL, check_target, unwritable, writing


def flush(path: Path, file_mode: int | None = None) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk; sets a file's mode before."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        mode = os.fstat(handle).st_mode
        # Libraries make files of their own that only the user can read (safetensors does).
        if file_mode is not None and stat.S_ISREG(mode) and stat.S_IMODE(mode) != file_mode:
            os.fchmod(handle, file_mode)
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _filling(place: Path, target: Path) -> Iterator[None]:
    """Errors about what is written in the hidden folder name the target. Others stay: callers also read files."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if _is_about(error, place):
            raise unwritable(target, error) from error
        raise


def _is_about(error: OSError | SafetensorError, place: Path) -> bool:
    if isinstance(error, SafetensorError):
        return True
    if error.filename is not None:
        return str(error.filename).startswith(str(place))
    return error.errno in DISK_FULL


# --- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """An empty file to write to; it becomes `path` when nothing went wrong, and is gone when something did.

    Missing folders are made. A library may replace the file by one of its own.
    """
    check_target(path)
    with writing(path):
        place = fresh_folder(path, mode=0o700)
    try:
        beside = place / path.name
        with writing(path):
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            mode = stat.S_IMODE(os.fstat(handle).st_mode)
            os.close(handle)
        with _filling(place, path):
            yield beside
        with writing(path):
            flush(beside, mode)
            beside.replace(path)
            flush_folder(path)
    finally:
        discard(place)


def write_atomically(path: Path, text: str) -> None:
    """A text file, in UTF-8; one that was there is replaced."""
    with atomic_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


# --- folders ----------------------------------------------------------------------------------------------------------


def never(_: Path) -> bool:
    return False


@contextmanager
def atomic_folder(target: Path, stays: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """An empty folder beside `target` to fill; it becomes `target` when nothing went wrong, and is gone otherwise.

    A target that is there already is replaced, unless `stays` says that it is good.
    """
    check_target(target, folder=True)
    with writing(target):
        fresh = fresh_folder(target)
    try:
        with _filling(fresh, target):
            yield fresh
        with writing(target):
            put_in_place(fresh, target, stays or never)
    finally:
        discard(fresh)


def put_in_place(fresh: Path, target: Path, stays: Callable[[Path], bool]) -> None:
    """Flushes the folder and gives it the target's name, unless there is a target that stays."""
    file_mode = stat.S_IMODE(fresh.stat().st_mode) & 0o666
    for path in (*fresh.rglob("*"), fresh):
        flush(path, file_mode)
    while not stays(target):
        old = hidden_name(target)
        with suppress(FileNotFoundError):  # a rename cannot replace a full folder
            target.rename(old)
        try:
            fresh.rename(target)
        except OSError as error:
            # Another process put its folder there just now: one that stays is as good, another is replaced in turn.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not stays(target):
                with suppress(OSError):
                    old.rename(target)
                raise
            _remove(old)
            continue
        flush_folder(target)  # the new one has its name on the disk before the old one goes
        _remove(old)
        break
    discard(fresh)


def flush_folder(path: Path) -> None:
    """Waits until a new name is on the disk. The folder it is in may be a link."""
    flush(path.parent.resolve())


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
