"""The lock of a run's folder: one process at a time, and the same process as often as it likes."""

import fcntl
import os
import socket
import threading
from pathlib import Path

import pytest

from polytask.disk import lock
from polytask.disk.lock import LOCK, FolderLock, wait_until_free
from polytask.types import UserError


def is_locked(folder: Path) -> bool:
    with (folder / LOCK).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    with FolderLock(tmp_path) as held:
        held.acquire()  # a second time: nothing happens
        assert is_locked(tmp_path)
        assert (tmp_path / LOCK).read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    assert not is_locked(tmp_path)


def test_the_same_process_may_lock_again(tmp_path: Path) -> None:
    with FolderLock(tmp_path), FolderLock(tmp_path):
        assert is_locked(tmp_path)


def test_another_process_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(f"process 1 on {socket.gethostname()}")
        other.flush()
        with pytest.raises(UserError, match=r"process 1 on .* is working on this run; wait for it, stop it, or"):
            FolderLock(tmp_path).acquire()
        monkeypatch.setattr(lock, "RELEASE_SECONDS", 0.1)
        (tmp_path / LOCK).write_text("")
        with pytest.raises(UserError, match="another process is working on this run"):
            FolderLock(tmp_path).acquire()


def test_waiting_for_a_lock_of_another_process(tmp_path: Path) -> None:
    assert wait_until_free(tmp_path / "missing", 60)
    with (tmp_path / LOCK).open("w") as other:
        assert wait_until_free(tmp_path, 60)
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not wait_until_free(tmp_path, 0.1)
        timer = threading.Timer(0.1, fcntl.flock, (other, fcntl.LOCK_UN))
        timer.start()
        assert wait_until_free(tmp_path, 60)
        timer.join()
    assert (tmp_path / LOCK).read_text() == ""


def test_a_disk_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with FolderLock(tmp_path):
        assert "this disk does not support locks" in caplog.text
