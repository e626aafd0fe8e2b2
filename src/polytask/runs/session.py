"""A prepared recipe -> the session that trains it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from polytask.build import make, make_loss, option
from polytask.heads.base import Head
from polytask.losses.base import Loss
from polytask.machine import skip_compiler_import, wait_for_warm_up
from polytask.methods import form_of
from polytask.model import MultiTaskModel
from polytask.policies.base import Policy, PolicyContext
from polytask.processes import ALONE, Processes
from polytask.recipe.records import Recipe
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.runs.folder import RunFolder
from polytask.runs.new_class import rows_without_class
from polytask.runs.prepare import Prepared, trained_tasks
from polytask.runs.score import DevScorer
from polytask.runs.teachers import Teacher, teacher_outputs
from polytask.samplers.base import Sampler, SamplerContext
from polytask.seeds import CommonRandom
from polytask.tasks.describe import class_counts
from polytask.tasks.shared_rows import SharedRows
from polytask.tasks.training_rows import training_rows
from polytask.training.averages import RunningAverage
from polytask.training.captured import CapturedSteps, reason_not_capturable, reason_not_divided
from polytask.training.checkpoint_writer import CheckpointWriter, NoCheckpoints
from polytask.training.division import Division
from polytask.training.feed import Feed, SharedFeed
from polytask.training.groups import parameter_groups
from polytask.training.journal import Journal, NoJournal
from polytask.training.loop import Session
from polytask.training.loss_scale import even_scale
from polytask.training.memory import Memory
from polytask.training.objective import Objective
from polytask.types import UserError


def make_session(
    prepared: Prepared,
    folder: RunFolder,
    device: torch.device,
    teachers: Mapping[str, Teacher] | None = None,
    checkpoint: Path | None = None,
    processes: Processes = ALONE,
) -> Session:
    """Everything that trains a prepared recipe, from its first step or from a checkpoint.

    If several processes train the run, the first one writes its files, and reads the checkpoint for all.
    """
    on_gpu = device.type == "cuda"
    wait_for_warm_up()
    skip_compiler_import()
    recipe, model, settings = prepared.recipe, prepared.model.to(device), prepared.recipe.train
    with processes.one_error_for_all():
        sampler = make_sampler(prepared)
        losses = make_losses(prepared)
        weights = task_weights(prepared, losses)
        policy = make_policy(recipe, weights, prepared.steps_per_epoch).to(device)
        if policy.needs_task_gradients and model.adapter.shared_state():
            raise UserError(
                f"recipe: policy: {recipe.policy.name} combines the tasks' gradients on the encoder, but with the "
                f"adapter {recipe.adapter.name} they share more than that; use policy: sum, or another adapter"
            )
        feed = make_feed(prepared, policy)
        regularizers = make_regularizers(prepared, weights, sampler, feed)
        check_unlabelled(prepared, losses, regularizers)
        objective = make_objective(prepared, policy, regularizers, losses, teachers or {})
        if processes.several:
            feed.division = make_division(model, objective, processes)
        rates = [option("optimizer", recipe.optimizer, name, "recipe: optimizer") for name in ("lr", "weight_decay")]
        groups = parameter_groups(model, settings, rates[0], rates[1], policy)
        optimizer = make("optimizer", recipe.optimizer, "recipe: optimizer", groups)
    session = Session(
        model=model,
        optimizer=optimizer,
        objective=objective,
        sampler=sampler,
        feed=feed,
        settings=settings,
        steps_per_epoch=prepared.steps_per_epoch,
        seed=recipe.seed,
        drawn=prepared.drawn,
        evaluate=DevScorer(prepared, processes),
        journal=(Journal if processes.is_main else NoJournal)(folder.metrics, folder.tensorboard),
        checkpoints=folder.checkpoints,
        average=None if settings.ema is None else RunningAverage(model, settings.ema),
        processes=processes,
        writer=(CheckpointWriter if processes.is_main else NoCheckpoints)(background=on_gpu),  # a CPU is busy otherwise
    )
    if checkpoint is not None:
        session.load(checkpoint)
    # After the checkpoint is loaded, which says what the memory holds.
    feed.use_teachers(teacher_outputs(prepared, teachers or {}, feed.memory, device))
    session.not_captured = reason_not_capturable(device, session.optimizer, objective, settings, model)
    if processes.several and session.not_captured is None:
        session.not_captured = reason_not_divided(objective, settings)
    if session.not_captured is None:
        session.captured = CapturedSteps(model, session.optimizer, objective, settings, session.average, processes)
    return session


def make_division(model: MultiTaskModel, objective: Objective, processes: Processes) -> Division:
    """How processes divide the steps; raises a UserError if a method cannot be divided."""
    for name, regularizer in objective.regularizers.items():
        reason = regularizer.not_divisible
        if not vars(type(regularizer)).get("divisible", False):
            reason = "it does not declare divisible = True"
        if reason is not None:
            raise UserError(
                f"recipe: regularizers: {name} cannot be divided among {processes.count} processes: {reason}"
            )
    weighted = sorted(objective.taught & objective.losses.keys())
    if weighted:
        raise UserError(
            f"recipe: tasks.{weighted[0]}.loss: with unlabelled rows it cannot be divided among {processes.count} "
            "processes; leave one of them out"
        )
    words = sorted(task for task in objective.taught if model.head(task).kind.per_word)
    if words:
        raise UserError(
            f"recipe: tasks.{words[0]}.unlabelled: with a label for each word they cannot be divided among "
            f"{processes.count} processes: the loss of the labels is weighted by texts, and its mean is over words; "
            "leave them out, or train in one process"
        )
    whole = {task for regularizer in objective.regularizers.values() for task in regularizer.compared_tasks}
    whole |= {task for task in model.tasks if not objective.divides(model.head(task))}
    return Division(processes, CommonRandom(model.device), frozenset(whole))


def make_sampler(prepared: Prepared) -> Sampler:
    recipe, settings, sizes = prepared.recipe, prepared.recipe.train, prepared.training_sizes
    context = SamplerContext(
        sizes, settings.batch_size, recipe.seed, prepared.steps_per_epoch, settings.epochs, prepared.batch_sizes
    )
    if context.batch_sizes is not None:
        shares = {name: size / sum(sizes.values()) for name, size in sizes.items()}
        context = replace(context, batch_size=context.mixed_count(shares))
        _check_pairs(prepared, context.batch_sizes or {})
    sampler: Sampler = make("sampler", recipe.sampler, "recipe: sampler", context)
    if settings.stop == "per_task" and sampler.stages:
        raise UserError(
            f"recipe: train.stop: per_task cannot be combined with the sampler {recipe.sampler.name}, which trains "
            "each task for a fixed number of steps"
        )
    shared = [name for name in prepared.drawn if recipe.tasks[name].share_rows is not None]
    if shared and sampler.stages:
        raise UserError(
            f"recipe: tasks.{shared[0]}.share_rows: cannot be combined with the sampler {recipe.sampler.name}, which "
            "trains tasks one after another: tasks that share rows are trained together"
        )
    return sampler


def _check_pairs(prepared: Prepared, batch_sizes: Mapping[str, int]) -> None:
    """Refuses steps with a single pair of a task of kind match, whose loss is then 0."""
    for name, count in batch_sizes.items():
        if count < 2 and name in prepared.tasks and prepared.recipe.tasks[name].kind == "match":
            least = math.ceil(2 * prepared.mean_tokens(name))
            raise UserError(
                f"recipe: train.batch_tokens: must be at least {least:,}, which is two pairs of task {name} of kind "
                f"match, which compares the pairs of a batch; found {prepared.recipe.train.batch_tokens:,}"
            )


def make_losses(prepared: Prepared) -> dict[str, Loss]:
    """The losses of the trained tasks whose recipe names one."""
    trained = trained_tasks(prepared.recipe)
    losses = {
        name: make_loss(task.spec, task.labels, class_counts(task.splits["train"], task.labels))
        for name, task in prepared.tasks.items()
        if name in trained and "train" in task.splits
    }
    return {name: loss for name, loss in losses.items() if loss is not None}


def task_weights(prepared: Prepared, losses: Mapping[str, Loss]) -> dict[str, float]:
    """The factor of each trained task's loss: its weight in the recipe, times `train.loss_scale`."""
    settings = prepared.recipe.train
    weights = {name: spec.weight for name, spec in trained_tasks(prepared.recipe).items()}
    if settings.loss_scale == "even":
        for name in weights:
            splits, head = prepared.tasks[name].splits, prepared.model.head(name)
            # The training rows of tasks that an earlier run has learned may not be there.
            labels = torch.from_numpy((splits.get("train") or splits["dev"]).labels)
            weights[name] *= even_scale(head, losses.get(name), labels, settings.batch_size)
    return weights


def make_policy(recipe: Recipe, weights: Mapping[str, float], steps_per_epoch: int) -> Policy:
    """The policy of the tasks in `weights`."""
    kinds = {name: form_of(recipe.tasks[name].kind) for name in weights}
    policy: Policy = make("policy", recipe.policy, "recipe: policy", PolicyContext(weights, kinds, steps_per_epoch))
    return policy


def make_feed(prepared: Prepared, policy: Policy) -> Feed:
    """The training examples; a memory of tasks that an earlier run has learned starts full."""
    model, seed, trained = prepared.model, prepared.recipe.seed, trained_tasks(prepared.recipe)
    examples = {name: training_rows(prepared.tasks[name]) for name in prepared.splits("train") if name in trained}
    memory = None
    if policy.memory is not None:
        memory = Memory(policy.memory, model.tasks, seed)
        for name in prepared.remembered:
            memory.fill(name, len(examples[name]))
    formats = {name: model.input_format(name) for name in model.tasks}
    shared = {
        name: SharedFeed(rows, passes_over_shared_rows(model, rows.tasks))
        for name, rows in prepared.drawn_rows.items()
        if isinstance(rows, SharedRows)
    }
    feed = Feed(examples, prepared.packer, seed, formats=formats, memory=memory, shared=shared)
    if prepared.grown is not None:  # what was learned before is measured without the new class
        task = prepared.tasks[prepared.grown]
        feed.sampled[prepared.grown] = rows_without_class(task.splits["train"].labels, task.labels).tolist()
    return feed


def passes_over_shared_rows(model: MultiTaskModel, tasks: Sequence[str]) -> list[tuple[str, ...]]:
    """The groups of tasks for which the encoder runs once in a training step.

    One run cannot serve several tasks if some parameters inside the encoder belong to single tasks.
    """
    if any(model.adapter.task_parameters(task) for task in model.tasks):
        return [(task,) for task in tasks]
    return model.passes(tasks)


def make_regularizers(
    prepared: Prepared, weights: Mapping[str, float], sampler: Sampler, feed: Feed
) -> dict[str, Regularizer]:
    recipe, settings = prepared.recipe, prepared.recipe.train
    context = RegularizerContext(
        prepared.model,
        weights,
        settings.epochs * prepared.steps_per_epoch,
        sampler.stages,
        feed.sample,
        tuple(name for name in weights if name not in prepared.drawn or name == prepared.grown),
    )
    return {c.name: make("regularizer", c, "recipe: regularizers", context) for c in recipe.regularizers}


def check_unlabelled(prepared: Prepared, losses: Mapping[str, Loss], regularizers: Mapping[str, Regularizer]) -> None:
    """Raises a UserError if a method needs the label of every example, but a task has rows without labels."""
    unlabelled = dict.fromkeys(prepared.splits("unlabelled"), "unlabelled")
    for name, field in (unlabelled | dict.fromkeys(sorted(partly_labelled(prepared)), "share_rows")).items():
        head, loss = prepared.model.head(name), losses.get(name)
        methods = [f"the regularizer {r} with these options" for r, made in regularizers.items() if made.needs_labels]
        if loss is None and type(head).loss is not Head.loss:
            methods.append(f"the loss of the head {type(head).__name__}")
        if loss is not None and type(loss).terms is Loss.terms:
            methods.append(f"the loss {type(loss).__name__}")
        if methods:
            raise UserError(f"recipe: tasks.{name}.{field}: {methods[0]} needs labels for all rows; leave one out")


def partly_labelled(prepared: Prepared) -> frozenset[str]:
    """The tasks that share rows, of which some have no label of theirs."""
    groups = [rows for rows in prepared.drawn_rows.values() if isinstance(rows, SharedRows)]
    return frozenset(task for rows in groups for task in rows.partly_labelled)


def make_objective(
    prepared: Prepared,
    policy: Policy,
    regularizers: Mapping[str, Regularizer],
    losses: Mapping[str, Loss],
    teachers: Mapping[str, Teacher],
) -> Objective:
    settings = prepared.recipe.train
    constant = None if settings.teacher_annealing else settings.teacher_weight
    weights = {name: constant if teacher.weight is None else teacher.weight for name, teacher in teachers.items()}
    return Objective(
        policy=policy,
        regularizers=regularizers,
        losses=losses,
        taught=frozenset(prepared.splits("unlabelled")),
        partly_labelled=partly_labelled(prepared),
        temperature=settings.teacher_temperature,
        teacher_weights={name: weight for name, weight in weights.items() if weight is not None},
    )
