"""A cell is identified by its recipe, data and code."""

import json
from dataclasses import replace
from pathlib import Path

import polytask
from polytask import Finished, prepare, read_recipe
from polytask.studies.cells import cell_key, key_of_run, summary_of
from polytask.studies.code import NOT_IN_A_RESULT, code_fingerprint, result_files

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


def test_the_key_depends_on_code_that_changes_results_only() -> None:
    source = Path(polytask.__file__).parent
    files = {path.relative_to(source).as_posix() for path in result_files(source)}
    assert len(code_fingerprint()) == 64
    packages = (
        "adapters",
        "encoders",
        "evaluation",
        "heads",
        "kernels",
        "runs",
        "serving",
        "tasks",
        "text",
        "training",
    )
    for package in packages:
        assert any(name.startswith(f"{package}/") for name in files), package
    assert {"model.py", "evaluation/metrics.py", "kinds/classes.py"} <= files
    for package in NOT_IN_A_RESULT:
        folder = package.replace(".", "/")
        assert (source / folder / "__init__.py").is_file(), f"{package} is not a package"
        assert not any(name.startswith(f"{folder}/") for name in files)
    assert not {"__init__.py", "__main__.py", "version.py"} & files


def test_result_files_leave_packages_and_subpackages_out(tmp_path: Path) -> None:
    for name in ("cli/train.py", "training/loop.py", "evaluation/metrics.py", "evaluation/comparison/verdict.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in result_files(tmp_path)] == ["metrics.py", "loop.py"]


def test_only_a_finished_run_has_a_summary(tmp_path: Path) -> None:
    assert summary_of(tmp_path) is None
    (tmp_path / "summary.json").write_text('{"finished": fal')
    assert summary_of(tmp_path) is None


def test_the_key_of_a_run_is_that_of_its_inputs(tiny_run: Finished, tiny_settings: list[str], tmp_path: Path) -> None:
    recipe = read_recipe(QUICKSTART, tiny_settings)
    assert key_of_run(recipe, tiny_run.folder) == cell_key(recipe, prepare(recipe))
    assert key_of_run(replace(recipe, seed=1), tiny_run.folder) != cell_key(recipe, prepare(recipe))
    recorded = json.loads((tiny_run.folder / "environment.json").read_text())
    recorded["data"]["opinion"]["dev"]["sha256"] = "0" * 64
    (tmp_path / "environment.json").write_text(json.dumps(recorded))
    assert key_of_run(recipe, tmp_path) not in (None, key_of_run(recipe, tiny_run.folder))
    (tmp_path / "environment.json").write_text("{}")
    assert key_of_run(recipe, tmp_path) is None
