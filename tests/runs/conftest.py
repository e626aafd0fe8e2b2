"""Settings of tiny runs that save checkpoints, and the lines of their files of predictions."""

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def settings(tiny_settings: list[str]) -> list[str]:
    return [*tiny_settings, "train.save_every=4"]


def prediction_lines(run: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a file of predictions: TASK-SPLIT or TASK-on-FILE."""
    return [json.loads(line) for line in (run / "predictions" / f"{name}.jsonl").read_text().splitlines()]
