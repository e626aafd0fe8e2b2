"""Output to the terminal. Everything that commands print goes through here, with control characters escaped.

Class names, file names, columns and error messages about them come from files that are not trusted: see
polytask/text/controls.py.
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
    """A console that escapes control characters in text; rich's own (colours, the progress bar) are kept."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)  # before widths are computed

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def plain_console() -> Console:
    """A console without rich's markup: class names, paths and texts may contain [b] or :cat:."""
    return VisibleConsole(markup=False, emoji=False)


def echo(text: object, err: bool = False) -> None:
    """Prints a plain line to standard output or standard error."""
    typer.echo(visible(str(text)), err=err)


# --- output that commands do not print themselves ---------------------------------------------------------------------


class VisibleGroup(TyperGroup):
    """Escapes control characters in messages about the command line, which quote its arguments."""

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


def _visible_warning(*arguments: Any, **options: Any) -> str:
    return visible(_format_warning(*arguments, **options))


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace))))


def guard_terminal() -> None:
    """Escapes control characters in the log lines, warnings and tracebacks of this process."""
    handler = logging.StreamHandler()
    handler.setFormatter(_VisibleFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    warnings.formatwarning = _visible_warning
    sys.excepthook = _print_traceback


def counted(number: int, noun: str) -> str:
    """Returns the number with its noun: 1 epoch, 2,000 steps."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
