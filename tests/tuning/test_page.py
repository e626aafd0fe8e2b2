"""The page of a tuning shows tune.json, looks like a study's, and handles what is missing."""

import json
import shutil
from pathlib import Path
from typing import Any

from polytask.disk.json_files import read_json
from polytask.tuning.page import write_page

from ..conftest import Page, assert_clean_svg
from .conftest import Done


def shown(folder: Path, content: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "tune.json").write_text(json.dumps(content))
    return write_page(folder).read_text()


def test_the_page_has_the_answer_the_final_and_every_trial(small: Done) -> None:
    text = small.tuned.page.read_text()
    content = read_json(small.folder / "tune.json")
    page = Page(text)
    words = " ".join(" ".join(page.words).split())
    assert small.tuned.sentence in words
    assert f"Winner: {small.tuned.winner}" in words
    for part in ("Final comparison", "Best score so far", "Importance of the fields", "Trials", "Environment"):
        assert part in words
    for trial in content["trials"]:
        for ninths, score in trial["scores"].items():
            assert f'href="cells/{trial["runs"][ninths]}/report.html">{100 * score:.1f}</a>' in text
    for comparison in content["comparisons"]["held_back"]:
        assert comparison["sentence"] in words
    for plot in ("best-so-far", "importance", "slice-0", "slice-1", "forest-held_back", "forest-dev"):
        assert f'<svg id="{plot}"' in text
    for svg in text.split("<svg")[1:]:
        assert_clean_svg(f"<svg{svg.partition('</svg>')[0]}</svg>")
    assert (small.folder / content["finalists"]["recipe"]["runs"][0] / "report.html").is_file()


def test_a_page_without_final_runs_and_with_failed_trials(small: Done, tmp_path: Path) -> None:
    content = read_json(small.folder / "tune.json")
    content["trials"][1] |= {"state": "fail", "error": "it broke <b>", "scores": {}, "runs": {}}
    content["trials"][2] |= {"state": "running"}
    content |= {"finalists": {}, "comparisons": {"dev": [], "held_back": []}, "importances": {}}
    text = shown(tmp_path / "some", content)
    assert "This tuning has not finished: 1 trial is under way." in text
    assert "1 of 6 trials failed" in text
    assert "it broke &lt;b&gt;" in text
    assert "There are no final runs" in text
    assert "minus sign" not in text
    assert "lower is better, and the scores of trials have a minus sign" in shown(
        tmp_path / "lower", {**content, "lower_is_better": True}
    )
    empty = shown(tmp_path / "none", {**content, "trials": []})
    assert "No trial has finished yet." in empty


def test_the_page_is_the_same_when_written_again(small: Done, tmp_path: Path) -> None:
    shutil.copy(small.folder / "tune.json", tmp_path)
    assert write_page(tmp_path).read_text() == small.tuned.page.read_text()
