"""One training step: forward, losses, penalties, backward, clip, update. Knows interfaces, no concrete method."""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from polytask.kernels.overlapped_sums import sums_of_gradients
from polytask.model import MultiTaskModel, Pass
from polytask.processes import ALONE, Processes
from polytask.seeds import CommonRandom, RandomState
from polytask.settings import TrainSettings
from polytask.stream import Stream
from polytask.training.feed import Batch
from polytask.training.gradients import CutPass, Gradients, Source, cut_pass, own_parameters, shared_by_layer
from polytask.training.objective import Objective
from polytask.types import UserError


@dataclass(frozen=True)
class StepOutcome:
    losses: Mapping[str, float]
    penalties: Mapping[str, float]
    gradient_norm: float
    examples: int
    tokens: int
    skipped: str | None = None
    """Which value was NaN or infinite, if the weights were therefore not updated."""


class StepFailed(UserError):
    """A step that failed: weights, optimizer and methods are in the state before it."""


class MemoryRanOut(StepFailed):
    """A step that ran out of memory before the update."""


def take_step(
    model: MultiTaskModel,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    settings: TrainSettings,
    next_batch: Callable[[], Batch],
    progress: float = 0.0,
    processes: Processes = ALONE,
) -> StepOutcome:
    """Update the weights once. Parameters of tasks that are not in the step have no gradient and are not updated.

    If processes divide the step, the batches have this process's part of it; each process makes the same update.

    If a loss or the gradient is NaN or infinite, or memory runs out before the update, nothing is updated.
    """
    set_training_mode(model, settings)
    optimizer.zero_grad(set_to_none=True)
    drawn: list[Batch] = []

    def batches() -> Iterator[Batch]:
        for _ in range(settings.accumulate):
            drawn.append(next_batch())
            yield drawn[-1]

    try:
        totals = differentiate(model, objective, settings, batches(), progress, processes)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise memory_ran_out(model, settings, drawn) from error
    norm = _clip([p for group in optimizer.param_groups for p in group["params"]], settings.clip)
    # Checked before the update. A single process waits for the device only here; several wait for each other before.
    outcome = check_finite(totals.outcome(norm), settings, totals.non_finite_gradients)
    if outcome.skipped is None:
        optimizer.step()
    return outcome


def memory_ran_out(model: MultiTaskModel, settings: TrainSettings, batches: Sequence[Batch]) -> MemoryRanOut:
    """The error of a step with these batches."""
    largest = max((len(batch.together.token_ids_T) for batch in batches), default=0)
    name, size = ("batch_size", settings.batch_size)
    if settings.batch_tokens is not None:
        name, size = "batch_tokens", settings.batch_tokens
    return MemoryRanOut(
        f"out of memory on {model.device} with a batch of {largest:,} tokens; lower train.{name} (it is "
        f"{size}) and raise train.accumulate (it is {settings.accumulate}), or lower max_length"
    )


def set_training_mode(model: MultiTaskModel, settings: TrainSettings) -> None:
    """Put the model in training mode. A frozen encoder stays in eval mode, unless it shall have dropout."""
    model.train()
    if settings.parts != "all" and not settings.frozen_dropout:
        model.encoder.eval()


def check_finite(
    outcome: StepOutcome, settings: TrainSettings, non_finite_gradients: Sequence[str] = ()
) -> StepOutcome:
    """Mark a step with a NaN or infinite value as skipped, or raise StepFailed if `train.on_nan` is stop."""
    problem = non_finite_values(outcome, non_finite_gradients)
    if problem is not None and settings.on_nan == "stop":
        raise StepFailed(f"{problem}; set train.on_nan: skip to skip such steps")
    return outcome if problem is None else replace(outcome, skipped=problem)


def non_finite_values(outcome: StepOutcome, non_finite_gradients: Sequence[str]) -> str | None:
    """Describe the values of a step that are NaN or infinite, if there are any."""
    values = {f"the loss of {name}": value for name, value in outcome.losses.items()}
    values |= {f"the penalty {name}": value for name, value in outcome.penalties.items()}
    problems = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    problems = problems or [f"the gradient of {name} is not finite" for name in non_finite_gradients]
    if not problems and not math.isfinite(outcome.gradient_norm):
        problems = [f"the gradient of {', '.join(outcome.losses)} is not finite"]
    return ", ".join(problems) or None


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. On the CPU torch raises a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@dataclass
class StepTotals:
    """Sums over the forward passes of a step."""

    losses: dict[str, list[Tensor]] = field(default_factory=dict)
    penalties: dict[str, list[Tensor]] = field(default_factory=dict)
    non_finite_gradients: list[str] = field(default_factory=list)
    """The tasks whose gradients are NaN or infinite, if per-task gradients were computed."""
    examples: int = 0
    tokens: int = 0

    def add(self, forward: Pass, losses: Mapping[str, Tensor]) -> None:
        self.tokens += len(forward.stream.token_ids_T)
        self.examples += forward.stream.layout.num_examples(forward.outputs.values())
        _append(self.losses, losses)

    def add_penalties(self, penalties: Mapping[str, Tensor]) -> None:
        _append(self.penalties, penalties)

    def add_up(self, processes: Processes, regularizers: Iterable[str], batches: int) -> None:
        """Turn sums over this process's part of a step into those of the whole step: penalties and counts.

        The losses are those of the whole step already. A part may lack penalties: it has no examples, or the first
        process computes them.
        """
        if not processes.several:
            return
        names = tuple(regularizers)
        own = [sum(value.item() for value in self.penalties.get(name, ())) for name in names]
        *penalties, examples, tokens = processes.add_up(
            torch.tensor([*own, self.examples, self.tokens], dtype=torch.float64)
        )
        self.penalties = {name: [value / batches] for name, value in zip(names, penalties, strict=True)}
        self.examples, self.tokens = int(examples), int(tokens)

    def outcome(self, norm: Tensor) -> StepOutcome:
        return StepOutcome(_means(self.losses), _means(self.penalties), norm.item(), self.examples, self.tokens)


def differentiate(
    model: MultiTaskModel,
    objective: Objective,
    settings: TrainSettings,
    batches: Iterable[Batch],
    progress: float,
    processes: Processes = ALONE,
) -> StepTotals:
    """Compute the gradient of a step, in the way that its policy needs."""
    compute = per_task_gradients if objective.policy.needs_task_gradients else summed_gradient
    return compute(model, objective, settings, batches, progress, processes)


def summed_gradient(
    model: MultiTaskModel,
    objective: Objective,
    settings: TrainSettings,
    batches: Iterable[Batch],
    progress: float,
    processes: Processes = ALONE,
) -> StepTotals:
    """Compute the gradient of the weighted losses with one backward pass per batch."""
    totals = StepTotals()
    for number, batch in enumerate(batches, start=1):
        with half_precision(model, settings):
            forward = run(model, batch.together)
            losses = objective.task_losses(model, forward.stream, forward.outputs, progress, processes)
            penalties = _penalties(model, objective, forward, processes)
        total = objective.policy.weigh(losses) + sum(penalties.values())
        totals.add(forward, losses)
        totals.add_penalties(penalties)
        last = number == settings.accumulate
        parameters = summed_parameters(model, totals.losses) if last and processes.several else []
        with sums_of_gradients(parameters, processes if last else ALONE):
            if total.requires_grad:
                (total / settings.accumulate).backward()
    totals.add_up(processes, objective.regularizers, settings.accumulate)
    return totals


def run(model: MultiTaskModel, stream: Stream) -> Pass:
    """Run a forward pass; one over a stream without tokens has no outputs."""
    return model.run(stream.to(model.device)) if len(stream) else pass_without_tokens(model, stream)


def pass_without_tokens(model: MultiTaskModel, stream: Stream) -> Pass:
    """The pass of a process that has no part of a step."""
    nothing_TD = torch.zeros(0, model.encoder.shape.hidden, device=model.device)
    return Pass(stream, nothing_TD, (), {}, RandomState(model.device))


def summed_parameters(model: MultiTaskModel, tasks: Container[str]) -> list[nn.Parameter]:
    """Return the parameters whose gradients processes add up in a step with these tasks.

    First those of the layers, in the order in which their gradients are computed. The policy's parameters are left out:
    their gradients come from the losses of the whole step.
    """
    absent = {p for task in model.tasks if task not in tasks for p in own_parameters(model, task)}
    of_layers = [p for name, shared in shared_by_layer(model) if name != "pooler" for p in shared]
    parameters = dict.fromkeys([*of_layers, *model.parameters()])
    return [p for p in parameters if p.requires_grad and p not in absent]


def add_up_gradients(model: MultiTaskModel, tasks: Container[str], processes: Processes) -> None:
    """Replace the gradients of this process's part of a step by those of the whole step, which has these tasks."""
    if not processes.several:
        return
    parameters = summed_parameters(model, tasks)
    gradients: dict[Tensor, Tensor] = {p: p.grad for p in parameters if p.grad is not None}
    summed = processes.sum_gradients(parameters, gradients)
    for parameter in parameters:
        parameter.grad = summed.get(parameter)


def per_task_gradients(
    model: MultiTaskModel,
    objective: Objective,
    settings: TrainSettings,
    batches: Iterable[Batch],
    progress: float,
    processes: Processes = ALONE,
) -> StepTotals:
    """Compute the gradient of each task and of each memory, and combine those on shared parameters by the policy.

    Heads and adapters get their own task's gradient; those of remembered tasks get none. Penalties belong to no task:
    their gradient is added to the result. The graphs of all accumulated passes are kept until the end, because the
    policy needs the gradients of the whole step.
    """
    totals = StepTotals()
    tasks: dict[str, list[tuple[CutPass, Tensor]]] = {}
    memories: dict[str, list[tuple[CutPass, Tensor]]] = {}
    common: CommonRandom | None = None
    for batch in batches:
        passes = []
        with half_precision(model, settings):  # one context for all passes, so that they share the cast weights
            own, remembered = list(batch.by_task()), list(batch.remembered())
            for stream in (*own, *remembered):
                common = None if stream.share is None else stream.share.random
                cut = cut_pass(model, stream.to(model.device)) if len(stream) else CutPass(run(model, stream), (), ())
                outputs = cut.forward.outputs
                losses = objective.task_losses(model, cut.forward.stream, outputs, progress, processes)
                passes.append((cut, losses))
        for cut, losses in passes[: len(own)]:
            (task,) = losses
            tasks.setdefault(task, []).append((cut, objective.policy.weigh(losses) / settings.accumulate))
            totals.add(cut.forward, losses)
        for cut, losses in passes[len(own) :]:
            loss = objective.policy.weigh(by_share_of_examples(cut.forward.counts, losses))
            memories.setdefault(" ".join(losses), []).append((cut, loss / settings.accumulate))
        if objective.regularizers:
            totals.add_penalties(_penalty_gradient(model, objective, settings, batch, processes))
    if objective.regularizers:
        add_up_gradients(model, tasks, processes)
    sources = [Source(name, parts) for name, parts in [*tasks.items(), *memories.items()]]
    gradients = Gradients(model, sources, {task: [task] for task in tasks}, processes=processes)
    gram_KK = gradients.gram_KK.cpu()
    totals.non_finite_gradients = [
        source.name for source, square in zip(sources, gram_KK.diag(), strict=True) if not square.isfinite()
    ]
    if not totals.non_finite_gradients:
        with nullcontext() if common is None else common.drawn():  # some policies draw random numbers
            weights_K = objective.policy.combine(gram_KK, len(tasks))
        gradients.add(weights_K.tolist())
    totals.add_up(processes, objective.regularizers, settings.accumulate)
    return totals


def by_share_of_examples(counts: Mapping[str, int], losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scale each task's loss by the task's share of the step's examples."""
    shares = {task: count / sum(counts.values()) for task, count in counts.items()}
    return {task: shares[task] * loss for task, loss in losses.items()}


def _penalties(model: MultiTaskModel, objective: Objective, forward: Pass, processes: Processes) -> dict[str, Tensor]:
    """Return the penalties of this process's part of a step. Those of the weights belong to the first process."""
    penalties, share = {}, forward.stream.share
    if len(forward.stream):
        penalties = objective.penalties(model, forward, of_weights=None if processes.is_main else False)
    if share is not None and not share.everyone and objective.regularizers:
        # A process without a part has drawn no noise: it goes on from where the first process is.
        share.random.load_state_dict(processes.from_main(share.random.state_dict() if processes.is_main else None))
    return penalties


def _penalty_gradient(
    model: MultiTaskModel, objective: Objective, settings: TrainSettings, batch: Batch, processes: Processes
) -> dict[str, Tensor]:
    """Add the gradient of the penalties, and return the penalties."""
    with half_precision(model, settings):
        penalties = _penalties(model, objective, run(model, batch.together), processes)
    total = sum(penalties.values(), torch.zeros((), device=model.device))
    if total.requires_grad:
        (total / settings.accumulate).backward()
    return penalties


def half_precision(model: MultiTaskModel, settings: TrainSettings) -> torch.autocast:
    """Return an autocast context that uses bf16 if `train.precision` is bf16."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=settings.precision == "bf16")


def _clip(parameters: Sequence[Tensor], max_norm: float | None) -> Tensor:
    return torch.nn.utils.clip_grad_norm_(parameters, float("inf") if max_norm is None else max_norm)


def _append(lists: dict[str, list[Tensor]], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        lists.setdefault(name, []).append(value.detach())


def _means(lists: Mapping[str, list[Tensor]]) -> dict[str, float]:
    return {name: torch.stack(values).mean().item() for name, values in lists.items()}
