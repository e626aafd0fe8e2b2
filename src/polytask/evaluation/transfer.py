"""Transfer between tasks that are learned one after another: scores after every stage, and forgetting. Knows no model.

R[i, j] is the score of task j on dev, by its primary metric, after stage i of T; R[0, j] is that before training;
s(j) is the stage in which task j was learned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polytask.disk.json_files import read_json_lines
from polytask.types import Stage

Floats = NDArray[np.float64]


def read_transfer(journal: Path, stages: Sequence[Stage]) -> dict[str, Any] | None:
    """Computes transfer and forgetting from metrics.jsonl; None if a stage has no evaluation at its end.

    Plain text is left out, because perplexities have another scale. Where lower is better, the sign of differences is
    inverted, so that forgetting is always positive.
    """
    evaluations: dict[int, Mapping[str, Any]] = {}
    for line in read_json_lines(journal):
        if line.get("kind") == "evaluation":
            evaluations[line["step"]] = line["tasks"]
    steps = [0, *(stage.last for stage in stages)]
    if any(step not in evaluations for step in steps):
        return None
    tasks = [stage.task for stage in stages if evaluations[0][stage.task]["primary"] != "perplexity"]
    if not tasks:
        return None
    values = np.array([[_value(evaluations[step][task]) for task in tasks] for step in steps])
    scores = values * [1 if evaluations[0][task].get("greater_is_better", True) else -1 for task in tasks]
    learned = [1 + [stage.task for stage in stages].index(task) for task in tasks]
    return {
        "stages": [asdict(stage) for stage in stages],
        "metrics": {task: evaluations[0][task]["primary"] for task in tasks},
        "scores": values.tolist(),
        "backward": backward(scores, learned),
        "forward": forward(scores, learned),
        "forgetting": dict(zip(tasks, forgetting(scores, learned), strict=True)),
        "mean_forgetting": _mean([x for x in forgetting(scores, learned) if x is not None]),
    }


def _value(score: Mapping[str, Any]) -> float:
    value: float = score["metrics"][score["primary"]]["value"]
    return value


def backward(scores: Floats, learned: Sequence[int]) -> float | None:
    """Returns the mean of `R[T, j] - R[s(j), j]` over the tasks before the last (Lopez-Paz & Ranzato 2017).

    This is the effect of later tasks on earlier ones: negative if these got worse. None if there is one task only.
    """
    last = len(scores) - 1
    return _mean([scores[last, j] - scores[s, j] for j, s in enumerate(learned) if s < last])


def forward(scores: Floats, learned: Sequence[int]) -> float | None:
    """Returns the mean of `R[s(j)-1, j] - R[0, j]` over the tasks after the first (Lopez-Paz & Ranzato 2017).

    This is the effect of earlier tasks on later ones. A task's head is untrained until the task's own stage, so it
    shows how the changed encoder suits an untrained head; a head without weights (cosine) shows the encoder itself.
    """
    return _mean([scores[s - 1, j] - scores[0, j] for j, s in enumerate(learned) if s > 1])


def forgetting(scores: Floats, learned: Sequence[int]) -> list[float | None]:
    """Returns `max_{i>=1} R[i, j] - R[T, j]` of each task: how far it ends below its best score.

    Chaudhry et al. 2018, with i up to T. None for the task of the last stage, which cannot be forgotten.
    """
    last = len(scores) - 1
    lost = scores[1:].max(0) - scores[last]
    return [float(lost[j]) if s < last else None for j, s in enumerate(learned)]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
