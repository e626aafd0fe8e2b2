"""The table of fused forms: faster implementations of definitions.

A definition says what is computed, for any device. A fused form computes the same faster, where it can, and calls the
definition where it cannot. `kernels/` fills the table when it is imported; without it, the definitions run.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")

FUSED_FORMS: dict[Any, Any] = {}
"""Definition -> its fused form."""


def fusible(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function or method a definition: a call goes to its fused form if there is one."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        form: Callable[P, R] = FUSED_FORMS.get(call, function)
        return form(*args, **kwargs)

    return call


def definition_of(function: Callable[P, R]) -> Callable[P, R]:
    """What a `fusible` function computes without its fused form."""
    return cast("Callable[P, R]", vars(function)["__wrapped__"])


@contextmanager
def only_definitions() -> Iterator[None]:
    """Inside the context, definitions run as they are, in all threads: an exported graph is made of them."""
    forms = dict(FUSED_FORMS)
    FUSED_FORMS.clear()
    try:
        yield
    finally:
        FUSED_FORMS.update(forms)


def fuses(definition: object) -> Callable[[F], F]:
    """Registers a fused form of a `fusible` function, or of a class of layer adapters, which the fused layer uses."""

    def register(form: F) -> F:
        assert definition not in FUSED_FORMS, f"{definition} has a fused form already"
        FUSED_FORMS[definition] = form
        return form

    return register


def fused_form(definition: object) -> Any:
    """The fused form of a definition, or None. A subclass may override a slot, so it has no form but its own."""
    return FUSED_FORMS.get(definition)
