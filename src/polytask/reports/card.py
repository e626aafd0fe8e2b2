"""The model card: README.md of a run's model folder. Knows what summary.json says, and nothing of models or data."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from polytask.disk.atomic import write_atomically
from polytask.text.controls import visible


def write_card(model_folder: Path, summary: Mapping[str, Any]) -> Path:
    """Write `README.md`, the model card, from what summary.json says of the run."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    # Not autoescaped: this is Markdown, and every name of the user's passes one of the three filters below.
    pages = jinja2.Environment(
        loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    pages.filters.update(plain=_plain, code=_code, quoted=_quoted)
    text = pages.get_template("card.md.jinja").render(summary=summary, run=model_folder.resolve().parent.name)
    target = model_folder / "README.md"
    write_atomically(target, visible(text))
    return target


def _plain(value: object) -> str:
    """Text in one table cell, without anything that Markdown or HTML would act on."""
    text = " ".join(html.escape(str(value), quote=False).split())
    for mark in "\\`*_[]|#~$":
        text = text.replace(mark, f"\\{mark}")
    return text or "(empty)"


def _code(value: object) -> str:
    """Text as code in one table cell: a fence longer than any run of backticks in it."""
    text = " ".join(str(value).split()).replace("|", "\\|") or " "
    fence = "`"
    while fence in text:
        fence += "`"
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _quoted(value: object) -> str:
    """A quoted string that YAML and Python both read, on one line."""
    return json.dumps(str(value), ensure_ascii=False)
