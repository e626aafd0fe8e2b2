"""Training steps as CUDA graphs: forward, backward, clipping and update, replayed with one launch.

Steps on streams of static shape (`Packer.pack`) with equal shapes run the same kernels on other data: the first such
step runs normally, the second is captured, and from then on a step is a copy of its tokens and a replay. A step's
losses are read after the next step is launched, so the GPU never waits.

A step with one forward pass is one graph. A step with several (gradient policies, accumulation) is one graph per pass,
each of which writes its gradient into a row of a matrix, and one that combines the rows and updates the weights.

Knows interfaces; knows no concrete method.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polytask.kernels.compiling import compiled_in_parallel, first_time
from polytask.kernels.graphs import Body, Graphs
from polytask.kernels.static_tensors import StaticTensors, shape_of, tensors_of
from polytask.kernels.triton_support import kernels_run
from polytask.kernels.updates import Table, declared
from polytask.model import MultiTaskModel
from polytask.modes import eval_mode
from polytask.processes import ALONE, Processes
from polytask.settings import TrainSettings
from polytask.stream import Stream
from polytask.training.averages import RunningAverage
from polytask.training.feed import Batch
from polytask.training.gradient_rows import GradientRows, PassKind, RowSource
from polytask.training.objective import Objective
from polytask.training.step import (
    StepFailed,
    StepOutcome,
    check_finite,
    half_precision,
    memory_ran_out,
    out_of_memory,
)
from polytask.training.step_operations import PassFacts, StepOperations

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


def reason_not_divided(objective: Objective, settings: TrainSettings) -> str | None:
    """Return why steps that can be captured cannot be if several processes divide them; None if they can."""
    if objective.policy.needs_task_gradients or settings.accumulate > 1:
        return "several processes divide the steps, and their policy or train.accumulate needs several passes"
    for name, regularizer in objective.regularizers.items():
        if not regularizer.of_weights:
            return f"several processes divide the steps, and the regularizer {name} reads the texts"
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
        processes: Processes = ALONE,
    ) -> None:
        self.model, self.optimizer, self.objective, self.settings = model, optimizer, objective, settings
        self.device = model.device
        self.operations = StepOperations(model, optimizer, objective, settings, average, processes)
        update = self.operations.update
        self.graphs = Graphs(self.device, lambda: update.table() if update else None, processes)
        self._phase = self._current_phase()
        self._rows: GradientRows | None = None

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
            self.operations.reached.clear()
        self.operations.start_step(progress, step)
        drawn: list[Batch] = []
        several = self.objective.policy.needs_task_gradients or self.settings.accumulate > 1
        launch = self._launch_passes if several else self._launch
        try:
            return launch(_noted(batches, drawn))
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
        if not len(stream):  # this process has no part of the step
            return
        inputs = StaticTensors(tensors_of(stream), self.device)
        inputs.fill(tensors_of(stream))
        static = self.operations.static(inputs.tensors, stream, capturing=False)
        with compiled_in_parallel():
            with torch.no_grad(), eval_mode(self.model), half_precision(self.model, self.settings):
                self.model(static)
            _, pulls = self.operations.differentiate("compile", static, kind, exchange=False)
            self.operations.compile_update(pulls)
        self.operations.drop_gradients()

    def _current_phase(self) -> tuple[int, ...]:
        return tuple(regularizer.phase for regularizer in self.objective.regularizers.values())

    # --- a step of one pass -------------------------------------------------------------------------------------------
    def _launch(self, batches: Iterable[Batch]) -> Callable[[], StepOutcome]:
        (batch,) = batches
        stream, operations = batch.together, self.operations
        # All processes capture in the same step: a graph that adds up waits for those of the others.
        key = "step", shape_of(stream), None if stream.share is None else stream.share.shape

        def body(inputs: list[Tensor], table: Table | None, capturing: bool) -> Tensor:
            values, pulls = operations.differentiate(key, operations.static(inputs, stream, capturing))
            results = operations.clip_and_update(operations.learned(pulls), values, table)
            operations.drop_gradients()
            return results

        numbers = self.graphs.run(key, tensors_of(stream), body)
        tokens = stream.layout.real_tokens if stream.share is None else stream.share.tokens
        return self._outcome([(numbers, operations.facts[key])], tokens)

    # --- a step of several passes -------------------------------------------------------------------------------------
    def _launch_passes(self, batches: Iterable[Batch]) -> Callable[[], StepOutcome]:
        """Each pass writes its gradient into a row; then the rows are combined. A pass is packed while the one before
        it runs."""
        rows = self._rows = self._rows or self._new_rows()
        rows.start_step()
        parts, tokens = [], 0
        for batch in batches:
            for kind, stream in self._passes(batch):
                source = rows.source(kind, stream, self.model.tasks)
                key = kind, source.row, source.first, shape_of(stream)
                # Copied, because the graphs share their memory: the next one may write where this result is.
                numbers = self.graphs.run(key, tensors_of(stream), self._pass_body(key, stream, source)).clone()
                rows.reached(source, key)
                parts.append((numbers, self.operations.facts[key]))
                tokens += stream.layout.real_tokens if kind in ("all", "losses") else 0
        self.operations.drop_gradients()
        return self._combine(rows, parts, tokens)

    def _new_rows(self) -> GradientRows:
        copies = self.operations.half.copies if self.operations.half else {}
        learnable = [(p, p in copies) for group in self.optimizer.param_groups for p in group["params"]]
        return GradientRows(self.model, self.objective.policy, learnable, bool(self.objective.regularizers))

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
        operations = self.operations

        def body(inputs: list[Tensor], table: Table | None, capturing: bool) -> Tensor:
            static = operations.static(inputs, stream, capturing)
            values, _ = operations.differentiate(key, static, source.kind, 1 / self.settings.accumulate)
            assert self._rows is not None
            self._rows.write(source, key, operations.learned())
            operations.bad += (values * 0).sum()
            return values

        return body

    def _combine(self, rows: GradientRows, parts: list[Part], tokens: int) -> Callable[[], StepOutcome]:
        """Combine the rows and update the weights, unless a row is not finite."""
        operations = self.operations
        bad_rows = rows.solve(self.graphs)
        if not bad_rows:

            def body(inputs: list[Tensor], table: Table | None, capturing: bool) -> Tensor:
                copies = operations.half.copies if operations.half else {}
                nothing = torch.zeros(0, device=self.device)
                return operations.clip_and_update(rows.combined(inputs[0], copies), nothing, table)

            norm = self.graphs.run(("update", rows.pattern), [torch.tensor(rows.weights)], body)
            parts = [*parts, (norm, PassFacts([], 0))]
        else:
            operations.move_followers()
        operations.bad.zero_()
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
