"""One training step: forward, losses, penalties, backward, clip, update. Knows interfaces, no concrete method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polytask.model import MultiTaskModel
from polytask.stream import Stream
from polytask.training.objective import Objective
from polytask.types import TrainSettings


@dataclass(frozen=True)
class StepOutcome:
    losses: Mapping[str, float]
    penalties: Mapping[str, float]
    gradient_norm: float
    examples: int
    tokens: int


def take_step(
    model: MultiTaskModel,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    settings: TrainSettings,
    next_stream: Callable[[], Stream],
    progress: float = 0.0,
) -> StepOutcome:
    """Moves the weights once. Parameters of tasks that took no part get no gradient, so no optimizer moves them."""
    model.train()
    if settings.parts != "all":
        model.trunk.eval()  # a frozen trunk gives the same features every time
    optimizer.zero_grad(set_to_none=True)
    losses: dict[str, list[Tensor]] = {}
    penalties: dict[str, list[Tensor]] = {}
    examples = tokens = 0
    for _ in range(settings.accumulate):
        stream = next_stream()
        tokens += len(stream.token_ids_T)
        stream = stream.to(model.device)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            done = model.run(stream)
            examples += sum(map(len, done.outputs.values()))
            part_losses = objective.task_losses(model, done, progress)
            part_penalties = objective.penalties(model, done)
        total = objective.policy.weigh(part_losses) + sum(part_penalties.values())
        (total / settings.accumulate).backward()
        _collect(losses, part_losses)
        _collect(penalties, part_penalties)
    norm = _clip([p for group in optimizer.param_groups for p in group["params"]], settings.clip)
    optimizer.step()
    return StepOutcome(_means(losses), _means(penalties), norm.item(), examples, tokens)


def _clip(parameters: Sequence[Tensor], largest: float | None) -> Tensor:
    return torch.nn.utils.clip_grad_norm_(parameters, float("inf") if largest is None else largest)


def _collect(into: dict[str, list[Tensor]], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        into.setdefault(name, []).append(value.detach())


def _means(values: Mapping[str, list[Tensor]]) -> dict[str, float]:
    return {name: torch.stack(parts).mean().item() for name, parts in values.items()}
