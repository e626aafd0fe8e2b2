"""A first recipe from files: readable again, with its guesses above each task."""

from pathlib import Path

import pytest
import yaml

from polytask import UserError, read_recipe, start_recipe


def test_the_text_is_a_recipe_with_a_comment_on_each_guess(tmp_path: Path) -> None:
    lines = "".join(f"how far is town {i}?,what is the way to town {i + 1}?,{i % 11 / 2}\n" for i in range(40))
    (tmp_path / "pairs.csv").write_text("question1,question2,closeness score\n" + lines)
    starter = start_recipe(tmp_path / "r.yaml", {"near": str(tmp_path / "pairs.csv")})
    (tmp_path / "r.yaml").write_text(starter.text)
    recipe = read_recipe(tmp_path / "r.yaml")
    near = recipe.tasks["near"]
    assert (near.kind, near.text, near.label, near.range) == (
        "score",
        ("question1", "question2"),
        "closeness score",
        (0, 5),
    )
    assert near.train == str(tmp_path / "data" / "near-train.csv")
    assert all(f"  # {reason}\n" in starter.text for reason in starter.reasons["near"])
    assert list(yaml.safe_load(starter.text)) == [
        "name",
        "encoder",
        "max_length",
        "tasks",
        "sampler",
        "optimizer",
        "train",
    ]


def test_a_recipe_with_blanks_is_refused_until_they_are_filled_in(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "body,note,answer\n" + "".join(f"words {i},more {i},{'yesno'[i % 2 :] * 15}\n" for i in range(30))
    )
    starter = start_recipe(tmp_path / "r.yaml", {"topic": str(tmp_path / "x.csv")})
    assert starter.blanks == ("tasks.topic.label",)
    (tmp_path / "r.yaml").write_text(starter.text)
    with pytest.raises(UserError, match=r"r\.yaml: tasks\.topic\.label: must have a value, found nothing; fill in"):
        read_recipe(tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_text(starter.text.replace("    label:  #", "    label: answer  #"))
    assert read_recipe(tmp_path / "r.yaml").tasks["topic"].label == "answer"
    given = start_recipe(tmp_path / "r.yaml", {"topic": str(tmp_path / "x.csv")}, labels={"topic": "answer"})
    assert given.blanks == ()


def test_two_tasks_of_one_file_have_different_labels(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "body,label,kind\n" + "".join(f"words {i},{i % 2},{'abc'[i % 3]}\n" for i in range(60))
    )
    file = str(tmp_path / "x.csv")
    starter = start_recipe(tmp_path / "r.yaml", {"one": file, "two": file, "three": file})
    tasks = yaml.safe_load(starter.text)["tasks"]
    assert [task["label"] for task in tasks.values()] == ["label", "kind", None]


def test_nothing_to_start_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one task"):
        start_recipe(tmp_path / "r.yaml", {})


def labelled_rows(folder: Path) -> str:
    """A file with three label columns, of which some cells are empty, and a class that only one row has."""
    (folder / "inbox-train.csv").write_text(
        "message,team,urgent,mood\n"
        + "".join(
            f"message {i},{'' if i % 3 == 0 else 'rare' if i == 1 else 'ab'[i % 2]},"
            f"{'' if i % 4 == 0 else ('no', 'yes')[i % 5 == 0]},{i % 5 + 1}\n"
            for i in range(120)
        )
    )
    return str(folder / "inbox-train.csv")


def test_tasks_of_one_file_with_empty_labels_share_rows(tmp_path: Path) -> None:
    file = labelled_rows(tmp_path)
    starter = start_recipe(tmp_path / "r.yaml", dict.fromkeys(("team", "urgent", "mood"), file))
    (tmp_path / "r.yaml").write_text(starter.text)
    tasks = read_recipe(tmp_path / "r.yaml").tasks
    assert {name: (task.kind, task.label, task.share_rows) for name, task in tasks.items()} == {
        "team": ("classes", "team", "inbox"),
        "urgent": ("yes_no", "urgent", "inbox"),
        "mood": ("classes", "mood", "inbox"),
    }
    assert {(task.train, task.dev) for task in tasks.values()} == {
        (str(tmp_path / "data" / "inbox-train.csv"), str(tmp_path / "data" / "inbox-dev.csv"))
    }
    assert "rare" in (tmp_path / "data" / "inbox-train.csv").read_text()
    assert "share_rows: the rows of urgent, mood; empty labels are masked" in starter.reasons["team"]
    assert starter.reasons["team"][1].endswith(": classes; empty in 40 of 120 rows")


def test_a_task_alone_skips_rows_with_an_empty_label(tmp_path: Path) -> None:
    starter = start_recipe(tmp_path / "r.yaml", {"team": labelled_rows(tmp_path)})
    task = yaml.safe_load(starter.text)["tasks"]["team"]
    assert (task["blank_labels"], task.get("share_rows")) == ("skip", None)
    assert starter.reasons["team"][1].endswith("; empty in 40 of 120 rows, which are left out")


def test_tasks_of_one_file_without_empty_labels_have_rows_of_their_own(tmp_path: Path) -> None:
    file = labelled_rows(tmp_path)
    labels = dict.fromkeys(("one", "two"), "mood")
    starter = start_recipe(tmp_path / "r.yaml", dict.fromkeys(labels, file), labels=labels)
    assert "share_rows" not in starter.text
    lines = [f"w {i},{['', 'a', 'a|b'][i % 3]},{i % 2}\n" for i in range(60)]
    (tmp_path / "x.csv").write_text("body,topics,kind\n" + "".join(lines))
    starter = start_recipe(tmp_path / "y.yaml", dict.fromkeys(("topics", "kind"), str(tmp_path / "x.csv")))
    assert "share_rows" not in starter.text  # a row without a topic is labelled


def test_options_are_written(tmp_path: Path) -> None:
    starter = start_recipe(tmp_path / "r.yaml", {"reply": "sample:replies-train"})
    (tmp_path / "r.yaml").write_text(starter.text)
    task = read_recipe(tmp_path / "r.yaml").tasks["reply"]
    assert (task.kind, task.options) == ("choice", ("reply_0", "reply_1", "reply_2", "reply_3"))
