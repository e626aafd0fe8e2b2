"""Training from Python with one call: tasks, data in memory, and a model to predict with."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from polytask.processes import refuse_several
from polytask.recipe.reading import recipe_from
from polytask.recipe.task_classes import TaskFields
from polytask.runs.finish import Finished
from polytask.runs.run import start_training
from polytask.serving.predictor import Predictor


@dataclass(frozen=True)
class Fitted(Finished):
    """A run that has finished, with its model."""

    @cached_property
    def model(self) -> Predictor:
        """The trained model, loaded from the run's folder when it is first used."""
        return Predictor.load(self.folder)

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The primary metric of each task, by split: scores["dev"]["team"]. `evaluations` has all metrics."""
        return {split: {task: score.value for task, score in report} for split, report in self.evaluations.items()}


def fit(
    tasks: Mapping[str, TaskFields | Mapping[str, Any]],
    encoder: str | Mapping[str, Any] = "minilm",
    *,
    run: str | Path | None = None,
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
    trust_plugins: bool = False,
    **settings: Any,
) -> Fitted:
    """Trains one encoder for these tasks and returns the finished run. It prints nothing.

        fitted = polytask.fit(
            tasks={"team": polytask.Classes(frame, text="message", label="team")},
            encoder="minilm",
            adapter="pal",
            train={"epochs": 5},
        )
        fitted.scores["dev"]["team"]
        fitted.model.predict(new_frame)

    The run's folder has the recipe and the data: `polytask train FOLDER/recipe.yaml --run OTHER` gives the same losses.
    To see the progress or to stop early, iterate `start_training({"tasks": tasks, ...}).steps()` instead.

    Args:
        tasks: The tasks by name: `Classes`, `YesNo`, `Score`, `MultiLabel`, `Tokens`, `Match` or `Choice`, or mappings
            as in a recipe file.
        encoder: The pretrained encoder: minilm, a folder or a hub ID; {"layers": 2, ...} is an untrained one.
        run: The folder to write. Default: runs/NAME, where NAME is the setting `name` (default: run). A folder that
            contains a run is an error, unless `resume` is given.
        resume: Continues a run that was stopped, with the same tasks, data and settings; a finished one is returned.
        allow_change: Resumes although the recipe or the data has changed.
        keep_checkpoints: Keeps the checkpoints when the run has finished.
        trust_plugins: Remembers that the plug-ins, which are Python programs, may run.
        settings: Further fields of a recipe, such as name, seed, max_length, adapter, sampler, optimizer or train.
    """
    refuse_several("fit")  # a Fitted reads the run's folder, which other processes need not see
    recipe = recipe_from({"tasks": tasks, "encoder": encoder, **settings}, where="fit")
    finished = start_training(recipe, run, resume, allow_change, keep_checkpoints, trust_plugins).complete()
    return Fitted(**{f.name: getattr(finished, f.name) for f in fields(Finished)})
