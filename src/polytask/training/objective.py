"""What a step minimizes: the tasks' losses, distillation from teachers, and penalties. Knows interfaces, no method."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from polytask.heads.base import Head
from polytask.losses.base import Loss, distillation_loss, label_terms, mean_of_labelled
from polytask.model import MultiTaskModel, Pass
from polytask.policies.base import Policy
from polytask.regularizers.base import Pull, Regularizer
from polytask.stream import Stream
from polytask.types import has_label


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
        self, model: MultiTaskModel, stream: Stream, outputs: Mapping[str, Tensor], progress: float | Tensor
    ) -> dict[str, Tensor]:
        """Return the loss of each task in the stream; `progress` is the share of the run's steps that is done."""
        return {task: self._task_loss(model, stream, task, outputs[task], progress) for task in outputs}

    def _task_loss(
        self, model: MultiTaskModel, stream: Stream, task: str, outputs: Tensor, progress: float | Tensor
    ) -> Tensor:
        head, labels = model.head(task), stream.labels[task]
        loss = self._label_loss(head, outputs, labels)
        if task not in stream.teacher_outputs:
            return loss
        teacher = stream.teacher_outputs[task]
        distilled = distillation_loss(outputs, teacher, head.labels.kind_name, self.temperature, "cross_entropy")
        label_weight = 1 - self.teacher_weights[task] if task in self.teacher_weights else progress
        return label_weight * loss + (1 - label_weight) * distilled

    def _label_loss(self, head: Head, outputs: Tensor, labels: Tensor) -> Tensor:
        named = self.losses.get(head.task)
        if head.task not in self.taught | self.partly_labelled:
            return head.loss(outputs, labels) if named is None else named(outputs, labels)
        given = labels.clamp(min=0)  # any label in place of NO_LABEL: these examples are left out
        terms = label_terms(outputs, given, head.labels.kind_name) if named is None else named.terms(outputs, given)
        return mean_of_labelled(*terms, has_label(labels), of_all=head.task in self.taught)

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
