"""Plug-in files: Python modules next to a recipe that call `polytask.register`.

A file is read once, and what runs are the bytes whose SHA-256 the user has trusted. A process may meet several versions
of a file (in a recipe and in a teacher's model folder): each is loaded once, and the tables have the methods of the
version that is in use.
"""

import hashlib
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from polytask.disk.atomic import atomic_file
from polytask.methods import REGISTERED, Origin, Registered, load_entry_points, loading, put, remove
from polytask.plugins.register import check_free, collected
from polytask.plugins.trust import check_all_trusted, check_trusted, read_plugin, trust_plugin
from polytask.types import UserError

FOLDER = "plugins"
"""The folder of the copies, in a run's folder and in a model folder."""


@dataclass(frozen=True)
class Plugin:
    """A plug-in file that the user has trusted, and the methods that it has registered."""

    name: str
    """The file's name."""
    sha256: str
    source: bytes
    methods: tuple[Registered, ...]


_known: dict[tuple[str, str], Plugin] = {}
"""By name and SHA-256: the plug-ins that this process has loaded."""
_lock = threading.RLock()
"""Held while plug-ins are loaded, and while a model is built with those of its folder."""


# --- loading ----------------------------------------------------------------------------------------------------------
def read_plugins(paths: Iterable[str | Path], trust: bool = False) -> tuple[Plugin, ...]:
    """Loads plug-in files, each once; raises a UserError if one is not trusted. `trust` trusts them first."""
    plugins: dict[str, Plugin] = {}
    files = [Path(path) for path in paths]
    if trust:
        for path in files:
            trust_plugin(path)
    check_all_trusted(files)
    for path in files:
        plugin = _load(path)
        if plugins.setdefault(path.name, plugin).sha256 != plugin.sha256:
            raise UserError(f"{path}: another plug-in has the same file name; rename one of them")
    return tuple(plugins.values())


def _load(path: Path) -> Plugin:
    source = read_plugin(path)
    digest = hashlib.sha256(source).hexdigest()
    check_trusted(path, digest)
    with _lock:
        if (path.name, digest) not in _known:
            entries: list[Registered] = []
            token = collected.set(entries)
            try:
                with loading(Origin("file", path.name, digest)):
                    load_module(path, source, _module_name(path.name, digest))
            except UserError as error:
                raise UserError(f"{path}: {error}") from error
            except (Exception, SystemExit) as error:  # the user's module may raise anything
                advice = _advice(path, error)
                raise UserError(
                    f"{path}: the plug-in cannot be loaded: {type(error).__name__}: {error}{advice}"
                ) from error
            finally:
                collected.reset(token)
            if not entries:
                raise UserError(
                    f"{path}: the plug-in registers nothing; call polytask.register(TABLE, NAME, CLASS) at its end"
                )
            _known[path.name, digest] = Plugin(path.name, digest, source, tuple(entries))
        return _known[path.name, digest]


def _advice(path: Path, error: BaseException) -> str:
    """What to do if the plug-in imports another file of its folder, as a script could."""
    top = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if not top or not any((path.parent / name).exists() for name in (top, f"{top}.py")):
        return ""
    return "; a plug-in cannot import other files of its folder: put their code into it, or make a package of them"


def _module_name(name: str, digest: str) -> str:
    return f"polytask_plugin_{Path(name).stem}_{digest[:8]}"


class _Source(importlib.abc.SourceLoader):
    """Runs the bytes that were read, whatever the file holds by now, and neither reads nor writes compiled files."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path, self.source = path, source

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: Any) -> bytes:
        return self.source


def load_module(path: Path, source: bytes, name: str) -> ModuleType:
    """Runs a Python file as a module of this name."""
    spec = importlib.util.spec_from_loader(name, _Source(path.absolute(), source), origin=str(path))
    assert spec is not None
    assert spec.loader is not None
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up the module they are defined in
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


# --- the tables -------------------------------------------------------------------------------------------------------
def use_plugins(paths: Iterable[str | Path], trust: bool = False) -> tuple[Plugin, ...]:
    """Loads a recipe's plug-ins and puts their methods into the tables, in place of those of other plug-in files."""
    plugins = read_plugins(paths, trust)
    with _lock:
        for entry in [entry for entry in REGISTERED.values() if entry.origin.kind == "file"]:
            remove(entry)
        _put_all(plugins)
    return plugins


def registered_methods(files: Iterable[str | Path] = (), trust_plugins: bool = False) -> tuple[Registered, ...]:
    """All methods that are not part of polytask: those of installed packages, of these plug-in files, and of Python."""
    load_entry_points()
    use_plugins(files, trust_plugins)
    return tuple(REGISTERED.values())


@contextmanager
def using_plugins(plugins: Iterable[Plugin]) -> Iterator[None]:
    """The tables have the methods of these plug-ins inside the block, and afterwards what they had before."""
    with _lock:
        wanted = tuple(plugins)
        before = [entry for entry in REGISTERED.values() if entry.origin.kind == "file"]
        added = [entry for plugin in wanted for entry in plugin.methods if entry not in before]
        names = {(entry.table, entry.name) for entry in added}
        replaced = [entry for entry in before if (entry.table, entry.name) in names]
        for entry in replaced:
            remove(entry)
        try:
            _put_all(wanted)
            yield
        finally:
            for entry in added:
                if REGISTERED.get((entry.table, entry.name)) is entry:
                    remove(entry)
            for entry in replaced:
                put(entry)


def _put_all(plugins: Iterable[Plugin]) -> None:
    for plugin in plugins:
        for entry in plugin.methods:
            check_free(entry)
            put(entry)


# --- copies and fingerprints ------------------------------------------------------------------------------------------
def copy_plugins(plugins: Iterable[Plugin], folder: Path) -> tuple[Path, ...]:
    """Writes the files that were loaded into `folder/plugins`; returns their paths."""
    copies = []
    for plugin in plugins:
        copies.append(folder / FOLDER / plugin.name)
        with atomic_file(copies[-1]) as file:
            file.write_bytes(plugin.source)
    return tuple(copies)


def method_versions(plugins: Iterable[Plugin], named: Iterable[str]) -> dict[str, str]:
    """What a run's result depends on besides polytask: the SHA-256 of each plug-in file, and the origin of each method
    from a package or from Python that is called like one of the `named`."""
    names = set(named)
    others = {
        f"{entry.table} {entry.name}": f"{entry.origin}, source {_digest(entry.origin.version)}"
        for entry in REGISTERED.values()
        if entry.origin.kind != "file" and entry.name in names
    }
    return {plugin.name: plugin.sha256 for plugin in plugins} | others


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def read_copies(folder: Path, hashes: Mapping[str, str], trust: bool = False) -> tuple[Plugin, ...]:
    """Loads the plug-ins of a model folder, whose names and SHA-256 are known."""
    for name, digest in hashes.items():
        path = folder / FOLDER / name
        if Path(name).name != name:
            raise UserError(f"{folder}: plugins: must be file names, found {name!r:.80}")
        if hashlib.sha256(read_plugin(path)).hexdigest() != digest:
            raise UserError(f"{path}: damaged: its SHA-256 differs from the one in tasks.json")
    return read_plugins([folder / FOLDER / name for name in hashes], trust)
