"""Scores compared with those of the untrained model and of simple methods, in words."""

from collections.abc import Mapping
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
    if select != "last" and start.chosen(select) > trained.chosen(select):
        by = "the mean of the tasks" if select == "mean" else select
        sentences.append(
            f"The untrained model scored better on dev, by {by}, than the best checkpoint (step {trained.step}): "
            f"{abs(start.chosen(select)):.3f} before training, {abs(trained.chosen(select)):.3f} after."
        )
    for task, score in trained:
        value, name = score.metrics[score.primary], score.primary
        references = {}
        if task in start.tasks and name in start.tasks[task].metrics:
            references["the untrained model at step 0"] = start.tasks[task].metrics[name].value
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
