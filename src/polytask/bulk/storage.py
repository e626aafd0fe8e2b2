"""Folders and files in any file system that fsspec knows: local paths, s3://, gs://, memory:// ...

A file appears whole or not at all. Local files are written in a hidden folder, flushed and renamed (disk/atomic.py). In
an object store, an upload makes the object appear under its name when the upload is complete, so a file is written
locally and uploaded in one go. In other file systems, it is uploaded under a temporary name and renamed.
"""

import glob
import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from polytask.disk.atomic import atomic_file
from polytask.disk.hidden_folder import clear_leftovers
from polytask.disk.json_files import parse_json
from polytask.types import UserError

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""What fsspec needs for a protocol, to be named in an error."""
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"}
"""Protocols with which an upload is atomic."""
STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "checksum", "mtime", "LastModified", "last_modified", "created")
"""What file systems say about a file that changes with its content; the first one that is there is used."""


@dataclass(frozen=True)
class Storage:
    """A path in a file system: a folder, a file or a pattern. Paths of local files are absolute."""

    system: Any
    path: str

    @classmethod
    def of(cls, url: str) -> "Storage":
        from fsspec.core import url_to_fs  # noqa: PLC0415  (commands that need no other file systems start faster)

        try:
            system, path = url_to_fs(str(Path(url).expanduser()) if "://" not in url else url)
        except ImportError as error:
            package = PACKAGES.get(url.partition("://")[0])
            hint = f"pip install {package}" if package else str(error)
            raise UserError(f"{url}: needs a package that is not installed: {hint}") from error
        except ValueError as error:
            raise UserError(
                f"{url}: {error}; expected a path, or a URL such as s3://BUCKET/FOLDER or file:///FOLDER"
            ) from None
        return cls(system, path.rstrip("/") or path)

    @property
    def protocol(self) -> str:
        protocol = self.system.protocol
        return str(protocol if isinstance(protocol, str) else protocol[0])

    @property
    def is_local(self) -> bool:
        return self.protocol in ("file", "local")

    @property
    def is_in_memory(self) -> bool:
        """Whether only this process can see it."""
        return self.protocol == "memory"

    @property
    def url(self) -> str:
        return self.path if self.is_local else str(self.system.unstrip_protocol(self.path))

    def __truediv__(self, name: str) -> "Storage":
        return Storage(self.system, f"{self.path}/{name}")

    # --- reading ------------------------------------------------------------------------------------------------------
    def found(self) -> "list[Storage]":
        """The files that this is: itself, those in this folder and the folders in it, or those that match the pattern.

        Files whose name or folder starts with `_` or `.` are not data and are left out of a folder.
        """
        if self.system.isfile(self.path):
            return [self]
        if self.system.isdir(self.path):
            inner = {path: path.removeprefix(self.path).split("/")[1:] for path in self.system.find(self.path)}
            paths = [path for path, parts in inner.items() if not any(part[:1] in ("_", ".") for part in parts)]
        else:
            details = self.system.glob(self.path, detail=True) if glob.has_magic(self.path) else {}
            paths = [path for path, detail in details.items() if detail["type"] != "directory"]
        return [Storage(self.system, path) for path in sorted(paths)]

    def is_folder(self) -> bool:
        return bool(self.system.isdir(self.path))

    def is_file(self) -> bool:
        return bool(self.system.isfile(self.path))

    def exists(self) -> bool:
        return bool(self.system.exists(self.path))

    def names(self) -> set[str]:
        """The names of the files in this folder, which may not exist."""
        self.system.invalidate_cache()
        try:
            return {path.rpartition("/")[2] for path in self.system.ls(self.path, detail=False)}
        except FileNotFoundError:
            return set()

    def fingerprint(self) -> tuple[int, str]:
        """The file's size, and what changes with its content: an ETag, a checksum or the time of the last change."""
        with self._readable():
            info = self.system.info(self.path)
        return int(info["size"]), next((str(info[name]) for name in STAMPS if info.get(name) is not None), "")

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file, open for reading."""
        with self._readable():
            file = self.system.open(self.path, "rb")
        with file:
            yield file

    def beginning(self, size: int) -> bytes:
        """The first bytes of the file."""
        with self._readable():
            content: bytes = self.system.cat_file(self.path, start=0, end=size)
        return content

    @contextmanager
    def local_copy(self) -> Iterator[Path]:
        """The file itself if it is local, or a temporary copy of it."""
        if self.is_local:
            yield Path(self.path)
            return
        with tempfile.TemporaryDirectory(prefix="polytask-") as folder:
            copy = Path(folder) / self.path.rpartition("/")[2]
            with self._readable():
                self.system.get_file(self.path, str(copy))
            yield copy

    def read_json(self) -> Any:
        with self.opened() as file:
            return parse_json(file.read(), self.url)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise UserError(f"{self.url}: no such file") from None

    # --- writing ------------------------------------------------------------------------------------------------------
    @contextmanager
    def written(self) -> Iterator[Path]:
        """Yields a local file to write to. It appears here, complete, at the end, and not at all after an error."""
        if self.is_local:
            with atomic_file(Path(self.path)) as file:
                yield file
            return
        with tempfile.TemporaryDirectory(prefix="polytask-") as folder:
            file = Path(folder) / self.path.rpartition("/")[2]
            yield file
            parent, _, name = self.path.rpartition("/")
            self.system.makedirs(parent, exist_ok=True)
            if self.protocol in OBJECT_STORES:
                self.system.put_file(str(file), self.path)
            else:
                temporary = f"{parent}/.{name}.{uuid.uuid4().hex}"
                self.system.put_file(str(file), temporary)
                self.system.mv(temporary, self.path)

    def write_json(self, content: Any) -> None:
        with self.written() as file:
            file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def remove(self) -> None:
        """Removes the file, if it is there."""
        with suppress(FileNotFoundError):
            self.system.rm_file(self.path)

    def clear_leftovers(self) -> None:
        """Removes what killed processes left in this folder while they wrote to it."""
        if self.is_local:
            clear_leftovers(Path(self.path))
