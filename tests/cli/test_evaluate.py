"""polytask evaluate and report on a finished run."""

import shutil
from pathlib import Path
from typing import Any

import pytest

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
    written = tiny_run.folder / "predictions" / "opinion-on-more.jsonl"
    assert f"opinion: predictions written to {written}" in other.out
    assert len(written.read_text().splitlines()) == 2
    assert "skipped" not in other.out
    (tmp_path / "strange.csv").write_text("text,opinion\nlovely,superb\n")
    strange = cli("evaluate", tiny_run.folder, "--on", f"opinion={tmp_path / 'strange.csv'}")
    assert strange.code == 1
    assert "strange.csv, line 2, column 'opinion': 'superb'" in strange.err
    assert cli("evaluate", tiny_run.folder, "--split", "test").code == 1
    assert cli("evaluate", tiny_run.folder, "--split", "nonsense").code == 1
    assert cli("evaluate", tiny_run.folder, "--on", "opinion").code == 2


def test_skipped_rows_are_counted(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run.folder, run, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("broken_rows: stop", "broken_rows: skip"))
    (tmp_path / "more.csv").write_text("text,opinion\nlovely,positive\n,positive\ndreadful,superb\n")
    said = cli("evaluate", run, "--on", f"opinion={tmp_path / 'more.csv'}")
    assert said.code == 0, said.err
    assert "opinion: 2 broken rows were skipped (broken_rows: skip)" in said.out


def test_a_function_of_a_run_from_elsewhere_runs_only_if_it_is_trusted(
    cli: Any, tiny_run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "config"))
    run = tmp_path / "run"
    shutil.copytree(tiny_run.folder, run, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    source = f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef f(gold, predicted):\n    return 0.5\n"
    (run / "evil.py").write_text(source)
    recipe = (run / "recipe.yaml").read_text()
    assert "metrics: []" in recipe
    (run / "recipe.yaml").write_text(recipe.replace("metrics: []", "metrics: [evil:f]"))
    said = cli("evaluate", run)
    assert said.code == 1
    assert "evil.py: this plug-in is not trusted (SHA-256 " in said.err
    assert not (tmp_path / "ran").exists()
    trusted = cli("evaluate", run, "--trust-plugins")
    assert trusted.code == 0, trusted.err
    assert (tmp_path / "ran").exists()
    assert cli("evaluate", run).code == 0  # remembered


def test_the_report_is_written_again(cli: Any, tiny_run: Finished) -> None:
    page = tiny_run.report
    before = page.read_text()
    page.unlink()
    said = cli("report", tiny_run.folder)
    assert said.code == 0
    assert said.out.strip() == str(page)
    assert page.read_text() == before


def test_the_report_with_a_text_has_heat_maps(cli: Any, tiny_run: Finished, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run.folder, run)
    said = cli("report", run, "--text", "Not bad at all.")
    assert said.code == 0
    assert said.out.split() == [str(run / "attention.html"), str(run / "report.html")]
    assert "as the task opinion reads this text" in (run / "attention.html").read_text()
    assert 'href="attention.html"' in (run / "report.html").read_text()
    assert cli("report", run, "--text", "One?", "--text2", "Two?").code == 0  # question reads its texts separately
    assert "Text 2" in (run / "attention.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--task", "opinion"], 2, "--text2, --option and --task need --text"),
        (["--text", "One?", "--task", "question"], 1, "found 1 text(s), but the tasks take: opinion 1, question 2"),
        (["--text", "One?", "--task", "opinio"], 1, "there is no task 'opinio' (did you mean opinion?)"),
        (["--text", " "], 1, "the text is empty"),
    ],
)
def test_texts_that_no_task_reads(cli: Any, tiny_run: Finished, arguments: list[str], code: int, message: str) -> None:
    said = cli("report", tiny_run.folder, *arguments)
    assert said.code == code
    assert message in said.err
    assert not (tiny_run.folder / "attention.html").exists()
