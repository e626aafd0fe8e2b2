"""Writes the reference pages of the documentation from the code: `python docs/generate.py`.

docs/reference/ holds four pages: the fields of a recipe, the methods, the commands and the Python API. They are
committed, so that they can be read without building the site; a test checks that they are up to date.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

import polytask
from polytask.cli import methods
from polytask.cli.main import make_app

FOLDER = Path(__file__).parent / "reference"
GENERATED = "<!-- Generated from the code by `python docs/generate.py`; do not edit. -->\n"


# --- text -------------------------------------------------------------------------------------------------------------
def type_name(hint: Any) -> str:
    """A type as one writes it, without the modules it comes from."""
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
    """What a recipe may hold in a field of this type; None is what leaving the field out means, and is not shown."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(recipe_type(part) for part in inner if part is not type(None))
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in inner)
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
    """A default as a recipe writes it."""
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
    """A docstring as Markdown: what stands outside of code is shown as it is."""
    parts = re.split(r"(```.*?```|`[^`]*`|(?m:^    .*$))", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts[::2]]
    joined = "".join(parts)
    return re.sub(r"(?m)(?<=[^\n])\n(Papers?:)", r"\n\n\1", joined)


def table(head: list[str], rows: Iterator[list[str]]) -> list[str]:
    """A Markdown table, or nothing where there are no rows."""
    lines = [f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    if not lines:
        return []
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines, ""]


# --- the fields of a recipe -------------------------------------------------------------------------------------------
RECIPE = """\
# Recipe fields

A recipe is one YAML file that describes a whole run.
Methods are chosen by name.
They are the `adapter`, `regularizers`, `sampler`, `policy` and `optimizer`, and the `head` and `loss` of each task.
Write the name alone, `sampler: round_robin`, or the name and its options, `optimizer: {name: adamw, lr: 3e-5}`.
[Methods](methods.md) lists them all, and so does `polytask methods`.
An unknown field, method or option is an error, and the error message lists the valid ones.

A recipe can extend another one with `base: OTHER.yaml`.
Fields of `train:` and of each task are then merged one by one, and every other field replaces that of the base.
`tasks: {NAME: null}` removes a task.
Relative paths in the base are relative to the base's own folder.

`--set FIELD=VALUE` changes one field from the command line: `--set train.epochs=5 --set optimizer.lr=3e-5`.
"""


def recipe_page() -> str:
    hints = typing.get_type_hints(polytask.Recipe)
    parts = [
        (
            "The recipe",
            polytask.Recipe,
            "Only `tasks` is required. Relative file names are relative to the recipe's folder.",
        ),
        (
            "A task: `tasks: {NAME: {...}}`",
            typing.get_args(hints["tasks"])[1],
            "`kind`, `text`, `train` and `dev` are required, and `label` too unless the kind is `text`.",
        ),
        ("Training: `train: {...}`", hints["train"], "All fields are optional."),
        (
            "Adding tasks: `add: {...}`",
            typing.get_args(hints["add"])[0],
            "Read by `polytask add-task RUN RECIPE` only: see [adding a task](../adding-a-task.md).",
        ),
    ]
    lines = [GENERATED + RECIPE]
    for title, record, intro in parts:
        rows = [field for field in fields(record) if not (title.startswith("A task") and field.name == "name")]
        lines += [f"## {title}", "", *intro.replace(". ", ".\n").split("\n"), ""]
        lines += table(
            ["field", "type", "default", "description"],
            ([f"`{f.name}`", f.kind, f.default, markdown(f.text)] for f in rows),
        )
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a record, as a row of a table shows it."""

    name: str
    kind: str
    default: str
    text: str


def fields(record: type, kind: Callable[[Any], str] = recipe_type) -> Iterator[Field]:
    """The fields of a dataclass, with the docstring under each."""
    hints = typing.get_type_hints(record, include_extras=True)
    texts = {name: text for cls in reversed(record.__mro__[:-1]) for name, text in docstrings(cls).items()}
    for field in dataclasses.fields(record):
        default: Any = "required"
        if field.default is not dataclasses.MISSING:
            default = shown(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            default = shown(field.default_factory())
        yield Field(field.name, kind(hints[field.name]), default, texts.get(field.name, ""))


def docstrings(record: type) -> dict[str, str]:
    """Field name -> the string that stands under it in the class's source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        ast.unparse(node.target): inspect.cleandoc(str(following.value.value))
        for node, following in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(node, ast.AnnAssign)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }


# --- the methods ------------------------------------------------------------------------------------------------------
METHODS = """\
# Methods

Every method a recipe can choose, with its options and their defaults.
`polytask methods NAME` prints the same for one method.
The [guide to the methods](../methods.md) explains how the methods relate, and where they differ from their papers.
Shapes: T tokens, S sequences, D hidden size, K tasks, N training examples of a task.
"""
PLACES = {
    "adapter": ("Adapters", "`adapter: NAME` in a recipe: task-specific parameters inside the encoder."),
    "head": (
        "Heads",
        "`head: NAME` of a task: turns the encoder's output into the task's outputs, loss and predictions.",
    ),
    "loss": ("Losses", "`loss: NAME` of a task: replaces the loss of its head."),
    "regularizer": (
        "Regularizers",
        "`regularizers: [NAME, ...]` in a recipe: penalties that are added to the tasks' losses.",
    ),
    "sampler": ("Samplers", "`sampler: NAME` in a recipe: decides which tasks take part in each step."),
    "policy": (
        "Policies",
        "`policy: NAME` in a recipe: turns the losses or gradients of several tasks into one update.",
    ),
    "optimizer": ("Optimizers", "`optimizer: NAME` in a recipe: moves the weights."),
}
"""Table of methods -> its title and where a recipe names its methods."""


def methods_page() -> str:
    lines = [GENERATED + METHODS]
    for kind, entries in polytask.TABLES.items():
        title, intro = PLACES.get(kind, (kind.title(), ""))
        lines += [f"## {title}", "", intro, ""]
        for name, method in entries.items():
            text = inspect.getdoc(method) or ""
            lines += [f"### {name}", "", markdown(text), ""]
            paragraphs = methods.read_docstring(text)[0]
            options = polytask.options_of(method)
            lines += table(
                ["option", "type", "default", "description"],
                (
                    [
                        f"`{option.name}`",
                        recipe_type(option.kind),
                        "required" if option.default is inspect.Parameter.empty else shown(option.default),
                        markdown(methods.meaning_of(kind, option.name, paragraphs)),
                    ]
                    for option in options
                ),
            )
    return "\n".join(lines)


# --- the commands -----------------------------------------------------------------------------------------------------
COMMANDS = """\
# Commands

`polytask COMMAND --help` prints the same text.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | an error in the files, the recipe or the run |
| 2 | an error in the command line |
| 130 | stopped by Ctrl-C |
| 143 | stopped by SIGTERM |
"""


def commands_page() -> str:
    lines = [GENERATED + COMMANDS]
    group: Any = typer.main.get_command(make_app())
    for name, command in group.commands.items():
        context = typer.Context(command)
        usage = " ".join(piece for parameter in command.params for piece in parameter.get_usage_pieces(context))
        usage = re.sub(r"[{}]", "", f"polytask {name} {usage} [OPTIONS]")
        lines += [f"## {name}", "", "```text", usage, "```", "", markdown(examples(command.help or "")), ""]
        records = [record for parameter in command.params if (record := parameter.get_help_record(context))]
        lines += table(
            ["argument or option", "description", "default"],
            ([f"`{left}`", markdown(text), default] for left, (text, default) in ((a, split(b)) for a, b in records)),
        )
    return "\n".join(lines)


def examples(text: str) -> str:
    """A command's help with its indented examples as blocks of shell code."""

    def fenced(block: re.Match[str]) -> str:
        lines = [line.strip() for line in block[0].splitlines() if line.strip()]
        return "\n".join(["```text", *lines, "```", ""])

    return re.sub(r"(?m)(?:^    .+\n?\n?)+", fenced, inspect.cleandoc(text)).rstrip()


def split(text: str) -> tuple[str, str]:
    """`Help.  [default: top]` as the help and the default."""
    text, _, extra = text.partition("  [")
    extra = extra.removesuffix("]")
    return text, f"`{extra.removeprefix('default: ')}`" if extra.startswith("default: ") else extra


# --- the Python API ---------------------------------------------------------------------------------------------------
PYTHON = """\
# Python API

Everything here is imported from `polytask` itself: `import polytask; polytask.train(...)`.
Other modules are internal and may change without notice.
Errors that a user can cause are raised as `polytask.UserError`.
"""
CONSTANTS = {
    "KNOWN_METRICS": "The names of all built-in metrics.",
    "TABLES": "The tables of methods by kind: `TABLES['adapter']['pal']` is the class that `adapter: pal` names.",
    "__version__": "The version of polytask.",
}


def python_page() -> str:
    public = {name: getattr(polytask, name) for name in polytask.__all__}
    lines = [GENERATED + PYTHON, "## Functions", ""]
    for name, value in public.items():
        if inspect.isroutine(value):
            lines += [f"### {name}", "", *signature(name, value), markdown(inspect.getdoc(value) or ""), ""]
    lines += ["## Classes", ""]
    for name, value in public.items():
        if inspect.isclass(value):
            lines += [f"### {name}", "", *class_entry(name, value)]
    lines += ["## Constants", ""]
    rows = [[f"`{name}`", CONSTANTS[name]] for name, value in public.items() if name in CONSTANTS]
    assert len(rows) == sum(not (inspect.isroutine(v) or inspect.isclass(v)) for v in public.values())
    lines += table(["name", "value"], iter(rows))
    return "\n".join(lines)


def class_entry(name: str, value: type) -> list[str]:
    lines: list[str] = []
    if not dataclasses.is_dataclass(value) and not issubclass(value, Exception):
        lines += signature(name, value)
    lines += [markdown(inspect.getdoc(value) or ""), ""]
    if dataclasses.is_dataclass(value):
        rows = ([f"`{f.name}`", f"`{f.kind}`", f.default, markdown(f.text)] for f in fields(value, type_name))
        lines += table(["field", "type", "default", "description"], rows)
    for member in [n for cls in reversed(value.__mro__) if cls.__module__.startswith("polytask") for n in vars(cls)]:
        entry = inspect.getattr_static(value, member)
        text = inspect.getdoc(getattr(value, member)) or ""
        if member.startswith("_") or f"**`{name}.{member}" in "\n".join(lines):
            continue
        if isinstance(entry, property):
            lines += [f"**`{name}.{member}`** {markdown(text)}".rstrip(), ""]
        elif inspect.isroutine(getattr(value, member)):
            lines += [f"**`{name}.{member}()`**", "", *signature(member, getattr(value, member)), markdown(text), ""]
    return lines


def signature(name: str, function: Callable[..., Any]) -> list[str]:
    """The call as a block of code, one argument a line where it is long."""
    parsed = inspect.signature(function)
    arguments, star = [], False
    for parameter in parsed.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            arguments.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        kind = "" if parameter.annotation is parameter.empty else f": {type_name(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        arguments.append(f"{parameter.name}{kind}{default}")
    result = parsed.return_annotation
    end = "" if result is parsed.empty or inspect.isclass(function) else f" -> {type_name(result)}"
    line = f"{name}({', '.join(arguments)}){end}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){end}"
    return ["```python", line, "```", ""]


PAGES: Mapping[str, Callable[[], str]] = {
    "recipe.md": recipe_page,
    "methods.md": methods_page,
    "commands.md": commands_page,
    "python.md": python_page,
}


def text(name: str) -> str:
    return PAGES[name]().rstrip("\n") + "\n"


if __name__ == "__main__":
    for name in PAGES:
        (FOLDER / name).write_text(text(name), encoding="utf-8")
