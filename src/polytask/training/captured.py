"""Training steps as CUDA graphs: forward, backward, clipping and update, replayed with one launch.

Steps on streams of static shape (`Packer.pack`) with equal shapes run the same kernels on other data: the first such
step runs normally, the second is captured, and from then on a step is a copy of its tokens and a replay. A step's
losses are read after the next step is launched, so the GPU never waits.

A step with one forward pass is one graph. A step with several (gradient policies, accumulation) is one graph per pass,
each of which writes its gradient into a row of a matrix, and one that combines the rows and updates the weights.

Knows interfaces; knows no concrete method.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polytask.kernels.compiling import compiled_in_parallel, first_time
from polytask.kernels.graphs import Body, Graphs
from polytask.kernels.half_weights import HalfWeights
from polytask.kernels.side_stream import SideStream
from polytask.kernels.static_tensors import StaticTensors, as_stream, shape_of, tensors_of
from polytask.kernels.triton_support import kernels_run
from polytask.kernels.updates import Following, Learned, PlainUpdate, Table, declared, norm_of, update_for
from polytask.model import MultiTaskModel, Pass
from polytask.modes import eval_mode
from polytask.regularizers.base import Pull
from polytask.settings import TrainSettings
from polytask.stream import Stream
from polytask.training.averages import RunningAverage
from polytask.training.feed import Batch
from polytask.training.gradient_rows import GradientRows, PassKind, RowSource
from polytask.training.objective import Objective
from polytask.training.step import (
    StepFailed,
    StepOutcome,
    by_share_of_examples,
    check_finite,
    half_precision,
    memory_ran_out,
    out_of_memory,
    set_training_mode,
)

SIDE_STREAM_TOKENS = 16384
"""Up to this many tokens, gradients of weights are computed on a side stream; larger steps fill the GPU anyway."""


@dataclass(frozen=True)
class PassFacts:
    """What a graph does not return, because it is the same for all streams of its shape."""

    values: list[tuple[str, str]]
    """What the numbers that it returns are: ("losses" or "penalties", name)."""
    examples: int
    """The number of examples that are trained on."""


Part = tuple[Tensor, PassFacts]
"""What a graph of a step returned, and what that is."""


def reason_not_capturable(
    device: torch.device,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    settings: TrainSettings,
    model: MultiTaskModel | None = None,
) -> str | None:
    """Return why the steps of a run cannot be captured; None if they can."""
    if device.type != "cuda":
        return f"the run is on {device.type}, and only CUDA has graphs"
    if not settings.capture:
        return "train.capture is false"
    if model is not None and (reason := model.encoder.shape.plain_definition) is not None:
        return f"the encoder {model.encoder.shape.kind}: {reason}"
    if model is not None and (windowed := [task for task in model.tasks if model.head(task).windows is not None]):
        return f"the task {windowed[0]} has windows, so that steps differ in their number of sequences"
    if not declared(optimizer, "capturable") or not all(group.get("fused", True) for group in optimizer.param_groups):
        return f"the optimizer {type(optimizer).__name__} does not declare capturable = True"
    if not declared(objective.policy, "capturable"):
        return f"the policy {type(objective.policy).__name__} does not declare capturable = True"
    for name, regularizer in objective.regularizers.items():
        if not declared(regularizer, "capturable"):
            return f"the regularizer {name} does not declare capturable = True"
        if regularizer.not_capturable:
            return f"the regularizer {name}: {regularizer.not_capturable}"
    return None


class CapturedSteps:
    """Updates the weights as `take_step` does, for streams of static shape."""

    def __init__(
        self,
        model: MultiTaskModel,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        settings: TrainSettings,
        average: RunningAverage | None = None,
    ) -> None:
        self.model, self.optimizer, self.objective, self.settings = model, optimizer, objective, settings
        self.device = model.device
        self.half = HalfWeights(model) if settings.precision == "bf16" else None
        self.update = update_for(optimizer)
        """Replaces the optimizer's step if possible; it also writes the half-precision weights."""
        if self.update is None and not isinstance(optimizer, torch.optim.AdamW):  # which can be captured as it is
            self.update = update_for(optimizer, kernels=False)
        self.graphs = Graphs(self.device, lambda: self.update.table() if self.update else None)
        self.side_stream = SideStream(self.device)
        followers = [one.followers for one in (*objective.regularizers.values(), average) if one is not None]
        self._followers = [one for one in followers if one is not None]
        self._following = [Following(one.tensors, one.weights) for one in self._followers]
        count = len(optimizer.param_groups) + len(self._followers) + 1
        self._numbers = StaticTensors([torch.zeros(count)], self.device)
        """The learning rate of each group, the rate of each moving average, and the share of the steps that is done."""
        self._bad = torch.zeros((), device=self.device)
        """NaN as soon as a loss of the running step is NaN or infinite, else 0."""
        self._stopped = torch.zeros((), device=self.device)
        """1 after a NaN or infinite value with `on_nan: stop`: nothing is updated any more."""
        self._facts: dict[Any, PassFacts] = {}
        self._phase = self._current_phase()
        self._rows: GradientRows | None = None
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
        if self.half and self.update:
            half = self.half
            optimizer.register_step_post_hook(lambda *_: half.forget())

    @property
    def reason(self) -> str | None:
        """Why capturing failed, if it did; steps then run normally."""
        return self.graphs.reason

    def begin(self, batches: Iterable[Batch], progress: float = 0.0, step: int = 1) -> Callable[[], StepOutcome]:
        """Launch a step, and return a function that waits for its end and returns its outcome.

        If a loss or the gradient is NaN or infinite, nothing is updated; with `on_nan: stop`, later steps update
        nothing either.
        """
        if self._phase != (phase := self._current_phase()):
            self._phase = phase
            self.graphs.clear()
        if self.half and self.update:
            self.half.refresh()
        rates = [*(group["lr"] for group in self.optimizer.param_groups), *(one.rate(step) for one in self._followers)]
        self._numbers.fill([torch.tensor([*rates, progress])])
        drawn: list[Batch] = []
        try:
            return self._launch(_noted(batches, drawn))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return partial(_fail, memory_ran_out(self.model, self.settings, drawn))

    def compile_kernels(self, batch: Batch) -> None:
        """Compile the kernels of an evaluation and of a step in parallel; the first launch of each would compile it.

        Updates nothing: the pass over the batch runs without its kernels. Once per process for runs of the same kind.
        """
        methods = type(self.model.adapter), type(self.optimizer), *map(type, self.objective.regularizers.values())
        if not kernels_run(self.device) or not first_time((self.model.encoder.shape, *methods)):
            return
        kind, stream = next(self._passes(batch))
        inputs = StaticTensors(tensors_of(stream), self.device)
        inputs.fill(tensors_of(stream))
        static = self._static(inputs.tensors, stream, capturing=False)
        with compiled_in_parallel():
            with torch.no_grad(), eval_mode(self.model), half_precision(self.model, self.settings):
                self.model(static)
            _, pulls = self._differentiate("compile", static, kind)
            if self.update is not None and not isinstance(self.update, PlainUpdate):
                learned = self._learned(pulls)
                if pulls:
                    self.update.pull(learned)
                ones = torch.ones((), device=self.device)
                divisor = None if self.settings.clip is None else ones
                self.update.step(learned, self._learning_rates, ones, divisor)
                self._move_followers()
        self._drop_gradients()

    def _launch(self, batches: Iterable[Batch]) -> Callable[[], StepOutcome]:
        if self.objective.policy.needs_task_gradients or self.settings.accumulate > 1:
            return self._begin_in_parts(batches)
        (batch,) = batches
        stream = batch.together
        key = "step", shape_of(stream)

        def body(inputs: list[Tensor], table: Table | None, capturing: bool) -> Tensor:
            values, pulls = self._differentiate(key, self._static(inputs, stream, capturing))
            results = self._clip_and_update(self._learned(pulls), values, table)
            self._drop_gradients()
            return results

        numbers = self.graphs.run(key, tensors_of(stream), body)
        return self._outcome([(numbers, self._facts[key])], stream.layout.real_tokens)

    # --- a step of one pass -------------------------------------------------------------------------------------------
    def _static(self, inputs: list[Tensor], like: Stream, capturing: bool) -> Stream:
        stream = as_stream(inputs, like)
        return replace(stream, layout=stream.layout.for_capture()) if capturing else stream

    def _differentiate(
        self, key: Any, stream: Stream, kind: PassKind = "all", weight: float = 1.0
    ) -> tuple[Tensor, list[Pull]]:
        """Compute the gradient of `weight` times the losses and penalties.

        Returns them as one vector. In a step of one pass, a penalty that is a sum of pulls is not in it; the pulls,
        whose gradients are to be added, are returned too.
        """
        model, objective, settings = self.model, self.objective, self.settings
        self._drop_gradients()
        set_training_mode(model, settings)
        losses: Mapping[str, Tensor] = {}
        penalties: dict[str, Tensor] = {}
        forward: Pass | None = None
        pulled, pulls = None, list[Pull]()
        half = self.half.swapped_in(self.update is None) if self.half else nullcontext()
        with self.side_stream.open(len(stream.token_ids_T) <= SIDE_STREAM_TOKENS):
            with half, half_precision(model, settings):
                if objective.regularizers and kind in ("all", "penalties"):
                    forward = model.run(stream)
                    outputs = forward.outputs
                    penalties = objective.penalties(model, forward, of_weights=False)
                else:
                    outputs = model(stream)
                if kind != "penalties":
                    losses = objective.task_losses(model, stream, outputs, self._numbers.tensors[0][-1])
            if forward is not None:
                if kind == "all" and weight == 1.0:
                    pulled, pulls = self._pulls(forward)
                penalties |= objective.penalties(model, forward, of_weights=True, without=pulled)
            weighted = by_share_of_examples(outputs, losses) if kind == "memory" else losses
            total = objective.policy.weigh(weighted) if losses else torch.zeros((), device=self.device)
            total = sum(penalties.values(), total)
            if total.requires_grad:
                (total if weight == 1.0 else total * weight).backward()
        if self.half and self.update is None:
            self.half.move_gradients()
        trained = kind in ("all", "losses")
        reported = [("losses", name) for name in losses if trained]
        reported += [("penalties", name) for name in (*penalties, pulled) if name is not None]
        self._facts[key] = PassFacts(reported, stream.layout.num_examples(outputs.values()) if trained else 0)
        return torch.stack([value.detach().float() for value in (*losses.values(), *penalties.values())]), pulls

    def _pulls(self, forward: Pass) -> tuple[str | None, list[Pull]]:
        """The name and the pulls of the regularizer whose gradient is added to the others' in one pass, if any."""
        name, pulls = self.objective.pulls(self.model, forward)
        if self.update is None or not all(pull.weight in self.update.group_of for pull in pulls):
            return None, []
        return name, pulls

    def _drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.half:
            self.half.drop_gradients()

    def _learned(self, pulls: Sequence[Pull] = ()) -> list[Learned]:
        """The parameters that have a gradient or a pull. The gradient of a linear map belongs to its half-precision
        copy; a penalty that reads the weight itself adds a second one."""
        copies = self.half.copies if self.half else {}
        pull_of: dict[Tensor, Pull] = {pull.weight: pull for pull in pulls}
        learned, both = [], []
        for weight in (p for group in self.optimizer.param_groups for p in group["params"]):
            copy = copies.get(weight)
            half_gradient = None if copy is None else copy.grad
            if weight.grad is not None and half_gradient is not None:
                both.append((weight.grad, half_gradient))
            gradient = half_gradient if weight.grad is None else weight.grad
            pull = pull_of.get(weight)
            if gradient is None and pull is not None:
                gradient = torch.zeros_like(weight)
            if gradient is not None:
                learned.append(Learned(weight, gradient, copy, pull))
        if both:
            # Adding tensors of two precisions would be a launch for each.
            full = [torch.empty_like(gradient) for gradient, _ in both]
            torch._foreach_copy_(full, [half for _, half in both])
            torch._foreach_add_([gradient for gradient, _ in both], full)
        return learned

    def _clip_and_update(self, learned: list[Learned], values: Tensor, table: Table | None) -> Tensor:
        """Add pulls to the gradients, clip them and update the weights, unless a value of the step is not finite.

        Returns the values, the penalty of the pulls, if there are some, and the gradient's norm.
        """
        if any(one.pull is not None for one in learned):
            assert self.update is not None
            learned = [one._replace(gradient=one.gradient.contiguous()) for one in learned]
            penalty, norm = self.update.pull(learned, table)
            values = torch.cat([values, penalty[None]])
        else:
            norm = norm_of([one.gradient for one in learned])
        results = torch.cat([values, norm[None]])
        found_inf = ((results * 0).sum() + self._bad != 0).float()  # 0 times NaN or infinity is NaN
        if self.settings.on_nan == "stop":
            found_inf = torch.maximum(self._stopped, found_inf, out=self._stopped)
        divisor = None if self.settings.clip is None else (norm / self.settings.clip).clamp(min=1.0)
        rates = self._learning_rates
        if self.update is not None:
            self.update.step(learned, rates, found_inf, divisor, table)
            self._move_followers()
            return results
        optimizer: Any = self.optimizer
        optimizer.found_inf = found_inf
        if divisor is not None:
            optimizer.grad_scale = divisor
        for one in learned:
            one.weight.grad = one.gradient
        numbers = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        try:
            optimizer.step()
        finally:
            for group, rate in zip(optimizer.param_groups, numbers, strict=True):
                group["lr"] = rate
        self._move_followers()
        return results

    @property
    def _learning_rates(self) -> Tensor:
        return self._numbers.tensors[0][: len(self.optimizer.param_groups)]

    def _move_followers(self) -> None:
        """Move averages towards the weights, unless training has stopped; a skipped step moves them too."""
        first = len(self.optimizer.param_groups)
        for number, following in enumerate(self._following, start=first):
            following.move(self._numbers.tensors[0][number], self._stopped)

    def _current_phase(self) -> tuple[int, ...]:
        return tuple(regularizer.phase for regularizer in self.objective.regularizers.values())

    # --- a step of several passes -------------------------------------------------------------------------------------
    def _begin_in_parts(self, batches: Iterable[Batch]) -> Callable[[], StepOutcome]:
        """Each pass writes its gradient into a row; then the rows are combined. A pass is packed while the one before
        it runs."""
        if self._rows is None:
            copies = self.half.copies if self.half else {}
            learnable = [(p, p in copies) for group in self.optimizer.param_groups for p in group["params"]]
            penalties = bool(self.objective.regularizers)
            self._rows = GradientRows(self.model, self.objective.policy, learnable, penalties)
        rows = self._rows
        rows.start_step()
        parts, tokens = [], 0
        for batch in batches:
            for kind, stream in self._passes(batch):
                source = rows.source(kind, stream, self.model.tasks)
                key = kind, source.row, source.first, shape_of(stream)
                # Copied, because the graphs share their memory: the next one may write where this result is.
                numbers = self.graphs.run(key, tensors_of(stream), self._pass_body(key, stream, source)).clone()
                rows.reached(source, key)
                parts.append((numbers, self._facts[key]))
                tokens += stream.layout.real_tokens if kind in ("all", "losses") else 0
        self._drop_gradients()
        return self._combine(rows, parts, tokens)

    def _passes(self, batch: Batch) -> Iterator[tuple[PassKind, Stream]]:
        if not self.objective.policy.needs_task_gradients:
            yield "all", batch.together
            return
        for stream in batch.by_task():
            yield "losses", stream
        for stream in batch.remembered():
            yield "memory", stream
        if self.objective.regularizers:
            yield "penalties", batch.together

    def _pass_body(self, key: Any, stream: Stream, source: RowSource) -> Body:
        def body(inputs: list[Tensor], table: Table | None, capturing: bool) -> Tensor:
            static = self._static(inputs, stream, capturing)
            values, _ = self._differentiate(key, static, source.kind, 1 / self.settings.accumulate)
            assert self._rows is not None
            self._rows.write(source, key, self._learned())
            self._bad += (values * 0).sum()
            return values

        return body

    def _combine(self, rows: GradientRows, parts: list[Part], tokens: int) -> Callable[[], StepOutcome]:
        """Combine the rows and update the weights, unless a row is not finite."""
        bad_rows = rows.solve(self.graphs)
        if not bad_rows:

            def body(inputs: list[Tensor], table: Table | None, capturing: bool) -> Tensor:
                copies = self.half.copies if self.half else {}
                nothing = torch.zeros(0, device=self.device)
                return self._clip_and_update(rows.combined(inputs[0], copies), nothing, table)

            norm = self.graphs.run(("update", rows.pattern), [torch.tensor(rows.weights)], body)
            parts = [*parts, (norm, PassFacts([], 0))]
        else:
            self._move_followers()
        self._bad.zero_()
        return self._outcome(parts, tokens, bad_rows)

    # --- its outcome --------------------------------------------------------------------------------------------------
    def _outcome(self, parts: Sequence[Part], tokens: int, bad_rows: Sequence[str] = ()) -> Callable[[], StepOutcome]:
        """Copy the numbers of a step's graphs to the host; the last one is the gradient's norm."""
        on_gpu = self.device.type == "cuda"
        results = torch.cat([numbers for numbers, _ in parts]) if len(parts) > 1 else parts[0][0]
        host = torch.empty(len(results), pin_memory=on_gpu).copy_(results, non_blocking=True)
        event = torch.cuda.Event() if on_gpu else None
        if event is not None:
            event.record()

        def read() -> StepOutcome:
            if event is not None:
                event.synchronize()
            numbers = host.tolist()
            found: dict[str, dict[str, list[float]]] = {"losses": {}, "penalties": {}}
            first = 0
            for tensor, facts in parts:
                for (what, name), value in zip(facts.values, numbers[first:], strict=False):
                    found[what].setdefault(name, []).append(value)
                first += len(tensor)
            norm = math.nan if bad_rows else numbers[-1]
            means = {what: {n: sum(v) / len(v) for n, v in values.items()} for what, values in found.items()}
            examples = sum(facts.examples for _, facts in parts)
            outcome = StepOutcome(means["losses"], means["penalties"], norm, examples, tokens)
            return check_finite(outcome, self.settings, bad_rows)

        return read


def _noted(batches: Iterable[Batch], drawn: list[Batch]) -> Iterator[Batch]:
    for batch in batches:
        drawn.append(batch)
        yield batch


def _fail(error: StepFailed) -> StepOutcome:
    raise error
