"""Earlier tasks' answers stay what they were, on the texts of the task that is learned now."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.stream import Encoded, Layout
from polytask.types import LabelKind, NonNegative, Positive, UserError

FINISHED = "finished"


class Lwf(Regularizer):
    """Learning without forgetting: `weight sum_j w_j d(f_j(x; old encoder), f_j(x; encoder))`, j the earlier tasks.

    For tasks one after another (sampler in_order, or added to a finished run); needs no examples of the earlier ones.
    When a stage ends, a copy of the whole model is taken. From then on every earlier task's head and adapter, as they
    are in the copy, answer the step's own texts x twice, on the copy's encoder and on the one that learns. d is
    `T^2 KL(p_old || p)` of the probabilities at `temperature` T for classes and yes_no, the squared error for scores;
    mean over the texts, w_j the task's weight. 0 before the first stage has ended. The copy answers without dropout and
    takes no gradient.

    A head that reads one sequence (linear, cross) reads every sequence of the step, a pair's texts in one sequence or
    each by itself. A head that reads two (bi, cosine) reads pairs whose texts are apart; where the step has none, the
    task is left out of it. Plain text has no answers, and is left out.

    Paper: Li & Hoiem, "Learning without Forgetting", 2016 (T 2), which lets the earlier heads learn too and has no T^2.
    Costs 4/3 of a plain step; with an adapter, 4/3 more for every earlier task. The copy is in every checkpoint.
    """

    def __init__(self, context: RegularizerContext, *, weight: NonNegative = 1.0, temperature: Positive = 2.0) -> None:
        super().__init__(context)
        context.check_stages("lwf")
        if temperature <= 0:
            raise UserError(
                f"recipe: regularizers: lwf: temperature: a number above 0 is needed, found {temperature:g}"
            )
        self.weight = weight
        self.temperature = temperature
        self.finished = 0
        """How many stages have ended."""
        self.copy: MultiTaskModel | None = None

    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        total = torch.zeros((), device=model.device)
        if self.copy is None or not any(p.requires_grad for p in model.encoder.parameters()):
            return total
        # Without an adapter the encoder gives every task the same, so that one pass does for all of them.
        plain = next(model.adapter.parameters(), None) is None
        states = (self.copy.encoder.encode(done.stream, self.copy.adapter), done.states[-1]) if plain else None
        for task in self._answering():
            layouts = list(readable(model, done.stream.layout, task))
            if layouts:
                old, new = self._answers(model, task, layouts, states or self._states(model, done, task))
                weight = self.weight * self.context.weights[task]
                total = total + weight * distillation(new, old, model.head(task).labels.kind, self.temperature)
        return total

    def _answering(self) -> list[str]:
        """The tasks that were learned before, and have answers."""
        tasks = [*self.context.learned, *(stage.task for stage in self.context.stages[: self.finished])]
        return [task for task in tasks if self.context.model.head(task).labels.kind != "text"]

    def _states(self, model: MultiTaskModel, done: Pass, task: str) -> tuple[Tensor, Tensor]:
        """What the copy's encoder and the one that learns make of the stream as if all of it were the task's."""
        assert self.copy is not None
        stream = replace(done.stream, layout=as_task(done.stream.layout, model.tasks.index(task)))
        return self.copy.encoder.encode(stream, self.copy.adapter), model.encoder.encode(stream, self.copy.adapter)

    def _answers(
        self, model: MultiTaskModel, task: str, layouts: Sequence[Layout], states: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, ...]:
        """Of the task's head in the copy, given the states of both encoders."""
        assert self.copy is not None
        head, k = self.copy.head(task), model.tasks.index(task)
        return tuple(
            torch.cat([head(Encoded(hidden_TD, layout, k, encoder.pool)) for layout in layouts])
            for hidden_TD, encoder in zip(states, (self.copy.encoder, model.encoder), strict=True)
        )

    def start(self, model: MultiTaskModel) -> None:
        self.copy = frozen(model)

    def after_step(self, model: MultiTaskModel, step: int) -> None:
        if self.context.finished(step) is not None:
            self.finished += 1
            self.copy = frozen(model)

    def state_dict(self) -> dict[str, Tensor]:
        if self.copy is None:
            return {}
        return {FINISHED: torch.tensor(self.finished), **{f"copy/{n}": t for n, t in self.copy.state_dict().items()}}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.finished, self.copy = 0, None
        if state:
            self.finished, self.copy = int(state[FINISHED]), frozen(self.context.model)
            weights = {name.removeprefix("copy/"): tensor for name, tensor in state.items() if name != FINISHED}
            self.copy.load_state_dict(weights)


def frozen(model: MultiTaskModel) -> MultiTaskModel:
    return copy.deepcopy(model).eval().requires_grad_(False)


def readable(model: MultiTaskModel, layout: Layout, task: str) -> Iterator[Layout]:
    """The parts of a stream that the task's head can read, each as a layout in which it is the task's."""
    own, k = as_task(layout, model.tasks.index(task)), model.tasks.index(task)
    if not model.head(task).apart:
        yield own
        return
    for other, sequences in enumerate(layout.sequence_ranges):
        if sequences[0] < sequences[1] and model.head(model.tasks[other]).apart:
            yield with_range(own, k, sequences)


def as_task(layout: Layout, k: int) -> Layout:
    """The same sequences, all of them task k's; filler stays nobody's."""
    return with_range(layout, k, (0, max(last for _, last in layout.sequence_ranges)))


def with_range(layout: Layout, k: int, sequences: tuple[int, int]) -> Layout:
    """Only task k has sequences: these."""
    ends = [0, *accumulate(layout.lengths)]
    tokens, nothing = (ends[sequences[0]], ends[sequences[1]]), (0, 0)
    tasks = range(len(layout.sequence_ranges))
    return replace(
        layout,
        sequence_ranges=tuple(sequences if task == k else nothing for task in tasks),
        token_ranges=tuple(tokens if task == k else nothing for task in tasks),
    )


def distillation(new: Tensor, old: Tensor, kind: LabelKind, temperature: float) -> Tensor:
    """Mean over examples of `T^2 KL(old || new)` at a temperature T, or of the squared error of scores."""
    wide = torch.promote_types(new.dtype, torch.float32)
    new, old = new.to(wide), old.to(wide)
    if kind == "score":
        return F.mse_loss(new, old)
    if kind == "yes_no":  # two classes with logits x and 0
        new, old = (torch.stack((x, torch.zeros_like(x)), dim=-1) for x in (new, old))
    log_p, log_q = (x.div(temperature).log_softmax(-1) for x in (new, old))
    return temperature**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
