"""The operations of a training step that can be captured: a pass forward and backward, clipping, and the update.

They read and write tensors at fixed addresses: learning rates and other numbers that change from step to step are in
such tensors too, and no operation waits for the device. Knows interfaces; knows no concrete method.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from polytask.kernels.half_weights import HalfWeights
from polytask.kernels.overlapped_sums import sums_of_gradients
from polytask.kernels.side_stream import SideStream
from polytask.kernels.static_tensors import StaticTensors, as_stream
from polytask.kernels.updates import Following, Learned, PlainUpdate, Table, norm_of, update_for
from polytask.model import MultiTaskModel, Pass
from polytask.processes import ALONE, Processes
from polytask.regularizers.base import Pull
from polytask.settings import TrainSettings
from polytask.stream import Stream
from polytask.training.averages import RunningAverage
from polytask.training.gradient_rows import PassKind
from polytask.training.objective import Objective
from polytask.training.step import (
    by_share_of_examples,
    half_precision,
    pass_without_tokens,
    set_training_mode,
    summed_parameters,
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


@dataclass
class PassValues:
    """The results of a forward pass."""

    outputs: Mapping[str, Tensor]
    losses: Mapping[str, Tensor] = field(default_factory=dict)
    penalties: dict[str, Tensor] = field(default_factory=dict)
    of_weights: dict[str, Tensor] = field(default_factory=dict)
    """Those of the penalties that read weights, not the pass."""
    pulled: str | None = None
    """The regularizer whose penalty is a sum of pulls, and is not among `penalties`."""
    pulls: list[Pull] = field(default_factory=list)

    @property
    def numbers(self) -> Tensor:
        """Losses and penalties as one vector."""
        return torch.stack([value.detach().float() for value in (*self.losses.values(), *self.penalties.values())])


class StepOperations:
    """The operations of the steps of one run, which keep the tensors that they share."""

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
        self.processes = processes
        """Those that divide the steps."""
        self.device = model.device
        self.half = HalfWeights(model) if settings.precision == "bf16" else None
        self.update = update_for(optimizer)
        """Replaces the optimizer's step if possible; it also writes the half-precision weights."""
        if self.update is None and not isinstance(optimizer, torch.optim.AdamW):  # which can be captured as it is
            self.update = update_for(optimizer, kernels=False)
        self.side_stream = SideStream(self.device)
        followers = [one.followers for one in (*objective.regularizers.values(), average) if one is not None]
        self._followers = [one for one in followers if one is not None]
        self._following = [Following(one.tensors, one.weights) for one in self._followers]
        count = len(optimizer.param_groups) + len(self._followers) + 1
        self._numbers = StaticTensors([torch.zeros(count)], self.device)
        """The learning rate of each group, the rate of each moving average, and the share of the steps that is done."""
        self.bad = torch.zeros((), device=self.device)
        """NaN as soon as a loss of the running step is NaN or infinite, else 0."""
        self._stopped = torch.zeros((), device=self.device)
        """1 after a NaN or infinite value with `on_nan: stop`: nothing is updated any more."""
        self.facts: dict[Any, PassFacts] = {}
        """By the key of a pass."""
        self.reached: dict[Any, set[nn.Parameter]] = {}
        """By the key of a pass that processes divide: the parameters that have a gradient in some of them."""
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
        if self.half and self.update:
            half = self.half
            optimizer.register_step_post_hook(lambda *_: half.forget())

    def start_step(self, progress: float, step: int) -> None:
        """Copy the numbers of a step to where its operations read them."""
        if self.half and self.update:
            self.half.refresh()
        rates = [*(group["lr"] for group in self.optimizer.param_groups), *(one.rate(step) for one in self._followers)]
        self._numbers.fill([torch.tensor([*rates, progress])])

    def static(self, inputs: list[Tensor], like: Stream, capturing: bool) -> Stream:
        """Return a stream of these tensors; while it is captured, its lengths must not be read."""
        stream = as_stream(inputs, like)
        return replace(stream, layout=stream.layout.for_capture()) if capturing else stream

    # --- the gradient of a pass ---------------------------------------------------------------------------------------
    def differentiate(
        self, key: Any, stream: Stream, kind: PassKind = "all", weight: float = 1.0, *, exchange: bool = True
    ) -> tuple[Tensor, list[Pull]]:
        """Compute the gradient of `weight` times the losses and penalties.

        Returns them as one vector. In a step of one pass, a penalty that is a sum of pulls is not in it; the pulls,
        whose gradients are to be added, are returned too. If processes divide the step, the losses and gradients are
        those of the whole step, unless `exchange` is false.
        """
        self.drop_gradients()
        set_training_mode(self.model, self.settings)
        processes = self.processes if exchange else ALONE
        # Gradients on the side stream would not be complete when they are sent.
        with self.side_stream.open(len(stream) <= SIDE_STREAM_TOKENS and not processes.several):
            found = self._forward(stream, kind, processes, may_pull=kind == "all" and weight == 1.0)
            weighted = found.losses
            if kind == "memory":
                weighted = by_share_of_examples({task: len(own) for task, own in found.outputs.items()}, weighted)
            total = self.objective.policy.weigh(weighted) if found.losses else torch.zeros((), device=self.device)
            if processes.is_main:  # penalties of the weights count once
                later = {} if processes.several else found.of_weights
                total = sum((value for name, value in found.penalties.items() if name not in later), total)
            with self._sums(key, found, processes):
                if total.requires_grad:
                    (total if weight == 1.0 else total * weight).backward()
        if not processes.several:
            # A second gradient of a weight would be added on the main stream, before the first one is complete.
            for penalty in found.of_weights.values():
                if penalty.requires_grad:
                    (penalty if weight == 1.0 else penalty * weight).backward()
        if self.half and self.update is None:
            self.half.move_gradients()
        trained = kind in ("all", "losses")
        reported = [("losses", name) for name in found.losses if trained]
        reported += [("penalties", name) for name in (*found.penalties, found.pulled) if name is not None]
        share = stream.share
        examples = stream.layout.num_examples(found.outputs.values()) if share is None else share.num_examples
        self.facts[key] = PassFacts(reported, examples if trained else 0)
        return found.numbers, found.pulls

    @contextmanager
    def _sums(self, key: Any, found: PassValues, processes: Processes) -> Iterator[None]:
        """Turn the gradients of a backward pass into the sums over the processes.

        Which parameters have a gradient is exchanged when a pass runs normally, and known when it is captured.
        """
        if not processes.several:
            yield
            return
        copies = self.half.copies if self.half else {}
        parameters, overlap = summed_parameters(self.model, found.losses), not found.penalties
        with sums_of_gradients(parameters, processes, copies, self.reached.get(key), overlap) as reached:
            yield
        self.reached[key] = reached

    def _forward(self, stream: Stream, kind: PassKind, processes: Processes, may_pull: bool) -> PassValues:
        model, objective = self.model, self.objective
        forward: Pass | None = None
        half = self.half.swapped_in(self.update is None) if self.half else nullcontext()
        with half, half_precision(model, self.settings):
            if objective.regularizers and kind in ("all", "penalties"):
                forward = model.run(stream) if len(stream) else pass_without_tokens(model, stream)
                found = PassValues(forward.outputs)
                found.penalties = objective.penalties(model, forward, of_weights=False)
            else:
                found = PassValues(model(stream) if len(stream) else {})
            if kind != "penalties":
                progress = self._numbers.tensors[0][-1]
                found.losses = objective.task_losses(model, stream, found.outputs, progress, processes)
        if forward is not None:
            if may_pull:
                found.pulled, found.pulls = self._pulls(forward)
            found.of_weights = objective.penalties(model, forward, of_weights=True, without=found.pulled)
            found.penalties |= found.of_weights
        return found

    def _pulls(self, forward: Pass) -> tuple[str | None, list[Pull]]:
        """The name and the pulls of the regularizer whose gradient is added to the others' in one pass, if any."""
        name, pulls = self.objective.pulls(self.model, forward)
        if self.update is None or not all(pull.weight in self.update.group_of for pull in pulls):
            return None, []
        return name, pulls

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.half:
            self.half.drop_gradients()

    def learned(self, pulls: Sequence[Pull] = ()) -> list[Learned]:
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

    # --- the update ---------------------------------------------------------------------------------------------------
    def clip_and_update(self, learned: list[Learned], values: Tensor, table: Table | None) -> Tensor:
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
        found_inf = ((results * 0).sum() + self.bad != 0).float()  # 0 times NaN or infinity is NaN
        if self.settings.on_nan == "stop":
            found_inf = torch.maximum(self._stopped, found_inf, out=self._stopped)
        divisor = None if self.settings.clip is None else (norm / self.settings.clip).clamp(min=1.0)
        if self.update is not None:
            self.update.step(learned, self._learning_rates, found_inf, divisor, table)
        else:
            self._step_of_optimizer(learned, found_inf, divisor)
        self.move_followers()
        return results

    def _step_of_optimizer(self, learned: list[Learned], found_inf: Tensor, divisor: Tensor | None) -> None:
        """Run the optimizer's own step with learning rates on the device."""
        optimizer: Any = self.optimizer
        optimizer.found_inf = found_inf
        if divisor is not None:
            optimizer.grad_scale = divisor
        for one in learned:
            one.weight.grad = one.gradient
        numbers = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self._learning_rates, strict=True):
            group["lr"] = rate
        try:
            optimizer.step()
        finally:
            for group, rate in zip(optimizer.param_groups, numbers, strict=True):
                group["lr"] = rate

    def compile_update(self, pulls: Sequence[Pull]) -> None:
        """Launch the kernels of the update, with flags that make them change nothing."""
        if self.update is None or isinstance(self.update, PlainUpdate):
            return
        learned = self.learned(pulls)
        if pulls:
            self.update.pull(learned)
        ones = torch.ones((), device=self.device)
        divisor = None if self.settings.clip is None else ones
        self.update.step(learned, self._learning_rates, ones, divisor)
        self.move_followers()

    @property
    def _learning_rates(self) -> Tensor:
        return self._numbers.tensors[0][: len(self.optimizer.param_groups)]

    def move_followers(self) -> None:
        """Move averages towards the weights, unless training has stopped; a skipped step moves them too."""
        first = len(self.optimizer.param_groups)
        for number, following in enumerate(self._following, start=first):
            following.move(self._numbers.tensors[0][number], self._stopped)
