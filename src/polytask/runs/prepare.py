"""A recipe's data read and its model made: what comes before training. Knows recipes, tasks and models, no folder."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytask.build import encoder_folder, make_encoder, make_model, make_packer, start_heads
from polytask.disk.cache import cache_folder
from polytask.evaluation.metrics import chosen_metric
from polytask.evaluation.own_metrics import own_metrics, primary_of
from polytask.model import MultiTaskModel
from polytask.recipe.records import Recipe
from polytask.runs.bundle import Bundle, no_model
from polytask.tasks.describe import describe_split
from polytask.tasks.doctor import examine
from polytask.tasks.finding import Finding
from polytask.tasks.task import Task, read_tasks
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.training.groups import freeze
from polytask.types import UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A recipe whose data is read and whose model is made: nothing but training is left to go wrong."""

    recipe: Recipe
    tokenizer: TextTokenizer
    tasks: Mapping[str, Task]
    packer: Packer
    model: MultiTaskModel
    steps_per_epoch: int
    drawn: tuple[str, ...]
    """The tasks that steps are drawn from: all of them, or those that are added to a run."""

    def splits(self, name: str) -> dict[str, Any]:
        """Each task's split of this name, where it has one."""
        return {task: entry.splits[name] for task, entry in self.tasks.items() if name in entry.splits}

    def findings(self) -> list[Finding]:
        """What a look at the data finds, the worst first."""
        apart = [name for name in self.tasks if self.model.head(name).separate_texts]
        return examine(self.tasks, self.packer.max_length, apart, self.tokenizer.unk_id)

    @property
    def bundle(self) -> Bundle:
        labels = {name: task.labels for name, task in self.tasks.items()}
        return Bundle(self.model, self.tokenizer, self.packer, self.recipe.tasks, labels, self.recipe.adapter)


def prepare(recipe: Recipe) -> Prepared:
    """Finds the encoder, reads and tokenizes the data, makes the model."""
    if recipe.add is not None:
        raise UserError("recipe: add: this recipe is for a run that has finished: polytask add-task RUN RECIPE")
    check_teachers(recipe)
    folder = encoder_folder(recipe.encoder)
    tokenizer = TextTokenizer.load(folder, recipe.max_length)
    check_metrics(recipe)
    tasks = {task.spec.name: task for task in read_tasks(list(recipe.tasks.values()), tokenizer, cache_folder())}
    labels = {name: task.labels for name, task in tasks.items()}
    model = make_model(
        recipe.tasks, labels, recipe.adapter, lambda: make_encoder(recipe, folder, tokenizer), seed=recipe.seed
    )
    if isinstance(recipe.encoder, str):
        start_heads(model, folder)
    freeze(model, recipe.train)
    return assemble(recipe, tokenizer, tasks, model, tuple(tasks))


def check_teachers(recipe: Recipe) -> None:
    """Refuses a teacher that is no finished run, before any data is read."""
    for name, run in recipe.teachers.items():
        if not Path(run).is_dir():
            raise UserError(f"recipe: teachers.{name}: {run}: there is no such run")
        if not any((folder / "tasks.json").is_file() for folder in (Path(run) / "model", Path(run))):
            raise UserError(f"recipe: teachers.{name}: {no_model(Path(run))}")


def check_metrics(recipe: Recipe) -> None:
    """Every metric that the recipe names must exist, and functions of the user's own must load."""
    for spec in recipe.tasks.values():
        primary_of(spec)
    task, _, metric = recipe.train.select.partition(".")
    if metric:
        spec = recipe.tasks[task]
        chosen_metric(metric, spec.kind, "recipe: train.select", own_metrics(spec))


def assemble(
    recipe: Recipe, tokenizer: TextTokenizer, tasks: Mapping[str, Task], model: MultiTaskModel, drawn: tuple[str, ...]
) -> Prepared:
    """What is left to say when data and model are there; `drawn` are the tasks whose training examples make steps."""
    examples = sum(len(tasks[name].splits["train"]) for name in drawn)
    a_step = recipe.train.batch_size * recipe.train.accumulate
    steps_per_epoch = recipe.train.steps_per_epoch or -(-examples // a_step)
    steps = recipe.train.epochs * steps_per_epoch
    if recipe.train.warmup >= 1 and recipe.train.warmup > steps:
        log.warning(
            "train.warmup: %g steps, and the run has %d: the learning rate never reaches its full value",
            recipe.train.warmup,
            steps,
        )
    return Prepared(recipe, tokenizer, tasks, make_packer(recipe, tokenizer), model, steps_per_epoch, drawn)


def describe_task(task: Task, prepared: Prepared) -> dict[str, Any]:
    spec, labels = task.spec, task.labels
    apart = prepared.model.head(spec.name).separate_texts
    return {
        "kind": spec.kind,
        "classes": list(labels.classes),
        "range": [labels.low, labels.high] if spec.kind == "score" else None,
        "text": list(spec.text),
        "label": spec.label,
        "metric": primary_of(spec).name,
        "data": {name: describe_split(split, labels, prepared.packer, apart) for name, split in task.splits.items()},
    }
