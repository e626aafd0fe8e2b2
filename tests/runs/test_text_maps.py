"""Heat maps of one text of a run: of tasks of plain text, and what the page says about what it does not show."""

import json
import re
from pathlib import Path

import pytest

from polytask import text_maps, train, write_text_maps

TINY = {"layers": 1, "hidden": 32, "heads": 4, "ffn": 64, "positions": 64}
LONG = "The plan has a run and a home. " * 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with tasks of plain text, of truncated texts with a column of tags, and of texts in windows."""
    folder = tmp_path_factory.mktemp("maps")
    rows = [{"text": f"the plan {n} runs", "tags": "DT NN CD VB", "label": "ab"[n % 2]} for n in range(40)]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"text": "text", "train": str(file), "dev": str(file)}
    tasks = {
        "words": {"kind": "text", **data},
        "cut": {"kind": "classes", "label": "label", "tags": "tags", **data},
        "whole": {"kind": "classes", "label": "label", "windows": {"stride": 8}, **data},
    }
    few = {"epochs": 1, "steps_per_epoch": 1, "batch_size": 4, "device": "cpu"}
    return train({"encoder": TINY, "max_length": 24, "tasks": tasks, "train": few}, folder / "run").folder


def notes(run: Path, text: str, task: str) -> list[str]:
    page = write_text_maps(run, text, task=task).read_text()
    return re.findall(r"<p>(.*)</p>", page.split("<h2>")[0])


def test_a_task_of_plain_text_has_maps_of_a_text_without_masks(run: Path) -> None:
    (maps,) = text_maps(run, "the plan runs", task="words")
    assert maps.tokens == ("[CLS]", "the", "plan", "runs", "[SEP]")
    assert maps.attention.shape == (1, 4, 5, 5)
    assert text_maps(run, "the plan runs")[0].tokens == maps.tokens  # the task is the default here: it is the first


def test_a_text_that_is_too_long_is_not_cut_silently(run: Path) -> None:
    assert notes(run, LONG, "words") == [
        "At most 24 of 182 tokens are shown (max_length): the task truncates longer texts."
    ]
    (windows,) = notes(run, LONG, "whole")
    assert windows == "At most 24 of 182 tokens are shown (max_length): the task reads longer texts in several windows."
    assert notes(run, "the plan runs", "whole") == []


def test_tags_of_columns_are_missing(run: Path) -> None:
    assert notes(run, "the plan runs", "cut") == [
        "The task was trained with word tags from columns; the words of this text have none."
    ]
