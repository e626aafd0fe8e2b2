"""The fields of a dataclass, each with its type, its default and the docstring under it."""

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterator
from typing import Any

from reference_pages.markdown import recipe_type, shown


@dataclasses.dataclass(frozen=True)
class Field:
    """A field as it is shown in a row of a table."""

    name: str
    kind: str
    default: str
    text: str


def fields(record: type, kind: Callable[[Any], str] = recipe_type) -> Iterator[Field]:
    """Yields the fields of a dataclass."""
    hints = typing.get_type_hints(record, include_extras=True)
    texts = {name: text for cls in reversed(record.__mro__[:-1]) for name, text in docstrings(cls).items()}
    for field in dataclasses.fields(record):
        default: Any = "required"
        if field.default is not dataclasses.MISSING:
            default = shown(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
            # An object without a readable form would be shown with its address, which changes with every process.
            default = f"a new `{type(made).__name__}`" if " object at 0x" in repr(made) else shown(made)
        yield Field(field.name, kind(hints[field.name]), default, texts.get(field.name, ""))


def docstrings(record: type) -> dict[str, str]:
    """Returns the docstring under each field in the source of a class, by field name."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        ast.unparse(node.target): inspect.cleandoc(str(following.value.value))
        for node, following in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(node, ast.AnnAssign)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }
