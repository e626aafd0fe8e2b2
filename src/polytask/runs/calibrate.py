"""Calibrates the probabilities of a trained model: a temperature per task, fitted on dev and measured on test."""

from collections.abc import Mapping
from typing import Any

from polytask.evaluation.calibration import before_and_after, calibrate
from polytask.kinds.table import KINDS
from polytask.runs.prepare import Prepared
from polytask.runs.score import SplitScores


def calibrate_tasks(prepared: Prepared, scores: Mapping[str, SplitScores]) -> dict[str, dict[str, Any]]:
    """Returns each task's temperature, and its probabilities before and after, as the summary has them.

    Tasks that are not trained and, where tasks are added to a run with `guarantee: frozen`, the old tasks keep their
    probabilities.
    """
    calibrated = {}
    for name in prepared.evaluated:
        task = prepared.tasks[name]
        if not KINDS[task.labels.kind].is_calibrated or not task.spec.trained:
            continue
        outputs, gold = scores["dev"].outputs[name], task.splits["dev"].labels
        if not outputs.isfinite().all():  # the run diverged
            continue
        spec, fit = prepared.recipe.tasks[name], prepared.recipe.train.calibrate
        keeps = spec.thresholds in ("tuned", 0.5)  # others are meant for the probabilities as they are
        found = calibrate(outputs, gold, task.labels, name, spec.abstain_below, fit and keeps)
        if fit and not keeps:
            found["problem"] = "the recipe sets `thresholds`"
        if "test" in scores and name in scores["test"].outputs and found["after"] is not None:
            test = scores["test"].outputs[name], task.splits["test"].labels
            found["test"] = before_and_after(*test, task.labels, found["temperature"])
        calibrated[name] = found
    return calibrated
