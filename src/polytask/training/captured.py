"""Whole training steps as CUDA graphs: forward, backward, clipping and update, replayed with one launch.

A small step takes a GPU less time than the processor needs to launch its thousand kernels. Steps on steady streams
(`Packer.pack`) of the same shapes are the same kernels on other numbers: the first is run as it is, the second is
captured, and from then on a step is a copy of its tokens and a replay. Nothing is waited for: what a step came to is
asked for when the next one is under way.

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
from polytask.stream import Stream
from polytask.training.feed import Feed
from polytask.training.objective import Objective
from polytask.training.step import StepOutcome, half_precision, judged
from polytask.types import TrainSettings

log = logging.getLogger(__name__)
MOST_GRAPHS = 128
SIDE_STREAM_TOKENS = 16384
"""Tokens up to which gradients of weights are computed on a side stream: with more, one stream fills the GPU."""
ALIGNED = 64


def reason_not_capturable(
    device: torch.device, optimizer: torch.optim.Optimizer, objective: Objective, settings: TrainSettings, feed: Feed
) -> str | None:
    """What of a run cannot be captured."""
    policy = type(objective.policy)
    if device.type != "cuda":
        return f"graphs are CUDA's, and this is a run on {device.type}"
    if not settings.capture:
        return "train.capture is false"
    if not declared(optimizer, "capturable") or not all(group.get("fused") for group in optimizer.param_groups):
        return f"{type(optimizer).__name__} does not declare a step that can be captured; fused_adamw does"
    if policy.needs_task_gradients:
        return f"{policy.__name__} decides by the step's own gradients what the step does"
    if policy.observe is not Policy.observe:
        return f"{policy.__name__} weighs losses anew as it goes"
    if not declared(objective.policy, "capturable"):
        return f"{policy.__name__} does not declare that what it does can be captured (capturable = True)"
    if objective.regularizers:
        return f"of {', '.join(objective.regularizers)}: penalties make passes of their own"
    if feed.taught:
        return "what teachers say counts less from step to step"
    if feed.masked:
        return f"{', '.join(feed.masked)}: the number of hidden tokens differs from step to step"
    if settings.accumulate > 1:
        return "train.accumulate: several passes make one step"
    return None


class CapturedSteps:
    """Moves the weights as `take_step` does, on steady streams."""

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
        self.side_stream = SideStream(self.device)
        self.update = Update(optimizer) if update_fits(optimizer) else None
        """Takes the optimizer's place where it can; it writes the half weights too."""
        self.reason: str | None = None
        """Why capturing failed, if it did: steps are then run as they are."""
        self._rates = _Copied([torch.zeros(len(optimizer.param_groups))], self.device)
        self._stopped = torch.zeros((), device=self.device)
        self._graphs: dict[Any, _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        for group in optimizer.param_groups:
            group["capturable"] = True
        if self.half and self.update:
            half = self.half
            optimizer.register_step_post_hook(lambda *_: half.forget())

    def begin(self, stream: Stream) -> Callable[[], StepOutcome]:
        """Starts a step; what is given back waits for its end and says what it came to.

        Where a loss or the gradient is no number nothing moves, then and, with `on_nan: stop`, in the steps after it.
        """
        key = shape_of(stream)
        if self.half and self.update:
            self.half.refresh()
        graph = self._graphs.get(key)
        self._rates.fill([torch.tensor([group["lr"] for group in self.optimizer.param_groups])])
        if graph is None:
            graph = self._graphs[key] = _Graph(_Copied(tensors_of(stream), self.device))
            graph.inputs.fill(tensors_of(stream))
            results = self._run(graph.inputs.stream(stream))
        else:
            graph.inputs.fill(tensors_of(stream))
            if graph.graph is None and self.reason is None and len(self._graphs) <= MOST_GRAPHS:
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
            self._give_up(str(error).splitlines()[0])
        self._drop_gradients()
        seeds.seed_torch(torch.initial_seed(), self.device)  # capturing has drawn from it

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        log.warning("steps are not captured: %s", reason)
        # The generator believes that capturing goes on. Graphs captured before would go on with what it was.
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())
        for graph in self._graphs.values():
            graph.graph = None

    def _run(self, stream: Stream, table: Table | None = None) -> Tensor:
        """The step itself: [K + 1], the losses of the stream's tasks and the gradient's norm."""
        model, settings = self.model, self.settings
        self._drop_gradients()
        model.train()
        if settings.parts != "all":
            model.encoder.eval()
        with (
            self.half.standing_in(self.update is None) if self.half else nullcontext(),
            self.side_stream.open(len(stream.token_ids_T) <= SIDE_STREAM_TOKENS),
        ):
            with half_precision(model, settings):
                losses = self.objective.task_losses(model, stream, model(stream), 0.0)
            self.objective.policy.weigh(losses).backward()
        if self.half and self.update is None:
            self.half.move_gradients()
        learned = self._learned()
        norm = norm_of([one.gradient for one in learned])
        results = torch.stack([*(loss.detach().float() for loss in losses.values()), norm])
        self._update(learned, norm, (results * 0).sum() != 0, table)  # 0 times what is no number is none
        return results

    def _drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.half:
            self.half.drop_gradients()

    def _learned(self) -> list[Learned]:
        copies = self.half.copies if self.half else {}
        found = []
        for weight in (p for group in self.optimizer.param_groups for p in group["params"]):
            copy = copies.get(weight)
            gradient = weight.grad if copy is None or copy.grad is None else copy.grad
            if gradient is not None:
                found.append(Learned(weight, gradient, copy))
        return found

    def _update(self, learned: list[Learned], norm: Tensor, wrong: Tensor, table: Table | None) -> None:
        """An update takes a number to divide gradients by, and one that says that nothing is to move."""
        found = wrong.float()
        if self.settings.on_nan == "stop":
            found = torch.maximum(self._stopped, found, out=self._stopped)
        divisor = None if self.settings.clip is None else (norm / self.settings.clip).clamp(min=1.0)
        rates = self._rates.tensors[0]
        if self.update is not None:
            self.update.step(learned, rates, found, divisor, table)
            return
        optimizer: Any = self.optimizer
        optimizer.found_inf = found
        if divisor is not None:
            optimizer.grad_scale = divisor
        own = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, own, strict=True):
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
            return judged(StepOutcome(named, {}, norm, examples, stream.layout.real_tokens), self.settings)

        return outcome


@dataclass
class _Graph:
    """A step of certain shapes, from its second time on as a graph."""

    inputs: "_Copied"
    graph: "torch.cuda.CUDAGraph | None" = None
    results: Tensor | None = None
    table: Table | None = None


def shape_of(stream: Stream) -> tuple[Any, ...]:
    """What two steady streams have in common if they are the same kernels on other numbers."""
    layout = stream.layout
    shapes = tuple((tuple(t.shape), t.dtype) for t in tensors_of(stream))
    return shapes, tuple(stream.labels), layout.sequence_ranges, layout.token_ranges, layout.length_bound


def tensors_of(stream: Stream) -> list[Tensor]:
    own = [stream.token_ids_T, stream.position_ids_T, stream.segment_ids_T, stream.layout.cu_seqlens_S1]
    return own + list(stream.labels.values())


class _Copied:
    """Tensors that stay where they are on the device, and get new numbers by one copy."""

    def __init__(self, like: list[Tensor], device: torch.device) -> None:
        sizes = [-(-t.numel() * t.element_size() // ALIGNED) * ALIGNED for t in like]
        starts = [sum(sizes[:k]) for k in range(len(sizes))]
        # Two on the host, in turns: one may still be on its way when the next is written.
        pinned = device.type == "cuda"
        hosts = [torch.zeros(sum(sizes), dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._bytes = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        self._hosts = [(host, _views(host, starts, like)) for host in hosts]
        self.tensors = _views(self._bytes, starts, like)

    def fill(self, tensors: list[Tensor]) -> None:
        self._hosts.reverse()
        host, views = self._hosts[0]
        for view, tensor in zip(views, tensors, strict=True):
            view.copy_(tensor)
        self._bytes.copy_(host, non_blocking=True)

    def stream(self, like: Stream) -> Stream:
        """These tensors as a stream of this shape."""
        tokens, positions, segments, cu, *labels = self.tensors
        layout = replace(like.layout, cu_seqlens_S1=cu)
        return Stream(tokens, positions, segments, layout, dict(zip(like.labels, labels, strict=True)))


def _views(flat: Tensor, starts: list[int], like: list[Tensor]) -> list[Tensor]:
    return [
        flat[start : start + t.numel() * t.element_size()].view(t.dtype).view(t.shape)
        for start, t in zip(starts, like, strict=True)
    ]
