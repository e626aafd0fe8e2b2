"""polytask compare on the command line."""

import re
from pathlib import Path
from typing import Any

import yaml

from polytask import Finished, train

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def write_study(folder: Path, tiny: list[str]) -> Path:
    fixed = {key: yaml.safe_load(value) for key, _, value in (setting.partition("=") for setting in tiny)}
    variants = {"cosine": {}, "cross": {"tasks.question.head": "cross"}}
    content = {"base": str(QUICKSTART), "set": fixed, "seeds": [0], "variants": variants}
    (folder / "study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder / "study.yaml"


def test_dry_run_prints_the_plan_and_writes_nothing(
    cli: Any, tmp_path: Path, tiny_settings: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli("compare", write_study(tmp_path, tiny_settings), "--dry-run", "--workers", 2)
    assert said.code == 0, said.err
    assert "2 variants x 1 seed: 2 runs" in said.out
    assert "cross, seed 0: 20 steps, about" in said.out
    assert (
        "Noise: assumed, because no two variants have two finished runs each: scores have a standard deviation"
        in said.out
    )
    assert re.search(
        r"question \(\d+ dev examples\): 1 seed can confirm no gap; gaps of 1, 2 and 5 points need", said.out
    )
    assert "the mean of the tasks: 1 seed can confirm no gap" in said.out
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


def test_two_finished_runs(cli: Any, tiny_run: Finished, tmp_path: Path, tiny_settings: list[str]) -> None:
    other = train(QUICKSTART, tmp_path / "other", [*tiny_settings, "sampler=proportional"])
    said = cli("compare", tiny_run.folder, other.folder, "--study", tmp_path / "verdict")
    assert said.code == 0, said.err
    assert "undecided on opinion: seed noise unknown (one seed); other scored" in said.out
    assert " is better than " not in said.out
    assert (tmp_path / "verdict" / "report.html").is_file()
    assert "undecided on opinion: seed noise unknown" in (tmp_path / "verdict" / "study.md").read_text()
    wide = cli("compare", tiny_run.folder, other.folder, "--study", tmp_path / "verdict", "--margin", -1)
    assert "--margin: must be in [0, 100] points, found -1" in wide.err
    assert cli("compare", tiny_run.folder, other.folder, "--dry-run").code == 2
    assert cli("compare", tiny_run.folder).code == 1
