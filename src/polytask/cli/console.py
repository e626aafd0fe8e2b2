"""The border to the terminal: everything that commands print goes through here, with control characters made visible.

Class names, file names, columns, fields of adapter files and messages about them come from files that a stranger may
have written: see polytask/controls.py.
"""

import logging
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from typer.core import TyperGroup

from polytask.text.controls import visible

_format_warning = warnings.formatwarning


class VisibleConsole(Console):
    """A console whose own commands (colours, the moving bar) are all that a terminal is told to do."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)  # before widths are measured

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def plain_console() -> Console:
    """Class names, paths and texts come from files: rich would take [b] or :cat: in them for orders of its own."""
    return VisibleConsole(markup=False, emoji=False)


def echo(text: object, err: bool = False) -> None:
    """A line without layout, to standard output or standard error."""
    typer.echo(visible(str(text)), err=err)


# --- what is not printed by commands themselves -----------------------------------------------------------------------


class VisibleGroup(TyperGroup):
    """Messages about a wrong command line quote its arguments, which may be names of files."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _visible_message():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _visible_message():
            return super().invoke(ctx)


@contextmanager
def _visible_message() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(getattr(error, "message", None), str):
            error.message = visible(error.message)  # type: ignore[attr-defined]
        raise


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _warning_text(*about: Any, **more: Any) -> str:
    return visible(_format_warning(*about, **more))


def _print_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace))))


def guard_terminal() -> None:
    """Log lines, warnings and tracebacks of this process are printed with control characters made visible."""
    handler = logging.StreamHandler()
    handler.setFormatter(_VisibleFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    warnings.formatwarning = _warning_text
    sys.excepthook = _print_bug
