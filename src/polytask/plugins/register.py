"""`polytask.register`: puts a user's method into a table, after it was checked against the table's interface."""

import inspect
import re
from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from polytask.disk.records import check_kind
from polytask.methods import (
    KIND,
    METRIC,
    REGISTERED,
    TABLES,
    Registered,
    current_origin,
    form_of_class,
    name_of,
    options_of,
    put,
    table_of,
)
from polytask.types import UserError, unknown

NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
BASES = {
    "adapter": ("polytask.adapters.base", "Adapter"),
    "head": ("polytask.heads.base", "Head"),
    "loss": ("polytask.losses.base", "Loss"),
    "regularizer": ("polytask.regularizers.base", "Regularizer"),
    "policy": ("polytask.policies.base", "Policy"),
    "optimizer": ("torch.optim", "Optimizer"),
    "kind": ("polytask.kinds.base", "Kind"),
}
"""The class that the methods of a table derive from. Samplers have a protocol instead (`SAMPLER`)."""
SAMPLER = ("next_step", "observe", "state_dict", "load_state_dict", "stages")
ARGUMENTS = {
    "head": ("task", "labels", "hidden"),
    "loss": ("labels", "counts"),
    "optimizer": ("params",),
}
"""What a method is created with; in the other tables it is `context`."""
FORMS = ("classes", "yes_no", "score", "multilabel")
"""The built-in kinds whose form the kind of a plug-in can have: one row of numbers for each row of a file."""
GROUP_OPTIONS = ("lr", "weight_decay")
"""The options that every optimizer has: training sets them for each group of parameters."""
collected: ContextVar[list[Registered] | None] = ContextVar("collected", default=None)
"""The methods of the plug-in file that is being loaded; None: a method goes into its table at once."""


def register(table: str, name: str, method: Callable[..., Any]) -> None:
    """Makes a class of yours available in recipes: `polytask.register("adapter", "mine", Mine)`.

    Args:
        table: adapter, head, loss, regularizer, sampler, policy, optimizer, metric or kind.
        name: The name in a recipe: lower-case letters, digits and _.
        method: The class, which derives from the base class of the table. Its keyword arguments are the options in a
            recipe. A metric is a function of the true and the predicted labels. A kind has no options.
    """
    where = f"register({table!r}, {name!r}, ...)"
    if table not in (*TABLES, METRIC, KIND):
        raise UserError(unknown("register", table, (*TABLES, METRIC, KIND), "table"))
    if not NAME.fullmatch(name):
        raise UserError(f"{where}: a name must have 1 to 64 lower-case letters, digits and _, and start with a letter")
    match table:
        case "metric":
            check_metric(method, where)
        case "kind":
            check_kind_class(method, where)
        case _:
            check_method(table, method, where)
    if is_built_in(table, name):
        raise UserError(f"{where}: polytask has its own {table} of this name; choose another name")
    entry = Registered(table, name, method, current_origin(method))
    entries = collected.get()
    if entries is None:
        check_free(entry)
        put(entry)
    elif any((other.table, other.name) == (table, name) for other in entries):
        raise UserError(f"{where}: the file registers this name twice; choose another name for one of them")
    else:
        entries.append(entry)


def check_free(entry: Registered) -> None:
    """Refuses a name that another file, package or class has; the same one may register its name again."""
    other = REGISTERED.get((entry.table, entry.name))
    if other is not None and (other.origin.kind, other.origin.name) != (entry.origin.kind, entry.origin.name):
        raise UserError(
            f"register({entry.table!r}, {entry.name!r}, ...): the name is taken by {other.origin}, and {entry.origin} "
            "registers it too; rename one of them"
        )


def is_built_in(table: str, name: str) -> bool:
    if table == METRIC:
        return name in import_module("polytask.evaluation.metrics").KNOWN_METRICS
    return name in table_of(table) and (table, name) not in REGISTERED


# --- checks -----------------------------------------------------------------------------------------------------------
def check_metric(function: Callable[..., Any], where: str) -> None:
    if not callable(function) or inspect.isclass(function):
        raise UserError(f"{where}: a metric must be a function of (true labels, predicted labels), found {function!r}")
    _check_call(function, ("gold", "predicted"), where)


def check_kind_class(kind: Any, where: str) -> None:
    _check_base(KIND, kind, where)
    _check_call(kind, (), where)
    if form_of_class(kind) not in FORMS:
        raise UserError(
            f"{where}: {kind.__name__}.form must be the kind whose form the labels have: one of {', '.join(FORMS)}; "
            f"found {kind.form!r}"
        )


def check_method(table: str, method: Any, where: str) -> None:
    """Raises a UserError that says what of the table's interface is missing."""
    _check_base(table, method, where)
    if table in ("head", "loss"):
        _check_label_kinds(table, method, where)
    _check_call(method, ARGUMENTS.get(table, ("context",)), where)
    _check_options(table, method, where)


def _check_base(table: str, method: Any, where: str) -> None:
    if not inspect.isclass(method):
        raise UserError(f"{where}: must be a class, found {method!r}")
    if table == "sampler":
        missing = [name for name in SAMPLER if not hasattr(method, name)]
        if missing:
            raise UserError(
                f"{where}: {method.__name__} has no {', '.join(missing)}; derive it from "
                "polytask.samplers.base.StepSampler"
            )
    else:
        module, base = BASES[table]
        if not issubclass(method, getattr(import_module(module), base)):
            raise UserError(f"{where}: {method.__name__} must derive from {module}.{base}")
    if abstract := getattr(method, "__abstractmethods__", None):
        raise UserError(f"{where}: {method.__name__} must define {', '.join(sorted(abstract))}")


def _check_label_kinds(table: str, method: Any, where: str) -> None:
    kinds = getattr(method, "kinds", None)
    if not isinstance(kinds, tuple) or not kinds or not all(isinstance(kind, str) for kind in kinds):
        raise UserError(
            f"{where}: {method.__name__}.kinds must be the kinds of label that the {table} supports, as in "
            f'("classes", "yes_no"); found {kinds!r}'
        )


def _check_call(method: Callable[..., Any], arguments: tuple[str, ...], where: str) -> None:
    try:
        signature = inspect.signature(method)
    except ValueError:  # a function of C, which does not say what it takes
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UserError(
            f"{where}: {name_of(method)} must take the arguments ({', '.join(arguments)}), and have defaults for its "
            f"options; found {signature}: {error}"
        ) from None


def _check_options(table: str, method: Callable[..., Any], where: str) -> None:
    try:
        options = options_of(method)
    except KeyError as error:
        raise UserError(
            f"{where}: the option {error.args[0]} has no type; annotate it, as in `{error.args[0]}: float = 1.0`"
        ) from None
    except NameError as error:
        raise UserError(f"{where}: the types of its options cannot be read: {error}") from None
    for option in options:
        if option.default is inspect.Parameter.empty:
            raise UserError(f"{where}: the option {option.name} must have a default")
        check_kind(option.kind, f"{where}: the option {option.name}")
    missing = [name for name in GROUP_OPTIONS if name not in {option.name for option in options}]
    if table == "optimizer" and missing:
        raise UserError(f"{where}: {method.__name__} must have the options lr and weight_decay, found no {missing[0]}")
