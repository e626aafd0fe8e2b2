"""What is shown while a run trains: a live bar on a terminal, plain lines elsewhere, the same facts in both."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from polytask import Running, read_recipe
from polytask.cli.progress import follow

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


@pytest.mark.parametrize("terminal", [True, False])
def test_losses_speed_and_scores_are_shown(tmp_path: Path, tiny_settings: list[str], terminal: bool) -> None:
    said = io.StringIO()
    console = Console(file=said, force_terminal=terminal, width=200)
    follow(Running(read_recipe(QUICKSTART, tiny_settings), tmp_path / "run"), console)
    text = said.getvalue()
    assert "examples/s" in text
    assert "opinion" in text
    assert "step 20/20  dev: opinion accuracy" in text
    assert "left" in text
    assert ("\x1b[" in text) == terminal
