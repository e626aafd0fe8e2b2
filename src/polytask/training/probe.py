"""A look at how the tasks' gradients on shared parameters agree, between two steps. Changes nothing of the training.

Knows the model, the examples and the objective; knows no method, no file and no statistics.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from polytask.model import MultiTaskModel
from polytask.seeds import RandomState
from polytask.training.feed import Feed
from polytask.training.gradients import Gradients, Source, cut_pass, shared_by_layer
from polytask.training.objective import Objective
from polytask.training.step import half_precision
from polytask.types import Interference, TrainSettings

ALL = "all"


def probe(
    model: MultiTaskModel, feed: Feed, objective: Objective, settings: TrainSettings, step: int, progress: float
) -> Interference:
    """The cosines and norms of the gradients of one batch of each task, as its loss counts in a step.

    The examples come from (seed, step, task), not from the order of training, and nothing is dropped out; afterwards
    the random numbers, the weights' gradients and what training is given next are what they were. The graphs of all
    tasks are held at once.
    """
    started = time.perf_counter()
    tasks = tuple(task for task in model.tasks if task in feed.examples)
    grams: dict[str, Tensor] = {}
    if len(tasks) > 1 and any(shared for _, shared in shared_by_layer(model)):
        with _undisturbed(model):
            sources = []
            for task in tasks:
                stream = feed.drawn(task, settings.batch_size, "interference", step).to(model.device)
                with half_precision(model, settings):
                    cut = cut_pass(model, stream)
                    losses = objective.task_losses(model, cut.done.stream, cut.done.outputs, progress)
                sources.append(Source(task, [(cut, objective.policy.weigh(losses))]))
            found = Gradients(model, sources, {}, summed=False)
            grams = {ALL: found.gram_KK, **found.by_layer}
    matrices = torch.stack(list(grams.values())).tolist() if grams else []  # one wait for the device, not one a layer
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


@contextmanager
def _undisturbed(model: MultiTaskModel) -> Iterator[None]:
    """Inside, no dropout; afterwards, torch's random numbers and every module's mode as they were."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with RandomState(model.device).again():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _cosine(product: float, size: float) -> float | None:
    if not (0 < size < math.inf and math.isfinite(product)):  # no gradient, or a run that diverged
        return None
    return _rounded(min(1.0, max(-1.0, product / size)))


def _rounded(value: float) -> float:
    """Six digits are more than any reader needs, and a third of the journal."""
    return float(f"{value:.6g}")
