"""Files whose words have labels: their columns are guessed, and one file is split in two."""

import json
from pathlib import Path
from typing import Any

import pytest

from polytask.tasks.guess import guess_task
from polytask.tasks.splitting import split_file

SPANS = [
    {"id": n, "text": f"Ada number {n} left.", "spans": [{"start": 0, "end": 3, "label": "P"}] * (n % 2)}
    for n in range(20)
]
LISTS = [{"id": n, "words": ["Ada", str(n), "left"], "pos": ["NN", "CD", "VB"]} for n in range(20)]
CONLL = "".join(f"EU NNP B-ORG\nsaid VBD O\nPeter{n} NNP B-PER\n\n" for n in range(20))


def written(folder: Path, rows: list[dict[str, Any]] | str) -> str:
    path = folder / ("data.conll" if isinstance(rows, str) else "data.jsonl")
    path.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("rows", "text", "label", "reason"),
    [
        (SPANS, "text", "spans", "spans of words (P): tokens"),
        (
            [{**row, "spans": [[*s.values()] for s in row["spans"]]} for row in SPANS],
            "text",
            "spans",
            "spans of words (P)",
        ),
        (LISTS, "words", "pos", "plain tags of words (CD, NN, VB): tokens"),
        (CONLL, "0", "2", "bio tags of words (ORG, PER): tokens"),
    ],
)
def test_columns_of_words_and_labels(rows: Any, text: str, label: str, reason: str, tmp_path: Path) -> None:
    guess = guess_task("t", written(tmp_path, rows))
    assert (guess.spec.kind, guess.spec.text, guess.spec.label) == ("tokens", (text,), label)
    assert reason in guess.reasons[1]
    parts = split_file(guess.spec, tmp_path)
    found = [[json.loads(line)[text] for line in part.read_text().splitlines()] for part in (parts.train, parts.dev)]
    assert (len(found[0]), len(found[1])) == (16, 4)
    assert not [value for value in found[1] if value in found[0]]


def test_a_given_column_is_used(tmp_path: Path) -> None:
    guess = guess_task("t", written(tmp_path, CONLL), label="1")
    assert (guess.spec.kind, guess.spec.label) == ("tokens", "1")


def test_lists_of_classes_are_labels_of_texts(tmp_path: Path) -> None:
    rows = [{"text": f"parcel number {n} came late", "label": [["late"], ["late", "broken"]][n % 2]} for n in range(30)]
    assert guess_task("t", written(tmp_path, rows)).spec.kind == "multilabel"
