"""Adds tasks to a finished run. The result is a run of its own, with the old tasks and the new ones.

The new run starts from the old one's model: its encoder, and each old task's head and adapter. `guarantee: frozen`
trains the new parts only; `guarantee: measured` trains the encoder too, compares every old task before and after, and
saves no model if one of them drops too far.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from polytask import seeds
from polytask.build import encoder_folder, make_model, make_packer, most_tokens, start_heads
from polytask.disk.cache import cache_folder
from polytask.disk.lock import FolderLock
from polytask.methods import find_method
from polytask.model import MultiTaskModel
from polytask.plugins.files import use_plugins
from polytask.pretrained.weights import load_encoder
from polytask.recipe.records import Recipe
from polytask.runs.bundle import read_split_for, task_tensors
from polytask.runs.finish import Finished
from polytask.runs.folder import RunFolder
from polytask.runs.gate import judge_old_tasks
from polytask.runs.joining import OldRun, join_recipes, read_old_run
from polytask.runs.prepare import Prepared, check_metrics, check_warmup, methods_origin, trained_tasks
from polytask.runs.run import Running, running_from
from polytask.runs.session import make_policy, make_session
from polytask.runs.start import open_run
from polytask.runs.teachers import Teacher, load_teachers, teacher_origin
from polytask.settings import AddSettings
from polytask.tasks.task import Split, Task, read_tasks, with_tags
from polytask.training.groups import freeze
from polytask.training.loop import Session
from polytask.types import LabelSpace, UserError


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
    """`start_adding` with a recipe of `join_recipes`, in a folder that the caller may have locked already."""
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
    new = [spec for name, spec in recipe.tasks.items() if name not in old.tasks]
    read, word_tags = read_tasks(new, tokenizer, cache_folder(), old.bundle.tagger), old.bundle.word_tags
    added = {task.spec.name: with_tags(task, word_tags) for task in read}
    reader = _reader_of_old_examples(recipe, old)
    tasks = {**{name: _old_task(recipe, old, name, reader) for name in old.tasks}, **added}
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
        remembered=() if frozen else tuple(name for name in old.tasks if recipe.tasks[name].trained),
        word_tags=word_tags,
        temperatures=old.bundle.temperatures,
        plugins=plugins,
    )
    prepared.check_lengths()
    check_warmup(prepared)
    return prepared


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
    splits: dict[str, Split] = {}
    for split, file in files.items():
        if file is None:
            continue
        try:
            splits[split] = read_split_for(bundle, spec, file, split)
        except UserError as error:
            why = f" for {reader}" if split == "train" else ""
            raise UserError(f"{old.folder}: its task {name} needs its {split} file{why}: {error}") from None
    return Task(spec, bundle.labels[name], splits)


def _make_model(recipe: Recipe, old: OldRun, labels: Mapping[str, LabelSpace]) -> MultiTaskModel:
    """The old tasks first, with all their weights; new parts are initialized from the seed."""
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
                tensor.copy_(theirs[key])
    frozen = old.tasks if _settings(recipe).guarantee == "frozen" else ()
    freeze(model, recipe.train, frozen, [name for name in model.tasks if not recipe.tasks[name].trained])
    return model


def _old_model_as_teacher(prepared: Prepared, old: OldRun) -> dict[str, Teacher]:
    """With `add.distill` the old model teaches its tasks, on the examples that are remembered of them."""
    weight = _settings(prepared.recipe).distill
    if not weight:
        return {}
    taught = [name for name in prepared.remembered if prepared.recipe.tasks[name].kind != "text"]
    return {name: Teacher((old.bundle,), weight, only_memory=True) for name in taught}


def _start_regularizers(session: Session) -> None:
    """Regularizers that protect what was learned before take their state from the old model."""
    torch.manual_seed(seeds.derive(session.seed, "begin"))
    for regularizer in session.objective.regularizers.values():
        regularizer.start(session.model)
