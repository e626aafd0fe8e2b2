"""Files and folders that appear whole or not at all: written beside, flushed to the disk, and renamed.

A process that is killed leaves at most something hidden beside the target, which the next write of the same target
overwrites or clears away. Knows nothing of what is in them.
"""

import glob
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LEFTOVER_SECONDS = 24 * 3600.0  # a folder that nobody has written to for a day belongs to a process that is gone


def flush(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it becomes `path` when nothing went wrong, and is gone when something did."""
    beside = path.with_name(f".{path.name}.part")
    try:
        yield beside
        flush(beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_whole(path: Path, text: str) -> None:
    """A text file, in UTF-8; one that was there is replaced."""
    with whole_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


# --- folders ----------------------------------------------------------------------------------------------------------


def never(_: Path) -> bool:
    return False


@contextmanager
def whole_folder(target: Path, stays: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """An empty folder beside `target` to fill; it becomes `target` when nothing went wrong, and is gone otherwise.

    Without `stays` the target is one process's own, and one that was there is replaced. With it, several processes
    may make the same target at once: of a target that is there already `stays` says whether it is good and stays.
    """
    fresh = fresh_folder(target, shared=stays is not None)
    try:
        yield fresh
        put_in_place(fresh, target, stays or never)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def fresh_folder(target: Path, shared: bool) -> Path:
    """An empty hidden folder beside `target`; what killed processes left of the same target is cleared away."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 32}"):
        if not shared or time.time() - _last_written(leftover) > LEFTOVER_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
    fresh = _hidden(target)
    fresh.mkdir()
    return fresh


def put_in_place(fresh: Path, target: Path, stays: Callable[[Path], bool]) -> None:
    """Flushes the folder and gives it the target's name, unless there is a target that stays."""
    for path in (*fresh.rglob("*"), fresh):
        flush(path)
    if not stays(target):
        old = _hidden(target)
        with suppress(FileNotFoundError):  # a rename cannot replace a full folder
            target.rename(old)
        try:
            fresh.rename(target)
        except OSError:
            if not stays(target):  # otherwise another process was faster, and its folder is as good
                raise
        flush(target.parent)  # the new one has its name on the disk before the old one goes
        shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(fresh, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Removes what killed processes left of any target in a folder that no other process writes to now."""
    for leftover in folder.glob(f".*.{'[0-9a-f]' * 32}"):
        shutil.rmtree(leftover, ignore_errors=True)


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}")


def _last_written(folder: Path) -> float:
    """When anything in it was written last: a folder's own time stands still while its files grow."""
    latest = 0.0
    for path in (folder, *folder.rglob("*")):
        with suppress(OSError):  # its process is just clearing it away
            latest = max(latest, path.stat().st_mtime)
    return latest
