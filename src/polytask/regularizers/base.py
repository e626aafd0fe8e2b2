"""A penalty added to the loss of a step. Knows the model as a type; knows no optimizer and no other regularizer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from polytask.model import MultiTaskModel
from polytask.stream import Stream


class Regularizer(ABC):
    """Adds to a step's loss, and may look at the model after the step."""

    @abstractmethod
    def penalty(self, model: MultiTaskModel, stream: Stream, outputs: Mapping[str, Tensor]) -> Tensor:
        """A number with a gradient, added to the tasks' losses."""

    def after_step(self, model: MultiTaskModel) -> None:
        """Called when the optimizer has moved the weights."""

    def state_dict(self) -> dict[str, Tensor]:
        """What must be saved to go on exactly from here."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state_dict` gave."""
