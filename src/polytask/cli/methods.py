"""polytask methods: lists the methods that a recipe can name, or explains one, from its signature and docstring."""

import difflib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

import polytask
from polytask.cli.console import plain_console
from polytask.cli.options import TrustPlugins
from polytask.settings import MethodChoice

FIELDS = {
    "regularizer": "regularizers: [{}]",
    "head": "tasks: {{NAME: {{head: {}}}}}",
    "loss": "tasks: {{NAME: {{loss: {}}}}}",
    "metric": "tasks: {{NAME: {{metrics: [{}]}}}}",
}
"""Where a recipe names the methods of a table, unless the field has the table's name."""

NO_MEANING = "(not documented)"
LAYERS = (
    "The encoder layers that have the adapter: how many, counted from the top, or a list of their numbers, counted "
    "from 0 at the bottom. None: all."
)
POOLING = "How the token embeddings of a text are pooled: their mean, the first token's, or the encoder's pooler."
MEANINGS: dict[str, dict[str, str]] = {
    "adapter": {
        "attention_dropout": "Dropout rate of the branch's attention weights.",
        "alpha": "Scale of the adapter's output; it is divided by the rank.",
        "deviation": "Standard deviation of the starting weights; pal: those of V_D.",
        "gelu": "Whether a GELU follows the branch.",
        "heads": "Number of attention heads of the branch. Must divide `size`.",
        "layers": LAYERS,
        "position": "Position of the adapter in a layer.",
        "rank": "Rank of the trained matrices.",
        "sites": "The linear layers of an encoder layer that are adapted.",
        "size": "Dimension of the small layer inside the adapter.",
    },
    "head": {
        "dropout": "Dropout rate of the head's inputs.",
        "form": "How the embeddings of the two texts are combined.",
        "pooling": POOLING,
    },
    "loss": {"form": "Which of the formulas is used."},
    "regularizer": {"form": "Which of the formulas is used.", "weight": "Weight of the penalty in the loss."},
    "sampler": {
        "first": "Exponent of a task's size in the first epoch.",
        "last": "Exponent of a task's size in the last epoch.",
        "shares": "Number of steps per task: proportional to its training rows (sizes), or equal for all (equal).",
    },
    "policy": {
        "batch": "Remembered examples per step. None: as many as the step has.",
        "keep": "Which examples are remembered: a random sample of all (reservoir), the newest (ring) or the first.",
        "size": "Number of remembered examples per task.",
    },
    "optimizer": {
        "betas": "Decay rates of the running averages of the gradient and of its square.",
        "correction": "Which of the two forms of the update is used.",
        "eps": "Added to the denominator for numerical stability.",
        "lr": "Learning rate of the encoder, and of the heads unless `train.head_lr` is set.",
        "weight_decay": "Weight decay of matrices; biases and norms have none.",
    },
}
"""By table: the meaning of options that docstrings mention only in a formula, or not at all."""


def run(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table (adapter, head, loss, regularizer, sampler, policy, optimizer), a method or a plug-in file."
        ),
    ] = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """List all methods that a recipe can name, with their options, or explain one of them.

    Methods of installed packages are listed with their origin. Those of a plug-in file are listed by its name.

    Examples:

        polytask methods

        polytask methods head

        polytask methods pal

        polytask methods my_method.py --trust-plugins
    """
    if name is not None and name.endswith(".py"):
        for entry in polytask.registered_methods([name], trust_plugins):
            if entry.origin.kind == "file":
                _explain(entry.name, entry.table, entry.method)
        return
    origins = {(entry.table, entry.name): str(entry.origin) for entry in polytask.registered_methods()}
    if name is None or name in polytask.TABLES:
        _list(name, origins)
        return
    methods = [(table, entries[name]) for table, entries in polytask.TABLES.items() if name in entries]
    if not methods:
        raise polytask.UserError(_unknown(name))
    for table, method in methods:
        _explain(name, table, method)


def _unknown(name: str) -> str:
    heads = [head for head, method in polytask.TABLES["head"].items() if name in typing.cast(Any, method).kinds]
    if heads:
        return f"methods: {name} is a kind of task (docs/kinds.md), not a method; its heads are: {', '.join(heads)}"
    known = [*polytask.TABLES, *(method for entries in polytask.TABLES.values() for method in entries)]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"methods: there is no method or table {name!r}{hint}; `polytask methods` lists all of them"


def _list(table: str | None, origins: Mapping[tuple[str, str], str]) -> None:
    console = plain_console()
    for name, entries in polytask.TABLES.items():
        if table in (None, name):
            console.print(Text(name, style="bold"))
            for method, constructor in entries.items():
                first_line = (inspect.getdoc(constructor) or "").partition("\n")[0]
                origin = f"  ({origins[name, method]})" if (name, method) in origins else ""
                console.print(Text.assemble("  ", (method, "bold cyan"), "  ", first_line, origin), soft_wrap=True)
                for option in polytask.options_of(constructor):
                    console.print(
                        Text(f"      {option.name}: {kind_name(option.kind)} = {shown(option.default)}"), soft_wrap=True
                    )


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
    options = [] if table == "metric" else polytask.options_of(method)
    if options:
        console.print(Text("\nOptions", style="bold"))
    for option in options:
        console.print(Text(f"  {option.name}: {kind_name(option.kind)} = {shown(option.default)}"), soft_wrap=True)
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
    """A docstring's paragraphs without line breaks, its formulas (quoted or indented), and its papers."""
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
    """What an option does: the docstring's sentences that mention it, or its meaning in all methods of the table."""
    sentences = [s for paragraph in paragraphs for s in re.split(r"(?<=[.;:]) (?=[A-Z`])", paragraph)]
    quoted = [s for s in sentences if re.search(rf"`{option}(`|:)", s) and not s.startswith("`")]
    named = [s for s in sentences if re.search(rf"\b{option}\b", s)]
    known = MEANINGS.get(table, {}).get(option)
    return " ".join(quoted) or known or " ".join(named) or NO_MEANING


def kind_name(kind: Any) -> str:
    """A type as shown to the author of a recipe."""
    if typing.get_origin(kind) is Annotated:
        inner, *bounds = typing.get_args(kind)
        return " ".join([kind_name(inner), *map(str, bounds)])
    if typing.get_origin(kind) is typing.Literal:
        return " | ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " | ".join("None" if inner is type(None) else kind_name(inner) for inner in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"list of {kind_name(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is Mapping:
        return f"mapping of names to {kind_name(typing.get_args(kind)[1])}"
    if kind is MethodChoice:
        return "method"
    return getattr(kind, "__name__", str(kind)) if not typing.get_args(kind) else str(kind)


def shown(default: Any) -> str:
    """A default value as shown to the author of a recipe."""
    if isinstance(default, MethodChoice):
        return default.name
    return f"[{', '.join(map(shown, default))}]" if isinstance(default, tuple) else str(default)
