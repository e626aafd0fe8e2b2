"""Whole training steps as CUDA graphs: forward, backward, clipping and update, replayed with one launch.

A GPU computes a small step in less time than the CPU needs to launch its thousand kernels. Steps on streams of static
shape (`Packer.pack`) with equal shapes run the same kernels on other data: the first such step runs normally, the
second is captured, and from then on a step is a copy of its tokens and a replay. A step's losses are read after the
next step is launched, so the GPU never waits.

Knows interfaces; knows no concrete method.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polytask import seeds
from polytask.kernels.adamw_update import Learned, Table, Update, declared, norm_of, update_fits
from polytask.kernels.half_weights import HalfWeights
from polytask.kernels.side_stream import SideStream
from polytask.model import MultiTaskModel
from polytask.policies.base import Policy
from polytask.settings import TrainSettings
from polytask.stream import Stream
from polytask.training.feed import Feed
from polytask.training.objective import Objective
from polytask.training.static_tensors import StaticTensors, shape_of, tensors_of
from polytask.training.step import StepOutcome, check_finite, half_precision, set_training_mode

log = logging.getLogger(__name__)
MAX_GRAPHS = 128
SIDE_STREAM_TOKENS = 16384
"""Up to this many tokens, gradients of weights are computed on a side stream; larger steps fill the GPU anyway."""


def reason_not_capturable(
    device: torch.device, optimizer: torch.optim.Optimizer, objective: Objective, settings: TrainSettings, feed: Feed
) -> str | None:
    """Return why the steps of a run cannot be captured; None if they can."""
    policy = type(objective.policy)
    if device.type != "cuda":
        return f"the run is on {device.type}, and only CUDA has graphs"
    if not settings.capture:
        return "train.capture is false"
    if not declared(optimizer, "capturable") or not all(group.get("fused") for group in optimizer.param_groups):
        return f"the optimizer {type(optimizer).__name__} does not declare capturable = True; fused_adamw does"
    if policy.needs_task_gradients:
        return f"the policy {policy.__name__} needs per-task gradients"
    if policy.observe is not Policy.observe:
        return f"the policy {policy.__name__} changes its weights from step to step"
    if not declared(objective.policy, "capturable"):
        return f"the policy {policy.__name__} does not declare capturable = True"
    if objective.regularizers:
        return f"regularizers run forward passes of their own ({', '.join(objective.regularizers)})"
    if feed.teacher_outputs:
        return "the weight of teachers changes from step to step"
    masked = [task for task, form in feed.formats.items() if form.mask_share is not None]
    if masked:
        return f"the number of masked tokens changes from step to step ({', '.join(masked)})"
    if settings.accumulate > 1:
        return "a step has several forward passes (train.accumulate)"
    return None


class CapturedSteps:
    """Updates the weights as `take_step` does, for streams of static shape."""

    def __init__(
        self,
        model: MultiTaskModel,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        settings: TrainSettings,
    ) -> None:
        self.model, self.optimizer, self.objective, self.settings = model, optimizer, objective, settings
        self.device = model.device
        self.half = HalfWeights(model) if settings.precision == "bf16" else None
        self.update = Update(optimizer) if update_fits(optimizer) else None
        """Replaces the optimizer's step if possible; it also writes the half-precision weights."""
        self.reason: str | None = None
        """Why capturing failed, if it did; steps then run normally."""
        self.side_stream = SideStream(self.device)
        self._rates = StaticTensors([torch.zeros(len(optimizer.param_groups))], self.device)
        self._stopped = torch.zeros((), device=self.device)
        self._graphs: dict[Any, _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        for group in optimizer.param_groups:
            group["capturable"] = True
        if self.half and self.update:
            half = self.half
            optimizer.register_step_post_hook(lambda *_: half.forget())

    def begin(self, stream: Stream) -> Callable[[], StepOutcome]:
        """Launch a step, and return a function that waits for its end and returns its outcome.

        If a loss or the gradient is NaN or infinite, nothing is updated; with `on_nan: stop`, later steps update
        nothing either.
        """
        key = shape_of(stream)
        if self.half and self.update:
            self.half.refresh()
        graph = self._graphs.get(key)
        self._rates.fill([torch.tensor([group["lr"] for group in self.optimizer.param_groups])])
        if graph is None:
            graph = self._graphs[key] = _Graph(StaticTensors(tensors_of(stream), self.device))
            graph.inputs.fill(tensors_of(stream))
            results = self._run(graph.inputs.stream(stream))
        else:
            graph.inputs.fill(tensors_of(stream))
            if graph.graph is None and self.reason is None and len(self._graphs) <= MAX_GRAPHS:
                self._capture(graph, stream)
            if graph.graph is None:
                results = self._run(graph.inputs.stream(stream))
            else:
                assert graph.results is not None
                graph.graph.replay()
                results = graph.results
        return self._outcome(results, stream)

    def _capture(self, graph: "_Graph", stream: Stream) -> None:
        if self.device.type != "cuda":
            return
        static = graph.inputs.stream(stream)
        static = replace(static, layout=static.layout.for_capture())
        captured = torch.cuda.CUDAGraph()
        table = self.update.table() if self.update else None
        try:
            with torch.cuda.graph(captured, pool=self._pool):
                graph.results = self._run(static, table)
            graph.graph, graph.table = captured, table
            if table is not None:
                table.send()
        except (RuntimeError, ValueError, IndexError) as error:
            self._stop_capturing(str(error).splitlines()[0])
        self._drop_gradients()
        seeds.seed_torch(torch.initial_seed(), self.device)  # capturing has advanced the generator

    def _stop_capturing(self, reason: str) -> None:
        self.reason = reason
        log.warning("steps are not captured: %s", reason)
        # The generator is still in capture mode, and the graphs captured before would use its old state.
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())
        for graph in self._graphs.values():
            graph.graph = None

    def _run(self, stream: Stream, table: Table | None = None) -> Tensor:
        """Run the step. Returns [K + 1]: the losses of the stream's tasks and the gradient's norm."""
        model, settings = self.model, self.settings
        self._drop_gradients()
        set_training_mode(model, settings)
        with (
            self.half.swapped_in(self.update is None) if self.half else nullcontext(),
            self.side_stream.open(len(stream.token_ids_T) <= SIDE_STREAM_TOKENS),
        ):
            with half_precision(model, settings):
                losses = self.objective.task_losses(model, stream, model(stream), 0.0)
            self.objective.policy.weigh(losses).backward()
        if self.half and self.update is None:
            self.half.move_gradients()
        learned = self._learned()
        norm = norm_of([parameter.gradient for parameter in learned])
        results = torch.stack([*(loss.detach().float() for loss in losses.values()), norm])
        self._update(learned, norm, (results * 0).sum() != 0, table)  # 0 times NaN or infinity is NaN
        return results

    def _drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.half:
            self.half.drop_gradients()

    def _learned(self) -> list[Learned]:
        copies = self.half.copies if self.half else {}
        learned = []
        for weight in (p for group in self.optimizer.param_groups for p in group["params"]):
            copy = copies.get(weight)
            gradient = weight.grad if copy is None or copy.grad is None else copy.grad
            if gradient is not None:
                learned.append(Learned(weight, gradient, copy))
        return learned

    def _update(self, learned: list[Learned], norm: Tensor, not_finite: Tensor, table: Table | None) -> None:
        """Clip the gradients and update the weights, unless a value of the step is not finite."""
        found_inf = not_finite.float()
        if self.settings.on_nan == "stop":
            found_inf = torch.maximum(self._stopped, found_inf, out=self._stopped)
        divisor = None if self.settings.clip is None else (norm / self.settings.clip).clamp(min=1.0)
        rates = self._rates.tensors[0]
        if self.update is not None:
            self.update.step(learned, rates, found_inf, divisor, table)
            return
        optimizer: Any = self.optimizer
        optimizer.found_inf = found_inf
        if divisor is not None:
            optimizer.grad_scale = divisor
        numbers = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        try:
            optimizer.step()
        finally:
            for group, rate in zip(optimizer.param_groups, numbers, strict=True):
                group["lr"] = rate

    def _outcome(self, results: Tensor, stream: Stream) -> Callable[[], StepOutcome]:
        on_gpu = self.device.type == "cuda"
        host = torch.empty(len(results), pin_memory=on_gpu).copy_(results, non_blocking=True)
        event = torch.cuda.Event() if on_gpu else None
        if event is not None:
            event.record()
        tasks = [t for t, (a, b) in zip(self.model.tasks, stream.layout.sequence_ranges, strict=True) if a < b]

        def outcome() -> StepOutcome:
            if event is not None:
                event.synchronize()
            *losses, norm = host.tolist()
            examples = sum(len(stream.labels[task]) for task in tasks)
            named = dict(zip(tasks, losses, strict=True))
            return check_finite(StepOutcome(named, {}, norm, examples, stream.layout.real_tokens), self.settings)

        return outcome


@dataclass
class _Graph:
    """A step of given shapes; it is captured the second time it runs."""

    inputs: "StaticTensors"
    graph: "torch.cuda.CUDAGraph | None" = None
    results: Tensor | None = None
    table: Table | None = None
