"""The page on the commands."""

import inspect
import re
from typing import Any

import typer
from reference_pages.markdown import markdown, table

from polytask.cli.main import make_app

INTRO = """\
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


def page() -> str:
    lines = [INTRO]
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
    """Returns a command's help, with its indented examples as code blocks."""

    def fenced(block: re.Match[str]) -> str:
        lines = [line.strip() for line in block[0].splitlines() if line.strip()]
        return "\n".join(["```text", *lines, "```", ""])

    return re.sub(r"(?m)(?:^    .+\n?\n?)+", fenced, inspect.cleandoc(text)).rstrip()


def split(text: str) -> tuple[str, str]:
    """Splits `Help.  [default: top]` into the help and the default."""
    text, _, extra = text.partition("  [")
    extra = extra.removesuffix("]")
    return text, f"`{extra.removeprefix('default: ')}`" if extra.startswith("default: ") else extra
