"""A recipe with probes of interference, as often as a tenth of the training time pays for. Knows recipes and runs."""

import math
from dataclasses import replace

import numpy as np

from polytask.build import make
from polytask.recipe.records import Recipe
from polytask.runs.prepare import Prepared, prepare
from polytask.samplers.base import Sampler, SamplerContext
from polytask.types import UserError

COST = 0.1
"""The share of the training time that probes may take."""
RATIO = 1.5
"""What a token of a probe costs at most beside one of a step, which has an optimizer to pay too: 1.2 was measured."""
FEWEST = 3
"""Probes below which nothing can be told."""


def with_probes(recipe: Recipe, every: int | None = None) -> Recipe:
    """The recipe with a probe every so many steps; left out: what it says itself, else every `affordable` steps."""
    if len(recipe.tasks) < 2:
        raise UserError(f"recipe: tasks: interference is between tasks: two are needed, found {len(recipe.tasks)}")
    every = every or recipe.train.interference_every or affordable(prepare(recipe))
    return replace(recipe, train=replace(recipe.train, interference_every=every))


def affordable(prepared: Prepared) -> int:
    """The steps that it takes to train on as many tokens as pay for a probe."""
    settings = prepared.recipe.train
    lengths = {task: _tokens_of_one(prepared, task) for task in prepared.tasks}
    sizes = {task: len(split) for task, split in prepared.splits("train").items()}
    a_probe = sum(min(settings.batch_size, sizes[task]) * lengths[task] for task in sizes)
    steps = settings.epochs * prepared.steps_per_epoch
    context = SamplerContext(
        sizes, settings.batch_size, prepared.recipe.seed, prepared.steps_per_epoch, settings.epochs
    )
    sampler: Sampler = make("sampler", prepared.recipe.sampler, "recipe: sampler", context)
    trained = sum(draw.count * lengths[draw.task] for _ in range(steps) for draw in sampler.next_step())
    every = math.ceil(RATIO * a_probe / COST / (settings.accumulate * trained / steps))
    if steps < FEWEST * every:
        raise UserError(
            f"recipe: train.interference_every: in {steps} steps a tenth of the time pays for {steps // every} probes, "
            f"and fewer than {FEWEST} tell nothing; give how often (--every 10, say), or train longer"
        )
    return every


def _tokens_of_one(prepared: Prepared, task: str) -> float:
    """How many tokens of a stream an example of the task takes, on average over at most a thousand or so."""
    head, lengths = prepared.model.head(task), prepared.tasks[task].splits["train"].store.lengths()
    some = lengths[:: max(1, len(lengths) // 1000)].tolist()
    return head.copies * float(np.mean([prepared.packer.length(tuple(texts), head.separate_texts) for texts in some]))
