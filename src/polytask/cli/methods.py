"""polytask methods: every method a recipe can name, or one in full, from its constructor and docstring."""

import difflib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

import polytask
from polytask.cli.console import plain_console

FIELDS = {
    "regularizer": "regularizers: [{}]",
    "head": "tasks: {{NAME: {{head: {}}}}}",
    "loss": "tasks: {{NAME: {{loss: {}}}}}",
}
"""Where a recipe names the methods of a table, if not in a field called like the table."""

NO_MEANING = "(The method's docstring does not say.)"
LAYERS = "How many layers of the encoder have the adapter, counted from the top; None: all."
POOLING = "How a text's token vectors become one vector: their mean, the first token's, or the encoder's pooler."
MEANINGS: dict[str, dict[str, str]] = {
    "adapter": {
        "attention_dropout": "Share of the branch's attention weights that is set to zero while training.",
        "alpha": "Factor of what the adapter adds, divided by the rank.",
        "gelu": "Whether a GELU follows the branch.",
        "heads": "Attention heads of the branch; they must divide `size`.",
        "layers": LAYERS,
        "position": "Where in a layer the adapter is.",
        "rank": "Rank of the matrices that are learned.",
        "sites": "The linear maps of a layer that are changed.",
        "size": "Dimensions of the small layer inside the adapter.",
    },
    "head": {
        "dropout": "Share of the head's inputs that is set to zero while training.",
        "form": "What the linear layer sees of the two texts.",
        "pooling": POOLING,
    },
    "loss": {"form": "Which of the formulas is used."},
    "regularizer": {"form": "Which of the formulas is used.", "weight": "Factor of the penalty in the loss."},
    "sampler": {
        "first": "The power of a task's size in the first epoch.",
        "last": "The power of a task's size in the last epoch.",
        "shares": "How many steps each task has: by its number of training rows (sizes), or the same for all (equal).",
    },
    "policy": {
        "batch": "Remembered examples in each step; None: as many as the step has.",
        "keep": "Which examples are remembered: a random sample of all (reservoir), the newest (ring) or the first.",
        "size": "Examples of each task that are remembered.",
    },
    "optimizer": {
        "betas": "Decay rates of the running means of the gradient and of its square.",
        "correction": "Which of the two forms of the update is used.",
        "eps": "Added to the denominator, so that it is never zero.",
        "lr": "Learning rate of the encoder, and of the heads where `train.head_lr` is not given.",
        "weight_decay": "How fast matrices shrink towards zero; biases and norms never do.",
    },
}
"""By table: what options mean that docstrings name in a formula only, or not at all."""


def run(
    name: Annotated[
        str | None,
        typer.Argument(help="A kind (adapter, head, loss, regularizer, sampler, policy, optimizer) or a method."),
    ] = None,
) -> None:
    """List every method a recipe can name, with its options and their defaults; or explain one method.

    Examples:

        polytask methods

        polytask methods head

        polytask methods pal
    """
    found = [(table, entries[name]) for table, entries in polytask.TABLES.items() if name in entries] if name else []
    if name is None or name in polytask.TABLES:
        _list(name)
    elif found:
        for table, method in found:
            _explain(name, table, method)
    else:
        raise polytask.UserError(_unknown(name))


def _unknown(name: str) -> str:
    known = [*polytask.TABLES, *(method for entries in polytask.TABLES.values() for method in entries)]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"methods: there is no method or kind of method called {name!r}.{hint} `polytask methods` lists all of them"


def _list(table: str | None) -> None:
    console = plain_console()
    for name, entries in polytask.TABLES.items():
        if table in (None, name):
            console.print(Text(name, style="bold"))
            for method, constructor in entries.items():
                first_line = (inspect.getdoc(constructor) or "").partition("\n")[0]
                console.print(Text.assemble("  ", (method, "bold cyan"), "  ", first_line), soft_wrap=True)
                for option in polytask.options_of(constructor):
                    console.print(
                        Text(f"      {option.name}: {kind_name(option.kind)} = {option.default}"), soft_wrap=True
                    )
            if not entries:
                console.print("  (none yet)")


def _explain(name: str, table: str, method: Callable[..., Any]) -> None:
    console = plain_console()
    paragraphs, formulas, papers = read_docstring(inspect.getdoc(method) or "")
    width = min(console.width, 100)

    def part(title: str, lines: list[str], indent: str = "  ") -> None:
        if lines:
            console.print(Text(f"\n{title}", style="bold"))
            for line in lines:
                wrapped = textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
                console.print(Text(wrapped), soft_wrap=True)

    console.print(Text.assemble((name, "bold cyan"), f"  ({table})"))
    for paragraph in paragraphs:
        console.print(Text("\n" + textwrap.fill(paragraph, width)), soft_wrap=True)
    part("Formula", formulas)
    part("Paper", papers)
    options = polytask.options_of(method)
    if options:
        console.print(Text("\nOptions", style="bold"))
    for option in options:
        console.print(Text(f"  {option.name}: {kind_name(option.kind)} = {option.default}"), soft_wrap=True)
        meaning = meaning_of(table, option.name, paragraphs)
        console.print(
            Text(textwrap.fill(meaning, width, initial_indent="      ", subsequent_indent="      ")), soft_wrap=True
        )
    part("In a recipe", [FIELDS.get(table, f"{table}: {{}}").format(_example(name, options))])


def _example(name: str, options: list[Any]) -> str:
    plain = [o for o in options if isinstance(o.default, int | float | str)]
    given = ", ".join(
        f"{o.name}: {str(o.default).lower() if isinstance(o.default, bool) else o.default}" for o in plain
    )
    return f"{{name: {name}, {given}}}" if given else name


def read_docstring(text: str) -> tuple[list[str], list[str], list[str]]:
    """A docstring's paragraphs as running text, the formulas in it (quoted or indented), and the papers it names."""
    prose, mark, after = (*re.split(r"(?m)^(Papers?:)", text, maxsplit=1), "", "")[:3]
    paper, _, rest = after.partition("\n\n")
    blocks = [block for block in [*prose.split("\n\n"), *rest.split("\n\n")] if block.strip()]
    formulas: list[str] = []
    paragraphs: list[str] = []
    for block in blocks:
        lines = block.splitlines()
        formulas += [line.strip() for line in lines if line.startswith("    ")]
        paragraphs.append(" ".join(" ".join(line for line in lines if not line.startswith("    ")).split()))
        quoted = re.findall(r"`([^`]+)`", paragraphs[-1])
        formulas += [formula for formula in quoted if re.search(r"[=+*/()|^]|\bsum_|\blog\b", formula)]
    papers = [" ".join(paper.split())] if mark else []
    return [paragraph for paragraph in paragraphs if paragraph], list(dict.fromkeys(formulas)), papers


def meaning_of(table: str, option: str, paragraphs: list[str]) -> str:
    """What an option does: the sentences of the docstring that explain it, or what it means in every such method."""
    sentences = [s for paragraph in paragraphs for s in re.split(r"(?<=[.;:]) (?=[A-Z`])", paragraph)]
    quoted = [s for s in sentences if re.search(rf"`{option}(`|:)", s) and not s.startswith("`")]
    named = [s for s in sentences if re.search(rf"\b{option}\b", s)]
    known = MEANINGS.get(table, {}).get(option)
    return " ".join(quoted) or known or " ".join(named) or NO_MEANING


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
