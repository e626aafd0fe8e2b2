"""A first recipe from files: readable again, with its guesses above each task."""

from pathlib import Path

import pytest
import yaml

from polytask import UserError, read_recipe, start_recipe


def test_the_text_is_a_recipe_that_says_what_was_guessed(tmp_path: Path) -> None:
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


def test_nothing_to_start_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one task"):
        start_recipe(tmp_path / "r.yaml", {})
