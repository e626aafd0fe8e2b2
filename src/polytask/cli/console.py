"""Where commands print to: the terminal, with what stands in files shown as it stands there."""

from rich.console import Console


def plain_console() -> Console:
    """Class names, paths and texts come from files: rich would take [b] or :cat: in them for orders of its own."""
    return Console(markup=False, emoji=False)
