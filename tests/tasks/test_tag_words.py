"""The script that tags a file's words for the recipe with parts of speech."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import polytask

SCRIPT = Path(__file__).parent.parent.parent / "recipes" / "tag_words.py"


@pytest.mark.slow
def test_words_have_tags_and_can_be_trained(tmp_path: Path, tiny_settings: list[str]) -> None:
    pytest.importorskip("textblob")
    target = tmp_path / "pos.jsonl"
    command = [sys.executable, str(SCRIPT), "sample:opinions-dev", "text", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("150 texts")
    rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert all(len(row["words"]) == len(row["tags"]) and all(row["words"]) for row in rows)
    task = {"kind": "tokens", "text": "words", "label": "tags", "train": str(target), "dev": str(target)}
    prepared = polytask.prepare(polytask.recipe_from({"tasks": {"pos": task}}, tiny_settings))
    assert prepared.tasks["pos"].labels.scheme == "plain"
