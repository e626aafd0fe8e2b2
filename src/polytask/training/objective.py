"""What a step minimizes: the tasks' losses, distillation from teachers, and penalties. Knows interfaces, no method."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from polytask.heads.base import Head
from polytask.losses.base import Loss, distillation_loss, label_terms, mean_of_labelled
from polytask.model import MultiTaskModel, Pass
from polytask.policies.base import Policy
from polytask.processes import ALONE, Processes
from polytask.regularizers.base import Pull, Regularizer
from polytask.step_share import StepShare
from polytask.stream import Stream
from polytask.types import has_label

Term = Literal["labels", "teacher"]
"""The terms of a task's loss: that of the labels, and distillation from a teacher."""


@dataclass(frozen=True)
class Objective:
    """The methods that turn a forward pass into the scalar that is differentiated."""

    policy: Policy
    regularizers: Mapping[str, Regularizer] = field(default_factory=dict)
    losses: Mapping[str, Loss] = field(default_factory=dict)
    """The losses of the tasks whose recipe names one; the other tasks use their head's own loss."""
    taught: frozenset[str] = frozenset()
    """Tasks that have examples without a label, which only a teacher labels: the loss of their labels is 0."""
    partly_labelled: frozenset[str] = frozenset()
    """Tasks that share rows which have no label of theirs: the mean is over the rows with a label."""
    temperature: float = 1.0
    """The temperature of the teachers' and the model's probabilities in distillation."""
    teacher_weights: Mapping[str, float] = field(default_factory=dict)
    """The weight of the teachers, from 0 (labels only) to 1, for tasks where it is constant over the run. For other
    tasks it decreases from 1 to 0."""

    def task_losses(
        self,
        model: MultiTaskModel,
        stream: Stream,
        outputs: Mapping[str, Tensor],
        progress: float | Tensor,
        processes: Processes = ALONE,
    ) -> dict[str, Tensor]:
        """Return the loss of each task of the step; `progress` is the share of the run's steps that is done.

        If processes divide the step, the losses are those of the whole step in each of them, and their gradients those
        of the process's own part: the sum over the processes is the gradient of the whole step.
        """
        means = {
            (task, term): mean
            for task, own in outputs.items()
            for term, mean in self._means(model.head(task), stream, own).items()
        }
        if stream.share is not None:
            heads = {task: model.head(task) for task in outputs}
            weights = {(task, term): self._weight(heads[task], stream, outputs[task], term) for task, term in means}
            means = _of_whole_step(stream.share, means, weights, processes)
        tasks = outputs if stream.share is None else stream.share.counts
        return {task: self._task_loss(task, means, progress) for task in tasks}

    def _task_loss(self, task: str, means: Mapping[tuple[str, Term], Tensor], progress: float | Tensor) -> Tensor:
        loss, distilled = means[task, "labels"], means.get((task, "teacher"))
        if distilled is None:
            return loss
        label_weight = 1 - self.teacher_weights[task] if task in self.teacher_weights else progress
        return label_weight * loss + (1 - label_weight) * distilled

    def _means(self, head: Head, stream: Stream, outputs: Tensor) -> dict[Term, Tensor]:
        """Return the terms of a task's loss, which are means over the task's examples in the stream."""
        means: dict[Term, Tensor] = {"labels": self._label_loss(head, outputs, stream.labels[head.task])}
        teacher = stream.teacher_outputs.get(head.task)
        if teacher is not None:
            kind = head.labels.kind_name
            means["teacher"] = distillation_loss(outputs, teacher, kind, self.temperature, "cross_entropy")
        return means

    def _weight(self, head: Head, stream: Stream, outputs: Tensor, term: Term) -> float | Tensor:
        """Return what the mean is divided by; 1 for a task whose examples processes do not divide."""
        labels, named = stream.labels[head.task], self.losses.get(head.task)
        if not self.divides(head):
            return 1.0
        if term == "teacher" or head.task in self.taught:
            return head.kind.num_items(outputs)
        if head.task in self.partly_labelled:
            weights_B = self._label_terms(head, outputs, labels)[1]
            return weights_B.masked_fill(~has_label(labels), 0).sum()
        return head.loss_weight(outputs, labels) if named is None else named.terms(outputs, labels)[1].sum()

    def divides(self, head: Head) -> bool:
        """Whether processes divide the examples of a task: its loss must be a mean whose weight is known."""
        named = self.losses.get(head.task)
        return head.is_divisible if named is None else type(named).terms is not Loss.terms

    def _label_loss(self, head: Head, outputs: Tensor, labels: Tensor) -> Tensor:
        named = self.losses.get(head.task)
        if head.task not in self.taught | self.partly_labelled:
            return head.loss(outputs, labels) if named is None else named(outputs, labels)
        terms = self._label_terms(head, outputs, labels)
        return mean_of_labelled(*terms, has_label(labels), of_all=head.task in self.taught)

    def _label_terms(self, head: Head, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The terms of every row of a task that has rows without a label; the caller leaves those out."""
        named, labelled = self.losses.get(head.task), has_label(labels)
        labels = labels.masked_fill(~labelled.view(-1, *[1] * (labels.ndim - 1)), 0)  # NO_LABEL is no class
        if named is not None:
            return named.terms(outputs, labels)
        return label_terms(outputs, labels, head.labels.kind_name)

    def penalties(
        self, model: MultiTaskModel, forward: Pass, of_weights: bool | None = None, *, without: str | None = None
    ) -> dict[str, Tensor]:
        """Return the penalty of each regularizer but `without`; of those only that have this value of `of_weights`, if
        given."""
        return {
            name: regularizer.penalty(model, forward)
            for name, regularizer in self.regularizers.items()
            if name != without and (of_weights is None or regularizer.of_weights == of_weights)
        }

    def pulls(self, model: MultiTaskModel, forward: Pass) -> tuple[str | None, list[Pull]]:
        """Return the name and the pulls of the first regularizer whose penalty is a sum of pulls, at most one for each
        weight; None and no pulls if there is no such regularizer."""
        for name, regularizer in self.regularizers.items():
            # A base class does not count: the subclass may override `penalty`.
            pulls = regularizer.pulls(model, forward) if "pulls" in vars(type(regularizer)) else []
            if pulls and len({pull.weight for pull in pulls}) == len(pulls):
                return name, pulls
        return None, []


def _of_whole_step(
    share: StepShare,
    means: Mapping[tuple[str, Term], Tensor],
    weights: Mapping[tuple[str, Term], float | Tensor],
    processes: Processes,
) -> dict[tuple[str, Term], Tensor]:
    """Turn the means of this process's part into those of the whole step: `sum_r w_r m_r / sum_r w_r`."""
    terms: list[tuple[str, Term]] = [(task, "labels") for task in share.counts]
    terms += [(task, "teacher") for task in share.counts if task in share.taught]
    device = share.random.device
    zero = torch.zeros((), dtype=torch.float64, device=device)
    own_weights = [_on(device, weights.get(term, 0.0)) for term in terms]
    sums = [
        means[term].double() * weight if term in means else zero
        for term, weight in zip(terms, own_weights, strict=True)
    ]
    both = torch.stack([*sums, *own_weights])
    sums_and_weights = processes.sum_of_parts(both)
    totals, divisors = sums_and_weights.chunk(2)
    tiny = torch.finfo(torch.float64).tiny
    return dict(zip(terms, (totals / divisors.detach().clamp(min=tiny)).float().unbind(), strict=True))


def _on(device: torch.device, weight: float | Tensor) -> Tensor:
    """The weight as a number on the device; a number that Python knows is written there, which can be captured."""
    if isinstance(weight, Tensor):
        return weight.detach().double()
    return torch.full((), float(weight), dtype=torch.float64, device=device)
