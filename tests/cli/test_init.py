"""polytask init: from files of one's own to a recipe that trains."""

from pathlib import Path
from typing import Any

import openpyxl
import pytest
import yaml


def rows(count: int) -> str:
    kinds = ["billing", "delivery", "returns"]
    return "".join(f"ticket number {i} about {kinds[i % 3]} and other things,{kinds[i % 3]}\n" for i in range(count))


def test_one_csv_becomes_a_trained_run(cli: Any, tmp_path: Path, monkeypatch: Any, tiny_settings: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tickets.csv").write_text("body,team\n" + rows(60))
    said = cli("init", "recipe.yaml", "--task", "team=tickets.csv")
    assert said.code == 0, said.err
    assert "label: column 'team'" in said.out
    assert "dev: a fifth of the rows" in said.out
    text = Path("recipe.yaml").read_text()
    assert "train: data/team-train.csv" in text
    assert str(tmp_path) not in text  # the folder can be moved
    settings = [word for setting in tiny_settings for word in ("--set", setting)]
    assert cli("check", "recipe.yaml", *settings).code == 0
    trained = cli("train", "recipe.yaml", *settings)
    assert trained.code == 0, trained.err
    assert cli("predict", "runs/recipe", "--task", "team", "--text", "where is my parcel").code == 0


def test_two_files_whose_dev_file_is_found_or_given(cli: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a-train", "a-dev", "b", "other"):
        Path(f"{name}.csv").write_text("body,team\n" + rows(30))
    said = cli("init", "--task", "one=a-train.csv", "--task", "two=b.csv", "--dev", "two=other.csv")
    assert said.code == 0, said.err
    text = Path("recipe.yaml").read_text()
    assert "dev: a-dev.csv" in text
    assert "dev: other.csv" in text
    assert not Path("data").exists()


def test_excels_csv_from_init_to_predictions(
    cli: Any, tmp_path: Path, monkeypatch: Any, tiny_settings: list[str]
) -> None:
    """Windows-1252 with semicolons: written into the recipe, and used by every command that reads the task's files."""
    monkeypatch.chdir(tmp_path)
    table = "Texte;Avis\n" + "".join(f"Numéro {i}, très {['bon', 'mauvais'][i % 2]};{'né'[i % 2]}\n" for i in range(40))
    for name in ("avis-train.csv", "avis-dev.csv", "new.csv"):
        Path(name).write_bytes(table.encode("cp1252"))
    said = cli("init", "--task", "avis=avis-train.csv")
    assert said.code == 0, said.err
    assert "encoding: read as Windows-1252, a guess" in said.out
    task = yaml.safe_load(Path("recipe.yaml").read_text(encoding="utf-8"))["tasks"]["avis"]
    assert (task["encoding"], task["delimiter"], task["dev"]) == ("cp1252", "semicolon", "avis-dev.csv")
    settings = [word for setting in tiny_settings for word in ("--set", setting)]
    checked = cli("check", "recipe.yaml", *settings)
    assert (checked.code, "n 20, é 20" in checked.out) == (0, True), checked.err
    assert "Windows-1252" not in checked.out  # the recipe says so: no guess any more
    guessed = cli("check", "recipe.yaml", *settings, "--set", "tasks.avis.encoding=null")
    assert "avis train: the file is not UTF-8 and was read as Windows-1252" in guessed.out
    assert cli("train", "recipe.yaml", *settings).code == 0
    assert cli("evaluate", "runs/recipe", "--on", "avis=new.csv").code == 0
    predicted = cli("predict", "runs/recipe", "--input", "new.csv", "--output", "out.csv")
    assert predicted.code == 0, predicted.err
    assert "Numéro 0, très bon" in Path("out.csv").read_text(encoding="utf-8")


def test_predict_reads_files_in_the_encoding_of_the_recipe(
    cli: Any, tmp_path: Path, monkeypatch: Any, tiny_settings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """An encoding that cannot be told from Windows-1252 by its bytes."""
    monkeypatch.chdir(tmp_path)
    table = "text,label\n" + "".join(f"dobře řečeno {i},{i % 2}\n" for i in range(20))
    Path("t.csv").write_bytes(table.encode("cp1250"))
    task = "{kind: yes_no, text: text, label: label, train: t.csv, dev: t.csv, encoding: cp1250}"
    Path("recipe.yaml").write_text(f"tasks: {{t: {task}}}\nname: r\n")
    assert cli("train", "recipe.yaml", *(word for s in tiny_settings for word in ("--set", s))).code == 0
    assert cli("predict", "runs/r", "--input", "t.csv", "--output", "out.csv").code == 0
    assert "dobře řečeno 0" in Path("out.csv").read_text(encoding="utf-8")
    assert "Windows-1252" not in caplog.text


def test_predict_reports_a_guessed_encoding(
    cli: Any, tiny_run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in.csv").write_bytes("text\nun café serré\n".encode("cp1252"))
    said = cli("predict", tiny_run.folder, "--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv")
    assert said.code == 0, said.err
    assert "in.csv: not UTF-8; read as Windows-1252, a guess" in caplog.text


def test_a_workbook_becomes_a_trained_run(cli: Any, tmp_path: Path, monkeypatch: Any, tiny_settings: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.title = "Notes"
    book.active.append(["nothing here"])
    for name, count in (("train", 40), ("dev", 20)):
        sheet = book.create_sheet(name)
        for row in (["body", "stars"], *([f"review {i} of a thing", float(i % 2 + 1)] for i in range(count))):
            sheet.append(row)
    book.save("book.xlsx")
    said = cli("init", "--task", "stars=book.xlsx#train")
    assert said.code == 0, said.err
    assert "label: column 'stars', named like the task 'stars'; 2 different integers" in said.out
    assert "dev: book.xlsx#dev" in Path("recipe.yaml").read_text(encoding="utf-8")
    settings = [word for setting in tiny_settings for word in ("--set", setting)]
    assert "1 20, 2 20" in cli("check", "recipe.yaml", *settings).out
    assert cli("train", "recipe.yaml", *settings).code == 0
    predicted = cli("predict", "runs/recipe", "--input", "book.xlsx#dev", "--output", "out.csv")
    assert predicted.code == 0, predicted.err
    assert Path("out.csv").read_text(encoding="utf-8").startswith("body,stars,predicted_stars,")


def test_columns_that_are_given_and_several_tasks_from_one_file(cli: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"subject {i} in words,body {i} in more words,{'abc'[i % 3]},{i % 2},{i % 5}\n" for i in range(60)]
    Path("tickets.csv").write_text("subject,body,label,Urgent,other\n" + "".join(lines))
    tasks = [word for name in ("team", "urgent", "rest") for word in ("--task", f"{name}=tickets.csv")]
    said = cli("init", *tasks, "--text", "team=subject,body", "--text", "urgent=body", "--label", "rest=other")
    assert said.code == 0, said.err
    written = yaml.safe_load(Path("recipe.yaml").read_text())["tasks"]
    assert {name: task["label"] for name, task in written.items()} == {
        "team": "label",
        "urgent": "Urgent",
        "rest": "other",
    }
    assert written["team"]["text"] == ["subject", "body"]
    assert written["urgent"]["text"] == "body"
    assert "label: column 'other', as given" in said.out


def test_label_columns_of_0_and_1_become_a_task_with_several_classes(
    cli: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"ticket {i} in words,{i % 2},{i // 2 % 2},{i % 5}\n" for i in range(60)]
    Path("tickets.csv").write_text("body,billing,login,stars\n" + "".join(lines))
    tasks = ["--task", "topics=tickets.csv", "--task", "rest=tickets.csv"]
    said = cli("init", *tasks, "--label", "topics=billing,login")
    assert said.code == 0, said.err
    written = yaml.safe_load(Path("recipe.yaml").read_text())["tasks"]
    assert (written["topics"]["kind"], written["topics"]["label"]) == ("multilabel", ["billing", "login"])
    assert written["rest"]["label"] == "stars"
    checked = cli("check", "recipe.yaml", "--set", "encoder={layers: 1, hidden: 16, heads: 2, ffn: 32}")
    assert checked.code == 0, checked.err


def test_what_cannot_be_guessed_is_left_blank(
    cli: Any, tmp_path: Path, monkeypatch: Any, tiny_settings: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"words of ticket {i},en,2024-05-{1 + i % 9:02},{'left right '[i % 2 * 5 :][:5] * 9}\n" for i in range(60)]
    Path("tickets.csv").write_text("body,language,created,answer\n" + "".join(lines))
    said = cli("init", "--task", "topic=tickets.csv")
    assert said.code == 0, said.err
    assert "label: not found" in said.out
    assert "Left blank: tasks.topic.label" in said.out
    text = Path("recipe.yaml").read_text()
    assert "label:  # FILL IN: the column with the labels" in text
    assert "(columns: body, language, created, answer)" in text
    for command in ("check", "train"):
        refused = cli(command, "recipe.yaml")
        assert refused.code == 1
        message = (
            "recipe.yaml: tasks.topic.label: must have a value, found nothing; fill in the name of the column with"
        )
        assert message in refused.err
    Path("recipe.yaml").write_text(text.replace("label:  #", "label: answer  #"))
    checked = cli("check", "recipe.yaml", *(word for setting in tiny_settings for word in ("--set", setting)))
    assert checked.code == 0, checked.err
    again = cli("init", "--task", "topic=tickets.csv", "--label", "topic=answer", "--force")
    assert again.code == 0, again.err
    assert "Left blank" not in again.out


def test_a_text_that_cannot_be_guessed_is_left_blank(cli: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("numbers.csv").write_text("id,label\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(30)))
    said = cli("init", "--task", "t=numbers.csv")
    assert said.code == 0, said.err
    assert [line for line in said.out.splitlines() if line.startswith("Left blank")] == [
        "Left blank: tasks.t.text",
        "Left blank: tasks.t.dev",
    ]
    refused = cli("check", "recipe.yaml")
    assert refused.code == 1
    assert "tasks.t.text: must have a value, found nothing; fill in the name of the column with the text" in refused.err
    assert "tasks.t.dev: must have a value, found nothing; fill in the file with the dev rows" in refused.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 1, "pass at least one task as --task NAME=FILE"),
        (["--task", "a"], 2, "must be NAME=FILE"),
        (["--task", "a=x.csv", "--task", "a=y.csv"], 2, "can be given only once"),
        (["--task", "../a=tickets.csv"], 1, "a task's name must be 1 to 64 letters, digits"),
        (["--task", "a=none.csv"], 1, "none.csv: no such file"),
        (["--task", "a=tickets.csv", "--dev", "b=tickets.csv"], 1, "there is no --task 'b'. Valid: a"),
        (["--task", "mood=tickets.csv", "--label", "mod=team"], 1, "--task 'mod' (did you mean mood?). Valid: mood"),
        (["--task", "a=tickets.csv", "--label", "a=taem"], 1, "no column 'taem'; its columns are: body, team"),
        (["--task", "a=tickets.csv", "--text", "a=bodi"], 1, "did you mean 'body'?"),
        (["--task", "a=tickets.csv", "--text", "a="], 2, "must be NAME=COLUMN[,COLUMN]"),
        (["--task", "a=tickets.csv", "--label", "team"], 2, "must be NAME=COLUMN"),
        (["there.yaml", "--task", "a=tickets.csv"], 1, "already exists"),
    ],
)
def test_refused(cli: Any, tmp_path: Path, monkeypatch: Any, arguments: list[str], code: int, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tickets.csv").write_text("body,team\n" + rows(30))
    Path("there.yaml").write_text("mine")
    said = cli("init", *arguments)
    assert said.code == code
    assert message in " ".join((said.err + said.out).replace("│", " ").split())
    assert Path("there.yaml").read_text() == "mine"
    assert not Path("recipe.yaml").exists()
