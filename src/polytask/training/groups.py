"""Which parameters learn, and how fast: the optimizer's groups. Knows the model's parts, no optimizer."""

from collections.abc import Collection, Iterable
from typing import Any

from torch import nn

from polytask.model import MultiTaskModel
from polytask.policies.base import Policy
from polytask.types import TrainSettings, UserError


def freeze(model: MultiTaskModel, settings: TrainSettings, kept: Collection[str] = ()) -> None:
    """Parts that do not learn take no gradient, no gradient memory and no optimizer state.

    `kept` are tasks whose heads and adapters stay as they are.
    """
    model.encoder.requires_grad_(settings.parts == "all")
    model.adapter.requires_grad_(settings.parts != "heads")
    for index in model.adapter.stand_ins():
        model.encoder.layers[index].requires_grad_(False)  # takes no part, so it cannot learn
    if settings.norms:
        for module in model.encoder.modules():
            if isinstance(module, nn.LayerNorm):
                module.requires_grad_(True)
    for task in model.tasks:
        own = [*model.head(task).parameters(), *model.adapter.task_parameters(task)]
        if task in kept:
            for parameter in own:
                parameter.requires_grad_(False)
        elif not any(p.requires_grad for p in [*own, *model.encoder.parameters()]):
            raise UserError(
                f"train.parts: {settings.parts}: the head of {task} has no parameters, so nothing of it would learn"
            )


def parameter_groups(
    model: MultiTaskModel, settings: TrainSettings, lr: float, weight_decay: float, policy: Policy | None = None
) -> list[dict[str, Any]]:
    """One group for each learning rate and decay; vectors (biases, norms, scales) are never decayed.

    What a policy learns goes at the heads' rate.

    Layer-wise decay (Howard & Ruder 2018): the top layer learns at `lr`, each one below at `layer_decay` times that.
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
    learned = [(f"policy.{name}", parameter) for name, parameter in policy.named_parameters()] if policy else []
    if learned:
        groups.setdefault((settings.head_lr or lr, 0.0), []).extend(learned)
    return [
        {"params": named, "lr": rate, "base_lr": rate, "weight_decay": decay, "parts": _part_names(named)}
        for (rate, decay), named in groups.items()
    ]


def _part_names(named: Iterable[tuple[str, nn.Parameter]]) -> tuple[str, ...]:
    """encoder, adapter, heads, policy: whose parameters are in a group."""
    parts = dict.fromkeys(name.partition(".")[0] for name, _ in named)
    return tuple("encoder" if part == "encoder" else part for part in parts)
