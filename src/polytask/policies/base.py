"""How the losses and gradients of several tasks become one update. Knows numbers; knows no model and no data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor


class Policy(ABC):
    """Turns the losses of a step's tasks into the one number that is differentiated."""

    @abstractmethod
    def weigh(self, losses: Mapping[str, Tensor]) -> Tensor:
        """One loss from those of the tasks that took part in the step."""

    def state_dict(self) -> dict[str, Tensor]:
        """What must be saved to go on exactly from here."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state_dict` gave."""
