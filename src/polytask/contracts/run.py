"""`polytask contract`: runs the properties of its table on every method that a plug-in file registers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import polytask.build  # noqa: F401  (registers the fused forms that training uses)
from polytask.disk.records import convert
from polytask.methods import KIND, METRIC, Registered, options_of, table_of
from polytask.plugins.files import use_plugins
from polytask.recipe.yaml_files import load_yaml
from polytask.types import UserError, unknown

MODULES = {
    "adapter": "adapters",
    "head": "heads",
    "loss": "losses",
    "regularizer": "regularizers",
    "sampler": "samplers",
    "policy": "policies",
    "optimizer": "optimizers",
    METRIC: "metrics",
    KIND: "kinds",
}
Property = Any
"""A function that raises an AssertionError. What it takes depends on the table."""


@dataclass(frozen=True)
class Outcome:
    """Whether a property holds for a method."""

    table: str
    name: str
    claim: str
    """The property, as one sentence."""
    problem: str | None
    """What does not hold; None if the property holds."""


def run_contracts(plugin: str | Path, settings: Iterable[str] = (), trust_plugins: bool = False) -> Iterator[Outcome]:
    """Checks every method of a plug-in file, and yields whether each property of its table holds.

    `settings` are options for the methods, as `NAME.OPTION=VALUE`; the default options are used for the others.
    """
    (loaded,) = use_plugins([plugin], trust_plugins)
    options = _options(loaded.methods, settings)
    for entry in loaded.methods:
        yield from check(entry, options.get(entry.name, {}))


def check(entry: Registered, options: dict[str, Any]) -> Iterator[Outcome]:
    """Checks one method with these options."""
    module = import_module(f"polytask.contracts.{MODULES[entry.table]}")
    method = partial(entry.method, **options) if options else entry.method
    subjects = {"": method}
    if entry.table in ("head", "loss"):
        subjects = module.subjects(getattr(entry.method, "kinds", ()), method)
    elif entry.table == "regularizer":
        subjects = {"": module.Subject(method)}
    elif entry.table == KIND:
        kind = table_of(KIND)[entry.name]
        subjects = {"": module.Subject(kind, tuple(kind.examples))}
    for holds in module.PROPERTIES:
        claim = " ".join((holds.__doc__ or holds.__name__).split("\n\n")[0].split())
        found = ((where, problem_of(holds, subject)) for where, subject in subjects.items())
        problem = next((f"{where}: {text}" if where else text for where, text in found if text is not None), None)
        yield Outcome(entry.table, entry.name, claim, problem)


def problem_of(holds: Property, subject: Any) -> str | None:
    """Why a property does not hold for a method; None if it does."""
    try:
        with torch.random.fork_rng(devices=[]):
            holds(subject)
    except AssertionError as error:
        return str(error) or f"{holds.__name__} does not hold"
    except UserError as error:
        return f"it cannot be used with a tiny encoder: {error}; choose smaller options (--set NAME.OPTION=VALUE)"
    except Exception as error:  # the user's method may raise anything
        return f"it raised {type(error).__name__}: {error}"
    return None


def _options(methods: Iterable[Registered], settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    known = {entry.name: entry for entry in methods}
    chosen: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        name, dot, option = key.partition(".")
        where = f"--set {setting}"
        if not equals or not dot:
            raise UserError(f"{where}: must be NAME.OPTION=VALUE, as in {next(iter(known))}.size=8")
        if name not in known:
            raise UserError(unknown(where, name, known, "method", " in the plug-in"))
        kinds = {one.name: one.kind for one in options_of(known[name].method)}
        if option not in kinds:
            raise UserError(unknown(where, option, kinds, "option", f" of {name}"))
        chosen.setdefault(name, {})[option] = convert(load_yaml(text, where), kinds[option], where)
    return chosen
