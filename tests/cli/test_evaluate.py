"""polytask evaluate and report on a finished run."""

from pathlib import Path
from typing import Any

from polytask import Finished


def test_scores_again_and_on_another_file(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    said = cli("evaluate", tiny_run.folder)
    assert said.code == 0, said.err
    accuracy = tiny_run.evaluations["dev"].tasks["opinion"].value
    assert f"{accuracy:.3f}" in said.out
    (tmp_path / "more.csv").write_text("text,opinion\nlovely,positive\ndreadful,very negative\n")
    other = cli("evaluate", tiny_run.folder, "--on", f"opinion={tmp_path / 'more.csv'}")
    assert other.code == 0, other.err
    assert "similarity" not in other.out
    (tmp_path / "strange.csv").write_text("text,opinion\nlovely,superb\n")
    strange = cli("evaluate", tiny_run.folder, "--on", f"opinion={tmp_path / 'strange.csv'}")
    assert strange.code == 1
    assert "strange.csv, line 2, column 'opinion': 'superb'" in strange.err
    assert cli("evaluate", tiny_run.folder, "--split", "test").code == 1
    assert cli("evaluate", tiny_run.folder, "--split", "nonsense").code == 1
    assert cli("evaluate", tiny_run.folder, "--on", "opinion").code == 2


def test_the_page_is_made_again(cli: Any, tiny_run: Finished) -> None:
    page = tiny_run.report
    before = page.read_text()
    page.unlink()
    said = cli("report", tiny_run.folder)
    assert said.code == 0
    assert said.out.strip() == str(page)
    assert page.read_text() == before
