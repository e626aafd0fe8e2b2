"""Examples of a run's tasks: rows of dev, from the files of predictions that training wrote."""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from polytask.runs.folder import RunFolder

COUNT = 4
LINES = 200
"""Lines of a file that are looked at."""
CHARACTERS = 400
"""The longest example."""


def run_examples(run: Path, tasks: Iterable[str]) -> dict[str, list[list[str]]]:
    """By task: the texts of a few rows with different predictions. Tasks without a file of predictions are left out."""
    found = {task: _examples(RunFolder(run).predictions(task, "dev")) for task in tasks}
    return {task: examples for task, examples in found.items() if examples}


def _examples(file: Path) -> list[list[str]]:
    by_prediction: dict[str, list[list[str]]] = {}
    try:
        with file.open(encoding="utf-8") as lines:
            for line in islice(lines, LINES):
                row = json.loads(line)
                texts = [str(text) for text in row["text"]]
                if sum(map(len, texts)) <= CHARACTERS:
                    by_prediction.setdefault(_group(row["prediction"]), []).append(texts)
    except (OSError, ValueError, KeyError, TypeError):  # an old or damaged file: examples are not needed
        return []
    # One row of each prediction, then a second one, and so on.
    turns = [own[i] for i in range(COUNT) for own in by_prediction.values() if i < len(own)]
    return turns[:COUNT]


def _group(prediction: object) -> str:
    """Predictions that count as equal: scores with the same integer part."""
    return str(int(prediction)) if isinstance(prediction, float) else json.dumps(prediction)
