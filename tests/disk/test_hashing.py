"""Hashes of files."""

import hashlib
from pathlib import Path

from polytask.disk.hashing import sha256


def test_the_hash_is_that_of_the_content(tmp_path: Path) -> None:
    for content in (b"", b"abc", bytes(3_000_000)):
        (tmp_path / "file").write_bytes(content)
        assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()
