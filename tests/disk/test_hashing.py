"""Hashes of files: a remembered one is that of the current content."""

import hashlib
import os
from pathlib import Path

import pytest

from polytask.disk import hashing
from polytask.disk.hashing import remembered_sha256


def test_a_file_is_read_again_only_if_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    read: list[Path] = []
    plain = hashing.sha256
    monkeypatch.setattr(hashing, "sha256", lambda path: (read.append(path), plain(path))[1])
    monkeypatch.setattr(hashing, "SETTLED_SECONDS", -1)
    file.write_bytes(b"one")
    assert [remembered_sha256(file), remembered_sha256(file)] == [hashlib.sha256(b"one").hexdigest()] * 2
    assert len(read) == 1
    os.utime(file, ns=(1, 1))  # the times of a file can be set, but not the time of that change
    assert remembered_sha256(file) == hashlib.sha256(b"one").hexdigest()
    assert len(read) == 2
    os.replace(_written(tmp_path / "other", b"two"), file)
    assert remembered_sha256(file) == hashlib.sha256(b"two").hexdigest()


def test_a_file_that_was_just_written_is_read_every_time(tmp_path: Path) -> None:
    file = _written(tmp_path / "weights", b"one")
    assert remembered_sha256(file) == hashlib.sha256(b"one").hexdigest()
    assert str(file) not in hashing._known


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
