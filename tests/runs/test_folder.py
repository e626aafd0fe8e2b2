"""The names of a run's files are those that a run writes."""

from pathlib import Path

from polytask import Finished
from polytask.runs.folder import ModelFolder, RunFolder, find_model


def test_a_run_has_these_files(tiny_run: Finished) -> None:
    folder = RunFolder(tiny_run.folder)
    written = {path for path in folder.path.iterdir() if not path.name.startswith(".")}
    files = {folder.recipe, folder.environment, folder.metrics, folder.summary, folder.report}
    assert written == files | {folder.tensorboard, folder.all_predictions, folder.model.path}
    assert folder.predictions("opinion", "dev") in set(folder.all_predictions.iterdir())
    model = {*folder.model.files, folder.model.card, folder.model.path / "tokenizer_config.json"}
    assert set(folder.model.path.iterdir()) == model


def test_find_model(tiny_run: Finished, tmp_path: Path) -> None:
    model = ModelFolder(tiny_run.folder / "model")
    assert find_model(tiny_run.folder) == model
    assert find_model(model.path) == model
    assert find_model(tmp_path) is None
