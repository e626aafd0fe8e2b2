"""Adds tasks, or a class of a task, to a finished run. The result is a run of its own, with the old tasks too.

The new run starts from the old one's model: its encoder, and each old task's head and adapter. `guarantee: frozen`
trains the new parts only; `guarantee: measured` trains the encoder too, compares every old task before and after, and
saves no model if one of them drops too far.
"""

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polytask import seeds
from polytask.build import encoder_folder, make_model, make_packer, most_tokens, start_heads
from polytask.disk.cache import cache_folder
from polytask.disk.lock import FolderLock
from polytask.kinds.table import KINDS
from polytask.methods import find_method
from polytask.model import MultiTaskModel
from polytask.plugins.files import use_plugins
from polytask.pretrained.weights import load_encoder
from polytask.recipe.records import Recipe
from polytask.recipe.task_classes import Data
from polytask.runs.bundle import task_tensors
from polytask.runs.finish import Finished
from polytask.runs.folder import RunFolder
from polytask.runs.gate import judge_old_tasks
from polytask.runs.joining import OldRun, join_recipes, read_old_run, read_old_split
from polytask.runs.new_class import NewClass, copy_weights, join_class, rows_without_class, train_new_row_only
from polytask.runs.prepare import Prepared, check_metrics, check_warmup, methods_origin, trained_tasks
from polytask.runs.run import Running, running_from
from polytask.runs.session import make_policy, make_session
from polytask.runs.start import open_run
from polytask.runs.teachers import Teacher, load_teachers, teacher_origin
from polytask.settings import AddSettings
from polytask.tasks.task import Task, read_tasks, with_tags
from polytask.training.groups import freeze
from polytask.training.loop import Session
from polytask.types import LabelSpace, UserError, errors_in


def add_task(
    run: str | Path,
    recipe: str | Path | Mapping[str, Any],
    folder: str | Path | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
    trust_plugins: bool = False,
) -> Finished:
    """Adds the tasks of a recipe (a file or a mapping) to a finished run; the result is a run of its own in `folder`.

    `finished.refused` says why no model was saved, if an old task dropped by more than `add.max_drop`. `resume`,
    `allow_change`, `keep_checkpoints` and `trust_plugins` are those of `start_training`.
    """
    options = resume, allow_change, keep_checkpoints, trust_plugins
    return start_adding(run, recipe, folder, settings, *options).complete()


def start_adding(
    run: str | Path,
    recipe: str | Path | Mapping[str, Any],
    folder: str | Path | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
    trust_plugins: bool = False,
) -> Running:
    """Prepares the run of `add_task`, with the same arguments: iterate its `steps()`, then call `finish()`."""
    old = read_old_run(Path(run), trust_plugins)
    whole = join_recipes(old, recipe, settings, trust_plugins)
    target = RunFolder(Path(folder) if folder is not None else Path("runs") / whole.name)
    with errors_in(recipe if isinstance(recipe, str | Path) else None):
        return start_joined(old, whole, target, FolderLock(target.path), resume, allow_change, keep_checkpoints)


def add_class(
    run: str | Path,
    task: str,
    new_class: str,
    data: Data,
    dev: Data = None,
    folder: str | Path | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
    trust_plugins: bool = False,
) -> Finished:
    """Adds a class to a task of a finished run; the result is a run of its own in `folder`.

    `data` is a file, or in memory, with the columns of the task: rows of the new class, and of old classes too if you
    have new ones. Some of them are held back for evaluation, unless there is `dev`. `settings` are fields of the new
    run's recipe. `finished.summary.added.classes` has every class's precision and recall before and after;
    `finished.refused` says why no model was saved, if the old rows' score dropped by more than `add.max_drop`.
    """
    options = resume, allow_change, keep_checkpoints, trust_plugins
    return start_adding_class(run, task, new_class, data, dev, folder, settings, *options).complete()


def start_adding_class(
    run: str | Path,
    task: str,
    new_class: str,
    data: Data,
    dev: Data = None,
    folder: str | Path | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
    trust_plugins: bool = False,
) -> Running:
    """Prepares the run of `add_class`, with the same arguments: iterate its `steps()`, then call `finish()`."""
    old = read_old_run(Path(run), trust_plugins)
    wanted = NewClass(task, new_class, *(os.fspath(d) if isinstance(d, os.PathLike) else d for d in (data, dev)))
    whole = join_class(old, wanted, list(settings), trust_plugins)
    target = RunFolder(Path(folder) if folder is not None else Path("runs") / whole.name)
    return start_joined(old, whole, target, FolderLock(target.path), resume, allow_change, keep_checkpoints)


def start_joined(
    old: OldRun,
    recipe: Recipe,
    target: RunFolder,
    lock: FolderLock,
    resume: bool,
    allow_change: bool,
    keep_checkpoints: bool,
) -> Running:
    """Starts a run with a recipe of `join_recipes` or `join_class`, in a folder that the caller may have locked."""
    with open_run(target, recipe, lock, resume, allow_change) as start:
        prepared = prepare_added(start.recipe, old)
        origin = {**old.origin, **teacher_origin(recipe), **methods_origin(prepared)}
        start.check_data(prepared, origin)
        teachers = {} if start.finished else {**load_teachers(prepared), **_old_model_as_teacher(prepared, old)}
        session = make_session(prepared, target, start.device, teachers, start.checkpoint)
        if session.step == 0 and start.finished is None:
            _start_regularizers(session)
        start.write(prepared, origin)
        return running_from(start, prepared, session, keep_checkpoints, partial(judge_old_tasks, old, prepared))


def prepare_added(recipe: Recipe, old: OldRun) -> Prepared:
    """Reads the new tasks, and what is needed of the old ones; builds the model from the old one's weights."""
    tokenizer = old.bundle.tokenizer.with_room(most_tokens(recipe.max_length, recipe.tasks.values()))
    add = _settings(recipe)
    plugins = use_plugins(recipe.plugins)
    check_metrics(recipe)
    kept = [name for name in old.tasks if name != add.task]
    new = [spec for name, spec in recipe.tasks.items() if name not in kept]
    read, word_tags = read_tasks(new, tokenizer, cache_folder(), old.bundle.tagger), old.bundle.word_tags
    added = {task.spec.name: with_tags(task, word_tags) for task in read}
    reader = _reader_of_old_examples(recipe, old)
    tasks = {name: added.get(name) or _old_task(recipe, old, name, reader) for name in recipe.tasks}
    if add.task is not None:
        _check_old_rows(tasks[add.task], reader)
    model = _make_model(recipe, old, {name: task.labels for name, task in tasks.items()})
    frozen = add.guarantee == "frozen"
    prepared = Prepared(
        recipe,
        tokenizer,
        tasks,
        make_packer(recipe, tokenizer, tagged=word_tags is not None),
        model,
        drawn=tuple(name for name in added if recipe.tasks[name].trained),
        evaluated=tuple(added) if frozen else tuple(tasks),
        remembered=() if frozen else tuple(name for name in kept if recipe.tasks[name].trained),
        grown=add.task,
        word_tags=word_tags,
        temperatures=old.bundle.temperatures,
        plugins=plugins,
    )
    prepared.check_lengths()
    check_warmup(prepared)
    return prepared


def _check_old_rows(task: Task, reader: str | None) -> None:
    """Refuses a regularizer that needs rows of the old classes if none are rehearsed."""
    rows = rows_without_class(task.splits["train"].labels, task.labels)
    if reader is not None and reader.startswith("regularizers") and not len(rows):
        raise UserError(f"recipe: {reader}: needs old training rows of task {task.spec.name}; leave out add.rehearse=0")


def _settings(recipe: Recipe) -> AddSettings:
    assert recipe.add is not None
    return recipe.add


def _reader_of_old_examples(recipe: Recipe, old: OldRun) -> str | None:
    """The first field of the recipe that needs training examples of the old tasks; None if no field does."""
    add, policy = _settings(recipe), make_policy(recipe, dict.fromkeys(trained_tasks(recipe), 1.0), 1)
    if add.guarantee == "measured" and policy.memory is not None:
        return f"policy: {recipe.policy.name}"
    if add.distill:
        raise UserError(
            f"recipe: add.distill: the policy {recipe.policy.name} remembers no examples that the old model could "
            "teach; use replay, gem or a_gem"
        )
    for name in (choice.name for choice in recipe.regularizers):
        if getattr(find_method("regularizer", name, "recipe: regularizers"), "needs_examples", False):
            return f"regularizers: {name}"
    return next((f"teachers.{name}" for name in recipe.teachers if name in old.tasks), None)


def _old_task(recipe: Recipe, old: OldRun, name: str, reader: str | None) -> Task:
    spec, bundle = recipe.tasks[name], old.bundle
    files = {"dev": spec.dev, "test": spec.test, "train": spec.train if reader and spec.trained else None}
    splits = {
        split: read_old_split(old, spec, split, f" for {reader}" if split == "train" else "")
        for split, file in files.items()
        if file is not None
    }
    return Task(spec, bundle.labels[name], splits)


def _make_model(recipe: Recipe, old: OldRun, labels: Mapping[str, LabelSpace]) -> MultiTaskModel:
    """The old tasks first, with all their weights; the parts of new tasks are initialized from the seed."""
    dropout = (recipe.dropout, recipe.attention_dropout)
    tags = old.bundle.word_tags
    model = make_model(
        recipe.tasks,
        labels,
        recipe.adapter,
        lambda: load_encoder(old.model.path, *dropout),
        seed=recipe.seed,
        tags=None if tags is None else len(tags.names),
    )
    new = [name for name in model.tasks if name not in old.tasks]
    if isinstance(recipe.encoder, str) and any(model.head(name).pretrained for name in new):
        start_heads(model, encoder_folder(recipe.encoder))
    with torch.no_grad():
        if model.word_tags is not None and old.bundle.model.word_tags is not None:
            model.word_tags.weight.copy_(old.bundle.model.word_tags.weight)
        for name in old.tasks:
            theirs = task_tensors(old.bundle.model, name)
            for key, tensor in task_tensors(model, name).items():
                copy_weights(tensor, theirs[key], f"recipe: tasks.{name}.head: {key}")
        _copy_shared(model, old.bundle.model)
    add, frozen = _settings(recipe), _settings(recipe).guarantee == "frozen"
    kept = [name for name in old.tasks if frozen and name != add.task]
    freeze(model, recipe.train, kept, [name for name in model.tasks if not recipe.tasks[name].trained])
    if frozen and add.task is not None:
        train_new_row_only(model.head(add.task), old.bundle.model.head(add.task))
    return model


def _copy_shared(model: MultiTaskModel, old: MultiTaskModel) -> None:
    """Copies the adapter's parts that all tasks share; only a run that adds a class can have such parts."""
    theirs = old.adapter.shared_state()
    for key, tensor in model.adapter.shared_state().items():
        tensor.copy_(theirs[key])


def _old_model_as_teacher(prepared: Prepared, old: OldRun) -> dict[str, Teacher]:
    """With `add.distill` the old model teaches its tasks, on the examples that are remembered of them."""
    weight = _settings(prepared.recipe).distill
    if not weight:
        return {}
    taught = [name for name in prepared.remembered if KINDS[prepared.recipe.tasks[name].kind].has_predictions]
    return {name: Teacher((old.bundle,), weight, only_memory=True) for name in taught}


def _start_regularizers(session: Session) -> None:
    """Regularizers that protect what was learned before take their state from the old model."""
    torch.manual_seed(seeds.derive(session.seed, "begin"))
    for regularizer in session.objective.regularizers.values():
        regularizer.start(session.model)
