"""Adds interference probes to a recipe, as often as a tenth of the training time allows."""

import math
from dataclasses import replace

from polytask.recipe.records import Recipe
from polytask.runs.prepare import Prepared, prepare, trained_tasks
from polytask.runs.session import make_sampler
from polytask.tasks.training_rows import training_rows
from polytask.types import UserError

COST = 0.1
"""The share of the training time that probes may take."""
RATIO = 1.5
"""An upper bound of the cost of a token in a probe relative to one in a step; 1.2 was measured."""
FEWEST = 3
"""The smallest number of probes that can show anything."""


def with_probes(recipe: Recipe, every: int | None = None) -> Recipe:
    """The recipe with a probe every `every` steps; left out: as the recipe says, else every `affordable` steps."""
    if (trained := len(trained_tasks(recipe))) < 2:
        raise UserError(f"recipe: tasks: interference needs two or more trained tasks, found {trained}")
    every = every or recipe.train.interference_every or affordable(prepare(recipe))
    return replace(recipe, train=replace(recipe.train, interference_every=every))


def affordable(prepared: Prepared) -> int:
    """The number of steps between probes that keeps their cost within `COST`."""
    settings, specs = prepared.recipe.train, prepared.recipe.tasks
    lengths = {name: prepared.mean_tokens(name, most=1000) for name in prepared.drawn_rows}
    sizes = {task: len(training_rows(prepared.tasks[task])) for task in prepared.drawn}
    a_probe = sum(min(settings.batch_size, sizes[task]) * lengths[specs[task].share_rows or task] for task in sizes)
    steps = settings.epochs * prepared.steps_per_epoch
    sampler = make_sampler(prepared)
    trained = sum(draw.count * lengths[draw.task] for _ in range(steps) for draw in sampler.next_step())
    every = math.ceil(RATIO * a_probe / COST / (settings.accumulate * trained / steps))
    if steps < FEWEST * every:
        raise UserError(
            f"recipe: train.interference_every: a tenth of the time of {steps} steps allows {steps // every} probes, "
            f"and fewer than {FEWEST} show nothing; pass --every (for example --every 10), or train longer"
        )
    return every
