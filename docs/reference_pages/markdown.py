"""Types, defaults, docstrings and tables as Markdown."""

import dataclasses
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any


def type_name(hint: Any) -> str:
    """Returns a type as it is written in code, without module names."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, str):
        return re.sub(r"\b(?:\w+\.)+(?=\w)", "", hint)
    if hint is type(None) or hint is None:
        return "None"
    if hint is Ellipsis:
        return "..."
    if isinstance(hint, list):  # the arguments of a Callable
        return f"[{', '.join(map(type_name, hint))}]"
    if origin is typing.Annotated:
        return " ".join([type_name(inner[0]), *map(str, inner[1:])])
    if origin is typing.Literal:
        return " | ".join(map(str, inner))
    if origin in (types.UnionType, typing.Union):
        return " | ".join(map(type_name, inner))
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(type_name, inner))}]" if inner else name


def recipe_type(hint: Any) -> str:
    """Describes the values of this type in a recipe. None is not shown: it means that the field is left out."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(recipe_type(part) for part in inner if part is not type(None))
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is typing.Annotated and typing.get_origin(inner[0]) is typing.Literal:  # a choice open to plug-ins
        return f"{recipe_type(inner[0])}, or that of a plug-in"
    if origin is tuple:
        return f"list of {plural(recipe_type(inner[0]))}" if inner[-1] is Ellipsis else f"list of {len(inner)} numbers"
    if origin is not None and issubclass(origin, Mapping):
        return "mapping"
    if dataclasses.is_dataclass(hint):
        return "method" if {field.name for field in dataclasses.fields(hint)} == {"name", "options"} else "mapping"
    return type_name(hint)


def plural(kind: str) -> str:
    return "methods" if kind == "method" else kind


def shown(default: Any) -> str:
    """Returns a default as it is written in a recipe."""
    if default is None or default == {} or default == ():
        return ""
    if hasattr(default, "name") and hasattr(default, "options"):  # a method and its options
        return f"`{default.name}`"
    if dataclasses.is_dataclass(default):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`[{', '.join(shown(value).strip('`') for value in default)}]`"
    return f"`{default}`" if default != "required" else "required"


def markdown(text: str) -> str:
    """Returns a docstring as Markdown: special characters outside of code are escaped."""
    parts = re.split(r"(```.*?```|`[^`]*`|(?m:^    .*$))", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts[::2]]
    joined = "".join(parts)
    return re.sub(r"(?m)(?<=[^\n])\n(Papers?:)", r"\n\n\1", joined)


def table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """Returns the lines of a Markdown table; none if there are no rows."""
    lines = [f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    if not lines:
        return []
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines, ""]
