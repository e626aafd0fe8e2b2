"""What a step makes small: the tasks' losses, what their teachers say, the penalties. Knows interfaces, no method."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from polytask.losses.base import Loss
from polytask.model import MultiTaskModel, Pass
from polytask.policies.base import Policy
from polytask.regularizers.base import Regularizer
from polytask.stream import Stream
from polytask.types import LabelKind


@dataclass(frozen=True)
class Objective:
    """The methods that turn a pass into one number to differentiate."""

    policy: Policy
    regularizers: Mapping[str, Regularizer] = field(default_factory=dict)
    losses: Mapping[str, Loss] = field(default_factory=dict)
    """Of the tasks whose recipe names one; the others have their head's own."""
    annealed: bool = True
    """Teachers give way to labels over the run."""
    temperature: float = 1.0
    """Of the teachers' and the model's probabilities when they are compared."""
    say: Mapping[str, float] = field(default_factory=dict)
    """Of tasks whose teacher's say is the same throughout: from 0 (labels alone) to 1."""

    def task_losses(
        self, model: MultiTaskModel, stream: Stream, outputs_of: Mapping[str, Tensor], progress: float
    ) -> dict[str, Tensor]:
        """Of each task in the stream, given its outputs; `progress` is the share of the run's steps that is done."""
        found = {}
        for task, outputs in outputs_of.items():
            labels = stream.labels[task]
            loss = self.losses[task](outputs, labels) if task in self.losses else model.head(task).loss(outputs, labels)
            if task in stream.taught:
                kind = model.head(task).labels.kind
                taught = taught_loss(outputs, stream.taught[task], kind, self.temperature)
                share = 1 - self.say[task] if task in self.say else progress if self.annealed else 0.5
                loss = share * loss + (1 - share) * taught
            found[task] = loss
        return found

    def penalties(self, model: MultiTaskModel, done: Pass) -> dict[str, Tensor]:
        return {name: regularizer.penalty(model, done) for name, regularizer in self.regularizers.items()}


def taught_loss(outputs: Tensor, teacher: Tensor, kind: LabelKind, temperature: float) -> Tensor:
    """Cross-entropy with the teacher's probabilities, or squared error to the teacher's score.

    Times the temperature squared, which keeps the gradient's size (Hinton et al. 2015).
    """
    outputs, teacher = outputs.float(), teacher.float()
    match kind:
        case "classes":
            soft = (teacher / temperature).softmax(-1)
            return temperature**2 * F.cross_entropy(outputs / temperature, soft)
        case "yes_no":
            soft = (teacher / temperature).sigmoid()
            return temperature**2 * F.binary_cross_entropy_with_logits(outputs / temperature, soft)
        case "score":
            return F.mse_loss(outputs, teacher)
        case "text":
            raise NotImplementedError("plain text has no answers to teach")
