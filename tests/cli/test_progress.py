"""What is shown while a run trains: a live bar on a terminal, plain lines elsewhere, the same facts in both."""

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from polytask import read_recipe, recipe_from, start_training
from polytask.cli import progress
from polytask.cli.progress import follow
from polytask.processes import ALONE

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


@pytest.mark.parametrize("terminal", [True, False])
def test_losses_speed_and_scores_are_shown(tmp_path: Path, tiny_settings: list[str], terminal: bool) -> None:
    said = io.StringIO()
    console = Console(file=said, force_terminal=terminal, width=200)
    follow(start_training(read_recipe(QUICKSTART, tiny_settings), tmp_path / "run"), console)
    text = said.getvalue()
    assert "examples/s" in text
    assert "opinion" in text
    assert "step 20/20  dev: opinion accuracy" in text
    assert "left" in text
    assert ("\x1b[" in text) == terminal


def test_plain_text_has_no_mean(tmp_path: Path, tiny_settings: list[str]) -> None:
    task = {"kind": "text", "text": "text", "train": "sample:opinions-train", "dev": "sample:opinions-dev"}
    said = io.StringIO()
    running = start_training(recipe_from({"tasks": {"words": task}}, tiny_settings), tmp_path / "run")
    follow(running, Console(file=said, width=200))
    assert "step 20/20  dev: words perplexity" in said.getvalue()
    assert "mean" not in said.getvalue()


def test_the_time_left_leaves_out_the_evaluation_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of two seconds, after an evaluation of ten minutes."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def steps() -> Iterator[SimpleNamespace]:
        clock.now += 600
        for step in range(1, 11):
            clock.now += 2
            yield SimpleNamespace(step=step, steps=10, losses={"a": 1.0}, examples=8, seconds=2.0, evaluation=None)

    said = io.StringIO()
    run: Any = SimpleNamespace(
        is_main=True, device=SimpleNamespace(type="cpu"), session=SimpleNamespace(step=0), processes=ALONE, steps=steps
    )
    run.any_process = lambda flag: flag
    follow(run, Console(file=said, width=200))
    lines = said.getvalue().splitlines()
    assert [line.split("  ")[-1] for line in lines] == ["18 s left", "6 s left"]
