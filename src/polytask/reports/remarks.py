"""Scores compared with those of the model at step 0 and of simple methods, in words."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from polytask.types import EvalReport


def compare_with(metric: Mapping[str, Any], reference: float, greater_is_better: bool) -> str:
    """Returns `better` or `worse` if the whole interval is on one side of the reference, else `no clear difference`."""
    above, below = metric["low"] > reference, metric["high"] < reference
    if above or below:
        return "better" if above == greater_is_better else "worse"
    return "no clear difference"


def remarks(trained: EvalReport, start: EvalReport, select: str) -> list[str]:
    """Returns a sentence for everything that training did not clearly improve."""
    sentences = []
    # A run that adds tasks with `guarantee: frozen` scores only the new ones at the start.
    common = replace(trained, tasks={task: score for task, score in trained if task in start.tasks})
    if select != "last" and start.chosen(select) > common.chosen(select):
        by = "the mean of the tasks" if select == "mean" else select
        sentences.append(
            f"The model at step 0 scored better on dev, by {by}, than the best checkpoint (step {trained.step}): "
            f"{abs(start.chosen(select)):.3f} before training, {abs(common.chosen(select)):.3f} after."
        )
    for task, score in trained:
        if task in trained.not_trained:
            continue
        value, name = score.metrics[score.primary], score.primary
        references = {}
        if task in start.tasks and name in start.tasks[task].metrics:
            references["the model at step 0"] = start.tasks[task].metrics[name].value
        if (simple := start.baselines.get(task)) and simple["metric"] == name:
            references[simple["what"]] = simple["value"]
        kinds = (("worse", "worse", " and than "), ("no clear difference", "not clearly better", " or than "))
        for verdict, words, joint in kinds:
            named = [
                f"{what} ({reference:.3f})"
                for what, reference in references.items()
                if compare_with(vars(value), reference, score.greater_is_better) == verdict
            ]
            if named:
                sentences.append(f"{task}: {name} {value} is {words} than {joint.join(named)}.")
    return sentences
