"""Which parameters are trained, and their learning rates: the optimizer's parameter groups. Knows no optimizer."""

from collections.abc import Collection, Iterable
from typing import Any

from torch import nn

from polytask.model import MultiTaskModel
from polytask.policies.base import Policy
from polytask.settings import TrainSettings
from polytask.types import UserError


def freeze(
    model: MultiTaskModel, settings: TrainSettings, kept: Collection[str] = (), not_trained: Collection[str] = ()
) -> None:
    """Freeze the parts of the model that are not trained, so that they need no gradients and no optimizer state.

    The heads and adapters of two kinds of tasks are frozen: `kept` are tasks whose predictions must not change,
    `not_trained` those that no step has examples of.
    """
    model.encoder.requires_grad_(settings.parts == "all")
    model.adapter.requires_grad_(settings.parts != "heads")
    if model.word_tags is not None:  # shared, so it must not change if some tasks must not
        model.word_tags.requires_grad_(settings.parts != "heads" and not kept)
    for index in model.adapter.replacements():
        model.encoder.layers[index].requires_grad_(False)  # replaced by the adapter, so it is not used
    if settings.norms:
        for module in model.encoder.modules():
            if isinstance(module, nn.LayerNorm):
                module.requires_grad_(True)
    of_tasks = {id(p) for task in model.tasks for p in model.adapter.task_parameters(task)}
    shared = [*model.encoder.parameters(), *(p for p in model.adapter.parameters() if id(p) not in of_tasks)]
    for task in model.tasks:
        own = [*model.head(task).parameters(), *model.adapter.task_parameters(task)]
        if task in kept or task in not_trained:
            for parameter in own:
                parameter.requires_grad_(False)
        elif not any(p.requires_grad for p in [*own, *shared]):
            raise UserError(
                f"recipe: train.parts: {settings.parts}: the head of task {task} has no parameters, so nothing of it "
                "would be trained; use train.parts: all (to add a task, `add: {guarantee: measured}`), an adapter, or "
                "another head"
            )


def parameter_groups(
    model: MultiTaskModel, settings: TrainSettings, lr: float, weight_decay: float, policy: Policy | None = None
) -> list[dict[str, Any]]:
    """Return one group for each learning rate and decay; vectors (biases, norms, scales) are never decayed.

    The policy's parameters have the learning rate of the heads. Layer-wise decay (Howard & Ruder 2018): the top layer
    has the learning rate `lr`, each layer below `layer_decay` times that of the one above.
    """
    top = model.encoder.shape.layers
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
    for part, height, module in model.parts():
        rate = lr * settings.layer_decay ** max(top - height, 0)
        if part == "heads" and settings.head_lr is not None:
            rate = settings.head_lr
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                decay = weight_decay if parameter.ndim > 1 else 0.0
                groups.setdefault((rate, decay), []).append((f"{part}.{name}", parameter))
    of_policy = [(f"policy.{name}", parameter) for name, parameter in policy.named_parameters()] if policy else []
    if of_policy:
        groups.setdefault((settings.head_lr or lr, 0.0), []).extend(of_policy)
    return [
        {"params": named, "lr": rate, "base_lr": rate, "weight_decay": decay, "parts": _part_names(named)}
        for (rate, decay), named in groups.items()
    ]


def _part_names(named: Iterable[tuple[str, nn.Parameter]]) -> tuple[str, ...]:
    """Return which of encoder, adapter, heads and policy have parameters in a group."""
    return tuple(dict.fromkeys(name.partition(".")[0] for name, _ in named))
