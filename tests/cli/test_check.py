"""polytask check: what would be trained, or what is wrong, before anything is."""

import re
from pathlib import Path
from typing import Any

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def test_shows_data_parameters_and_steps(cli: Any, tiny_settings: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli("check", QUICKSTART, *(w for s in tiny_settings for w in ("--set", s)))
    assert said.code == 0, said.err
    assert "5 classes, 90 rows each" in said.out
    assert "no 180, yes 180" in said.out
    assert "2 epochs of 10 steps: 20 steps of 16 examples. The recipe is good." in said.out
    assert list(tmp_path.iterdir()) == []


def test_broken_data_is_listed_row_by_row(cli: Any, tmp_path: Path, tiny_settings: list[str]) -> None:
    (tmp_path / "t.csv").write_text("words,score\ngood,4\n,3\nfine,eleven\nbad,9\n")
    (tmp_path / "r.yaml").write_text(
        "tasks: {mood: {kind: score, range: [0, 5], text: words, label: score, train: t.csv, dev: t.csv}}"
    )
    said = cli("check", tmp_path / "r.yaml", "--set", tiny_settings[0])
    assert said.code == 1
    assert "t.csv, line 3, column 'words': the text is empty" in said.err
    assert "t.csv, line 4, column 'score': 'eleven'" in said.err
    assert "t.csv, line 5, column 'score': '9'" in said.err


def test_plain_text_has_no_labels(cli: Any, tiny_settings: list[str], tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "tasks: {words: {kind: text, text: text, train: 'sample:opinions-train', dev: 'sample:opinions-dev'}}"
    )
    said = cli("check", tmp_path / "r.yaml", *(w for s in tiny_settings for w in ("--set", s)))
    assert said.code == 0, said.err
    assert re.search(r"words +│ text +│ train +│ +450 +│ +0 +│ none ", said.out)
