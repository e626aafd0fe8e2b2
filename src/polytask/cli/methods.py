"""polytask methods: every swap with its options, read from the constructors."""

import inspect
import types
import typing
from typing import Annotated, Any

import typer
from rich.text import Text

import polytask
from polytask.cli.console import plain_console


def run(
    table: Annotated[
        str | None, typer.Argument(help="adapter, head, loss, regularizer, sampler, policy or optimizer.")
    ] = None,
) -> None:
    """List every method a recipe can name, with its options and their defaults.

    Examples:

        polytask methods

        polytask methods head
    """
    if table is not None and table not in polytask.TABLES:
        raise polytask.UserError(f"methods {table}: the tables are {', '.join(polytask.TABLES)}")
    console = plain_console()
    for name, entries in polytask.TABLES.items():
        if table in (None, name):
            console.print(Text(name, style="bold"))
            for method, constructor in entries.items():
                first_line = (inspect.getdoc(constructor) or "").splitlines()[0]
                console.print(Text.assemble("  ", (method, "bold cyan"), "  ", first_line), soft_wrap=True)
                for option in polytask.options_of(constructor):
                    console.print(
                        Text(f"      {option.name}: {kind_name(option.kind)} = {option.default}"), soft_wrap=True
                    )
            if not entries:
                console.print("  (none yet)")


def kind_name(kind: Any) -> str:
    """A type as a recipe's author would say it."""
    if typing.get_origin(kind) is Annotated:
        inner, *bounds = typing.get_args(kind)
        return " ".join([kind_name(inner), *map(str, bounds)])
    if typing.get_origin(kind) is typing.Literal:
        return " | ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " | ".join("None" if inner is type(None) else kind_name(inner) for inner in typing.get_args(kind))
    return getattr(kind, "__name__", str(kind)) if not typing.get_args(kind) else str(kind)
