"""The tables of methods by name, a method's options, and the search for a method that a recipe names.

Methods that are not part of polytask are in the same tables. `polytask.register` puts them there; this file remembers
where each one comes from. Packages that declare the entry point group `polytask.methods` are imported when a recipe
names a method that is not in its table, so that they cost nothing before.
"""

import inspect
import logging
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module, metadata
from typing import Any

from polytask.types import UserError, unknown

log = logging.getLogger(__name__)

ENTRY_POINTS = "polytask.methods"
METRIC = "metric"
KIND = "kind"


class Tables(Mapping[str, dict[str, Callable[..., Any]]]):
    """The tables of methods by name. Each is imported on first use: prediction needs only two of them."""

    locations = {  # noqa: RUF012  (never changed)
        "adapter": ("polytask.adapters", "ADAPTERS"),
        "head": ("polytask.heads", "HEADS"),
        "loss": ("polytask.losses", "LOSSES"),
        "regularizer": ("polytask.regularizers", "REGULARIZERS"),
        "sampler": ("polytask.samplers", "SAMPLERS"),
        "policy": ("polytask.policies", "POLICIES"),
        "optimizer": ("polytask.optim", "OPTIMIZERS"),
    }

    def __getitem__(self, table: str) -> dict[str, Callable[..., Any]]:
        module, name = self.locations[table]
        methods: dict[str, Callable[..., Any]] = getattr(import_module(module), name)
        return methods

    def __iter__(self) -> Iterator[str]:
        return iter(self.locations)

    def __len__(self) -> int:
        return len(self.locations)


TABLES = Tables()
METRICS: dict[str, Callable[..., Any]] = {}
"""The registered metric functions. polytask's own metrics are records in evaluation/metrics.py."""


def table_of(table: str) -> dict[str, Any]:
    """The methods of a table, the registered metrics, or the kinds of labels, which are objects."""
    if table == KIND:
        kinds: dict[str, Any] = import_module("polytask.kinds.table").KINDS
        return kinds
    return METRICS if table == METRIC else TABLES[table]


# --- options ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Option:
    """One option of a method, from its constructor's signature."""

    name: str
    kind: Any
    default: Any


def options_of(method: Callable[..., Any]) -> list[Option]:
    """The options of a method: its constructor's arguments that are keyword-only or have a default."""
    init = method.__init__ if inspect.isclass(method) else method
    hints = typing.get_type_hints(init, include_extras=True)
    parameters = inspect.signature(method).parameters.values()
    return [Option(p.name, hints[p.name], p.default) for p in parameters if is_option(p)]


def is_option(p: inspect.Parameter) -> bool:
    return p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty)


# --- methods that are not part of polytask ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Origin:
    """Where a registered method comes from."""

    kind: typing.Literal["file", "package", "python"]
    name: str
    """The plug-in's file name, the package with its version, or the class."""
    version: str
    """What changes with the code: the SHA-256 of the file, or the source code; of a package, with its version."""

    def __str__(self) -> str:
        described = {"file": f"plug-in {self.name}", "package": f"package {self.name}", "python": f"Python {self.name}"}
        return described[self.kind]


@dataclass(frozen=True)
class Registered:
    """A method in a table that is not part of polytask."""

    table: str
    name: str
    method: Callable[..., Any]
    origin: Origin


REGISTERED: dict[tuple[str, str], Registered] = {}
"""By table and name."""
_loading: ContextVar[Origin | None] = ContextVar("loading", default=None)
"""The file or package that is being imported, which everything that is registered meanwhile comes from."""


def put(entry: Registered) -> None:
    table_of(entry.table)[entry.name] = _kind(entry) if entry.table == KIND else entry.method
    REGISTERED[entry.table, entry.name] = entry


def _kind(entry: Registered) -> Any:
    kind = entry.method()
    kind.name, kind.form, kind.version = entry.name, form_of_class(entry.method), entry.origin.version
    return kind


def form_of_class(kind: Any) -> str | None:
    """The built-in kind whose form a user's kind has: the one it names, or the one it derives from."""
    form: str | None = getattr(kind, "form", None) or getattr(kind, "name", None)
    return form


def form_of(kind: Any) -> Any:
    """The built-in kind whose form a kind has, which may be that of a plug-in."""
    entry = REGISTERED.get((KIND, kind))
    return kind if entry is None else form_of_class(entry.method)


def remove(entry: Registered) -> None:
    del table_of(entry.table)[entry.name], REGISTERED[entry.table, entry.name]


@contextmanager
def loading(origin: Origin) -> Iterator[None]:
    """What is registered inside the block comes from this file or package."""
    token = _loading.set(origin)
    try:
        yield
    finally:
        _loading.reset(token)


def current_origin(method: Callable[..., Any]) -> Origin:
    """Where a method that is registered now comes from."""
    if (origin := _loading.get()) is not None:
        if origin.kind == "file":
            return origin
        # The code of a package that is being worked on changes without its version.
        return replace(origin, version=f"{origin.version}\n{source_of(inspect.getmodule(method))}")
    return Origin("python", f"{method.__module__}.{name_of(method)}", source_of(method))


def name_of(method: Callable[..., Any]) -> str:
    """The name of a class or function; a partial function has none, and is shown as it is."""
    return getattr(method, "__qualname__", None) or repr(method)


def source_of(code: Any) -> str:
    """The source code of a class, function or module; empty if it is not known."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return ""


# --- the search -------------------------------------------------------------------------------------------------------
def find_method(table: str, name: str, where: str) -> Any:
    """The method that a recipe names. Installed packages may add it; an unknown name is an error that lists all."""
    methods = table_of(table)
    if name not in methods:
        load_entry_points()
    if name not in methods:
        raise UserError(unknown(where, name, methods, table))
    return methods[name]


@cache
def load_entry_points() -> None:
    """Imports the installed packages that register methods. A package that fails is named in a warning."""
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        name, version = ("unknown", "") if entry.dist is None else (entry.dist.name, entry.dist.version)
        try:
            with loading(Origin("package", f"{name} {version}".strip(), version)):
                loaded = entry.load()
                if inspect.isfunction(loaded):
                    loaded()
        except (Exception, SystemExit) as error:  # code of others may raise anything
            log.warning(
                "the package %s cannot register its methods (entry point %s = %s): %s: %s; update or uninstall it",
                *(name, entry.name, entry.value, type(error).__name__, error),
            )
