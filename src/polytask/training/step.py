"""One training step: forward, losses, penalties, backward, clip, update. Knows interfaces, no concrete method."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.training.feed import Batch
from polytask.training.gradients import CutPass, Gradients, Source, cut_pass
from polytask.training.objective import Objective
from polytask.types import TrainSettings, UserError


@dataclass(frozen=True)
class StepOutcome:
    losses: Mapping[str, float]
    penalties: Mapping[str, float]
    gradient_norm: float
    examples: int
    tokens: int
    skipped: str | None = None
    """What was no number, where that left the weights as they were."""


class StepFailed(UserError):
    """A step that came to nothing: weights, optimizer and methods are as they were before it."""


def take_step(
    model: MultiTaskModel,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    settings: TrainSettings,
    next_batch: Callable[[], Batch],
    progress: float = 0.0,
) -> StepOutcome:
    """Moves the weights once. Parameters of tasks that took no part get no gradient, so no optimizer moves them.

    Where a loss or the gradient is no number, or memory runs out on the way to the gradient, nothing moves.
    """
    model.train()
    if settings.parts != "all":
        model.encoder.eval()  # a frozen encoder gives the same features every time
    optimizer.zero_grad(set_to_none=True)
    largest = 0

    def batches() -> Iterator[Batch]:
        nonlocal largest
        for _ in range(settings.accumulate):
            batch = next_batch()
            largest = max(largest, len(batch.together.token_ids_T))
            yield batch

    differentiate = gradients_told_apart if objective.policy.needs_task_gradients else gradient_of_the_sum
    try:
        taken = differentiate(model, objective, settings, batches(), progress)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise StepFailed(
            f"out of memory on {model.device} with a batch of {largest:,} tokens; lower train.batch_size (it is "
            f"{settings.batch_size}) and raise train.accumulate (it is {settings.accumulate}), or lower max_length"
        ) from error
    norm = _clip([p for group in optimizer.param_groups for p in group["params"]], settings.clip)
    # Looked at before the weights move; the only wait for the device, as it would be after.
    outcome = StepOutcome(_means(taken.losses), _means(taken.penalties), norm.item(), taken.examples, taken.tokens)
    outcome = judged(outcome, settings, taken.no_gradient)
    if outcome.skipped is None:
        optimizer.step()
    return outcome


def judged(outcome: StepOutcome, settings: TrainSettings, no_gradient: Sequence[str] = ()) -> StepOutcome:
    """A step of which something is not finite is skipped, or stops the run."""
    wrong = no_number(outcome, no_gradient)
    if wrong is not None and settings.on_nan == "stop":
        raise StepFailed(f"{wrong}; train.on_nan: skip leaves such steps out")
    return replace(outcome, skipped=wrong)


def no_number(outcome: StepOutcome, no_gradient: Sequence[str]) -> str | None:
    """What of a step is not finite, by name."""
    odd = [f"the loss of {name} is {value}" for name, value in outcome.losses.items() if not math.isfinite(value)]
    odd += [f"the penalty {name} is {value}" for name, value in outcome.penalties.items() if not math.isfinite(value)]
    odd = odd or [f"the gradient of {name} is no number" for name in no_gradient]
    if not odd and not math.isfinite(outcome.gradient_norm):
        odd = [f"the gradient of {', '.join(outcome.losses)} is no number"]
    return ", ".join(odd) or None


def out_of_memory(error: BaseException) -> bool:
    """On the CPU torch raises a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@dataclass
class Taken:
    """What the passes of a step came to."""

    losses: dict[str, list[Tensor]] = field(default_factory=dict)
    penalties: dict[str, list[Tensor]] = field(default_factory=dict)
    no_gradient: list[str] = field(default_factory=list)
    """Whose gradients are not finite, where they were told apart."""
    examples: int = 0
    tokens: int = 0

    def note(self, done: Pass, losses: Mapping[str, Tensor]) -> None:
        self.tokens += len(done.stream.token_ids_T)
        self.examples += sum(map(len, done.outputs.values()))
        _collect(self.losses, losses)


def gradient_of_the_sum(
    model: MultiTaskModel,
    objective: Objective,
    settings: TrainSettings,
    batches: Iterable[Batch],
    progress: float,
) -> Taken:
    """One backward pass for all tasks of a batch."""
    taken = Taken()
    for batch in batches:
        with half_precision(model, settings):
            done = model.run(batch.together.to(model.device))
            losses = objective.task_losses(model, done.stream, done.outputs, progress)
            penalties = objective.penalties(model, done)
        total = objective.policy.weigh(losses) + sum(penalties.values())
        (total / settings.accumulate).backward()
        taken.note(done, losses)
        _collect(taken.penalties, penalties)
    return taken


def gradients_told_apart(
    model: MultiTaskModel,
    objective: Objective,
    settings: TrainSettings,
    batches: Iterable[Batch],
    progress: float,
) -> Taken:
    """The gradient of each task and of each memory, weighed by the policy on what tasks share.

    Heads and adapters keep their own task's gradient; those of remembered tasks have none. Penalties belong to no task:
    their gradient is added to the outcome. The graphs of all accumulated passes are held until the end, because the
    policy judges the gradient of the whole step.
    """
    taken = Taken()
    parts: dict[str, list[tuple[CutPass, Tensor]]] = {}
    memories: dict[str, list[tuple[CutPass, Tensor]]] = {}
    for batch in batches:
        passes = []
        with half_precision(model, settings):  # once for all passes, which then share the weights it casts
            for stream in (*batch.by_task, *batch.remembered):
                cut = cut_pass(model, stream.to(model.device))
                passes.append((cut, objective.task_losses(model, cut.done.stream, cut.done.outputs, progress)))
        for cut, losses in passes[: len(batch.by_task)]:
            (task,) = losses
            parts.setdefault(task, []).append((cut, objective.policy.weigh(losses) / settings.accumulate))
            taken.note(cut.done, losses)
        for cut, losses in passes[len(batch.by_task) :]:
            counts = {task: len(outputs) for task, outputs in cut.done.outputs.items()}
            shares = {task: count / sum(counts.values()) for task, count in counts.items()}
            loss = objective.policy.weigh({task: shares[task] * loss for task, loss in losses.items()})
            memories.setdefault(" ".join(losses), []).append((cut, loss / settings.accumulate))
        if objective.regularizers:
            with half_precision(model, settings):
                penalties = objective.penalties(model, model.run(batch.together.to(model.device)))
            total = torch.stack(list(penalties.values())).sum()
            if total.requires_grad:
                (total / settings.accumulate).backward()
            _collect(taken.penalties, penalties)
    sources = [Source(name, found) for name, found in [*parts.items(), *memories.items()]]
    gradients = Gradients(model, sources, {task: [task] for task in parts})
    gram_KK = gradients.gram_KK.cpu()
    taken.no_gradient = [
        source.name for source, square in zip(sources, gram_KK.diag(), strict=True) if not square.isfinite()
    ]
    if not taken.no_gradient:  # no policy can weigh what is no number
        gradients.add(objective.policy.combine(gram_KK, len(parts)).tolist())
    return taken


def half_precision(model: MultiTaskModel, settings: TrainSettings) -> torch.autocast:
    return torch.autocast(model.device.type, torch.bfloat16, enabled=settings.precision == "bf16")


def _clip(parameters: Sequence[Tensor], largest: float | None) -> Tensor:
    return torch.nn.utils.clip_grad_norm_(parameters, float("inf") if largest is None else largest)


def _collect(into: dict[str, list[Tensor]], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        into.setdefault(name, []).append(value.detach())


def _means(values: Mapping[str, list[Tensor]]) -> dict[str, float]:
    return {name: torch.stack(parts).mean().item() for name, parts in values.items()}
