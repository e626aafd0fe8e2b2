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
