"""Measures how the tasks' gradients on shared parameters agree, between two steps. It does not affect training.

Knows the model, the examples and the objective; knows no method, no file and no statistics.
"""

import math
import time

import torch
from torch import Tensor

from polytask.model import MultiTaskModel
from polytask.modes import eval_mode
from polytask.seeds import RandomState
from polytask.settings import TrainSettings
from polytask.training.feed import Feed
from polytask.training.gradients import Gradients, Source, cut_pass, shared_by_layer
from polytask.training.objective import Objective
from polytask.training.step import half_precision
from polytask.types import Interference

ALL = "all"


def probe(
    model: MultiTaskModel, feed: Feed, objective: Objective, settings: TrainSettings, step: int, progress: float
) -> Interference:
    """Return the cosines and norms of the gradients of one batch of each task, weighted as in a step.

    The examples depend on (seed, step, task), not on the order of training, and there is no dropout. Afterwards the
    random state, the gradients of the weights and the order of the examples are unchanged. The graphs of all tasks are
    in memory at the same time.
    """
    started = time.perf_counter()
    tasks = tuple(task for task in model.tasks if task in feed.examples)
    grams: dict[str, Tensor] = {}
    if len(tasks) > 1 and any(shared for _, shared in shared_by_layer(model)):
        with eval_mode(model), RandomState(model.device).replay():
            sources = []
            for task in tasks:
                stream = feed.draw(task, settings.batch_size, "interference", step).to(model.device)
                with half_precision(model, settings):
                    cut = cut_pass(model, stream)
                    losses = objective.task_losses(model, stream, cut.forward.outputs, progress)
                sources.append(Source(task, [(cut, objective.policy.weigh(losses))]))
            gradients = Gradients(model, sources, {}, summed=False)
            grams = {ALL: gradients.gram_KK, **gradients.by_layer}
    # Stacked, so that it waits for the device once instead of once per layer.
    matrices = torch.stack(list(grams.values())).tolist() if grams else []
    layers: dict[str, list[list[float | None]]] = {}
    norms: dict[str, list[float | None]] = {}
    for name, gram_KK in zip(grams, matrices, strict=True):
        sizes = [gram_KK[k][k] ** 0.5 for k in range(len(tasks))]
        if any(sizes):
            norms[name] = [_rounded(size) if math.isfinite(size) else None for size in sizes]
            layers[name] = [
                [_cosine(product, sizes[i] * sizes[j]) for j, product in enumerate(row)]
                for i, row in enumerate(gram_KK)
            ]
    return Interference(step, tasks, layers, norms, time.perf_counter() - started)


def _cosine(product: float, size: float) -> float | None:
    if not (0 < size < math.inf and math.isfinite(product)):  # no gradient, or the run has diverged
        return None
    return _rounded(min(1.0, max(-1.0, product / size)))


def _rounded(value: float) -> float:
    """Round to six digits, which keeps the journal small."""
    return float(f"{value:.6g}")
