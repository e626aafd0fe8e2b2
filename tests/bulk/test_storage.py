"""Files in any file system appear whole or not at all."""

import os
import sys
from pathlib import Path

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from polytask.bulk.storage import Storage
from polytask.types import UserError


@pytest.mark.parametrize("scheme", ["path", "file", "memory"])
def test_files_are_written_found_and_read(scheme: str, tmp_path: Path) -> None:
    url = {"path": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory://{tmp_path}"}[scheme]
    folder = Storage.of(f"{url}/")
    for name in ("b.parquet", "a.parquet", "_plan.json", ".hidden", "inner/c.parquet", "inner/_x/d.parquet"):
        (folder / name).write_json([name])
    assert [file.path.removeprefix(folder.path) for file in folder.found()] == [
        "/a.parquet",
        "/b.parquet",
        "/inner/c.parquet",
    ]
    assert [file.read_json() for file in Storage.of(f"{url}/*.parquet").found()] == [["a.parquet"], ["b.parquet"]]
    assert Storage.of(f"{url}/none*.parquet").found() == Storage.of(f"{url}/none.parquet").found() == []
    file = folder / "a.parquet"
    assert Storage.of(file.url).read_json() == ["a.parquet"]
    size, stamp = file.fingerprint()
    assert size == len('[\n "a.parquet"\n]\n')
    file.write_json(["other"])
    assert file.fingerprint() != (size, stamp)
    with file.local_copy() as copy:
        assert "other" in copy.read_text()
    file.remove()
    file.remove()
    assert not file.exists()
    assert (Storage.of(f"{url}/nothing")).names() == set()


@pytest.mark.parametrize("scheme", ["path", "memory", "other"])
def test_after_an_error_there_is_no_file(scheme: str, tmp_path: Path) -> None:
    file = Storage.of(f"memory://{tmp_path}/x/part" if scheme == "memory" else f"{tmp_path}/x/part")
    if scheme == "other":  # a file system that is not known to upload whole files: they are renamed
        file = Storage(DirFileSystem(str(tmp_path), LocalFileSystem()), "x/part")

    def write(text: str, error: Exception | None) -> None:
        with file.written() as path:
            path.write_text(text)
            if error is not None:
                raise error

    with pytest.raises(RuntimeError):
        write("half", RuntimeError())
    assert not file.exists()
    write("whole", None)
    with file.opened() as content:
        assert content.read() == b"whole"
    assert Storage(file.system, file.path.rpartition("/")[0]).names() == {"part"}
    if scheme != "memory":
        assert os.listdir(tmp_path / "x") == ["part"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/*.parquet", "s3://bucket/.*: needs a package that is not installed: pip install s3fs"),
        ("gs://bucket", "gs://bucket: needs a package that is not installed: pip install gcsfs"),
        ("nope://x", "nope://x: Protocol not known: nope; expected a path, or a URL such as s3://"),
    ],
)
def test_what_a_url_needs(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=message):
        Storage.of(url)
