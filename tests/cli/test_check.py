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
    assert "2 epochs of 10 steps: 20 steps of 16 examples. The recipe is valid." in said.out
    assert list(tmp_path.iterdir()) == []
    said = cli("check", QUICKSTART, *(w for s in (*tiny_settings, "train.epochs=1") for w in ("--set", s)))
    assert "1 epoch of 10 steps: 10 steps" in said.out


def test_names_are_whole_in_a_terminal_of_80_characters(cli: Any, tiny_settings: list[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = cli("check", QUICKSTART, *(w for s in tiny_settings for w in ("--set", s)))
    assert re.search(r"similarity +score +train +270", said.out)
    assert "similari\u2026" not in said.out


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


def test_counts_rows_without_labels(cli: Any, tiny_settings: list[str], tiny_run: Any, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("text\n" + "".join(f"Film number {n}.\n" for n in range(34)))
    more = [f"tasks.opinion.unlabelled={tmp_path / 'more.csv'}", f"teachers.opinion={tiny_run.folder}"]
    said = cli("check", QUICKSTART, *(w for s in (*tiny_settings, *more) for w in ("--set", s)))
    assert said.code == 0, said.err
    assert re.search(r"opinion +classes +unlabelled +34 +none", said.out)


def test_plain_text_has_no_labels(cli: Any, tiny_settings: list[str], tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "tasks: {words: {kind: text, text: text, train: 'sample:opinions-train', dev: 'sample:opinions-dev'}}"
    )
    said = cli("check", tmp_path / "r.yaml", *(w for s in tiny_settings for w in ("--set", s)))
    assert said.code == 0, said.err
    assert re.search(r"words +text +train +450 +none ", said.out)


def test_findings_are_printed_with_their_rows_and_only_strict_makes_them_an_error(
    cli: Any, tiny_settings: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"text of row number {i},{i % 2}" for i in range(40)]
    Path("train.csv").write_text("\n".join(["text,label", *rows, rows[3], rows[7]]))
    Path("dev.csv").write_text("\n".join(["text,label", rows[5], *(f"dev {row}" for row in rows)]))
    Path("r.yaml").write_text("tasks: {t: {kind: yes_no, text: text, label: label, train: train.csv, dev: dev.csv}}")
    settings = [word for setting in tiny_settings for word in ("--set", setting)]
    said = cli("check", "r.yaml", *settings)
    assert said.code == 0, said.err
    lines = [line.strip() for line in said.out.splitlines()]
    problems, warnings = (next(i for i, line in enumerate(lines) if line.startswith(word)) for word in ("Pro", "Warn"))
    leak = "t dev: 1 of 41 rows (2.4 %) is also in the training rows, which makes dev scores too good (row 2)"
    assert lines[problems + 1] == leak
    assert lines[warnings + 1] == "t train: 2 of 42 rows (4.8 %) repeat an earlier row (rows 42, 43)"
    assert "Notes" not in said.out
    assert lines[-1].endswith("The recipe is valid, but the data has 1 problem.")
    strict = cli("check", "r.yaml", "--strict", *settings)
    assert strict.code == 1
    assert leak in strict.out
    assert strict.err == "error: r.yaml: the data has 1 problem, listed above\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev.csv", "r.yaml", "train.csv"]


def test_good_data_has_no_findings(cli: Any, tiny_settings: list[str]) -> None:
    said = cli("check", QUICKSTART, "--strict", *(w for s in tiny_settings for w in ("--set", s)))
    assert said.code == 0
    assert not re.search("Problems|Warnings|Notes|Row numbers", said.out)


def test_chosen_rows_and_tasks_that_are_not_trained(cli: Any, tiny_settings: list[str]) -> None:
    settings = [w for s in tiny_settings for w in ("--set", s)]
    more = ["--set", "tasks.opinion.trained=false", "--set", "tasks.question.rows=100"]
    said = cli("check", QUICKSTART, *settings, *more)
    assert said.code == 0, said.err
    assert re.search(r"opinion \* +classes +dev +150", said.out)
    assert re.search(r"question +yes_no +train +100 ", said.out)
    assert "*: not trained, only scored" in said.out
    said = cli("check", QUICKSTART, *settings, "--set", "tasks.question.rows={sample: 1000}")
    assert said.code == 1
    assert "tasks.question.rows.sample: must be at most 360, the number of usable rows of sample:" in said.err
    assert "found 1,000" in said.err
