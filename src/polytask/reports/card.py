"""The model card of a trained model, in Markdown. Knows the summary of a run, and nothing of models or data."""

import html
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from polytask.text.controls import visible


def card_page(summary: Mapping[str, Any], run: str) -> str:
    """The card, from the content of summary.json and the name of the run."""
    return visible(_template().render(summary=summary, run=run))


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    # Not autoescaped: this is Markdown, and every text of the user's passes one of the three filters below.
    pages = jinja2.Environment(
        loader=loader,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,
    )
    pages.filters.update(plain=_plain, code=_code, quoted=_quoted)
    return pages.get_template("card.md.jinja")


def _plain(value: object) -> str:
    """Text for a table cell, with everything escaped that Markdown or HTML would interpret."""
    text = " ".join(html.escape(str(value), quote=False).split())
    for mark in "\\`*_[]|#~$":
        text = text.replace(mark, f"\\{mark}")
    return text or "(empty)"


def _code(value: object) -> str:
    """Text as code for a table cell, in a fence that is longer than any run of backticks in it."""
    text = " ".join(str(value).split()).replace("|", "\\|") or " "
    fence = "`"
    while fence in text:
        fence += "`"
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _quoted(value: object) -> str:
    """A quoted string on one line that both YAML and Python can read."""
    return json.dumps(str(value), ensure_ascii=False)
