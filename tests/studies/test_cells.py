"""A cell is known by what goes into it."""

from dataclasses import replace
from pathlib import Path

from polytask import prepare, read_recipe
from polytask.studies.cells import SHOWING, cell_key, code_fingerprint, summary_of

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def test_the_key_follows_recipe_and_data_and_not_the_name(tmp_path: Path, tiny_settings: list[str]) -> None:
    (tmp_path / "dev.csv").write_text("text,opinion\ngood,positive\nbad,negative\n")
    recipe = read_recipe(QUICKSTART, [*tiny_settings, f"tasks.opinion.dev={tmp_path / 'dev.csv'}"])
    prepared = prepare(recipe)
    key = cell_key(recipe, prepared)
    assert key == cell_key(replace(recipe, name="other"), prepared)
    assert key != cell_key(replace(recipe, seed=1), prepared)
    assert key != cell_key(replace(recipe, train=replace(recipe.train, epochs=3)), prepared)
    (tmp_path / "dev.csv").write_text("text,opinion\ngood,positive\nbad,very negative\n")
    assert key != cell_key(recipe, prepare(recipe))


def test_code_that_only_shows_is_left_out() -> None:
    assert len(code_fingerprint()) == 64
    assert {"cli", "experiments", "evaluation.report"} <= SHOWING
    assert not {"training", "encoder", "model", "heads", "evaluation", "evaluation.metrics"} & SHOWING


def test_only_a_finished_run_has_a_summary(tmp_path: Path) -> None:
    assert summary_of(tmp_path) is None
    (tmp_path / "summary.json").write_text('{"finished": fal')
    assert summary_of(tmp_path) is None
