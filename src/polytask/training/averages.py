"""Averages of weights: over the steps of a run, or over its best checkpoints. Knows parameters, no method."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polytask.regularizers.base import Followers


class RunningAverage:
    """An exponential moving average of a model's weights: `a <- d a + (1 - d) w` after every step.

    d is `min(decay, (1 + t) / (10 + t))` at step t: smaller in the first steps, so that the average of a short run is
    not dominated by the initial weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.followers = Followers(tuple(self.weights.values()), tuple(model.parameters()), self._rate)

    def update(self, step: int) -> None:
        self.followers.move(step)

    def _rate(self, step: int) -> float:
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Inside the context, the model has the averaged weights; afterwards its own again."""
        own = [parameter.data for parameter in model.parameters()]
        try:
            for name, parameter in model.named_parameters():
                parameter.data = self.weights[name]
            yield
        finally:
            for parameter, weights in zip(model.parameters(), own, strict=True):
                parameter.data = weights

    def load(self, weights: Mapping[str, Tensor]) -> None:
        for name, average in self.weights.items():
            average.copy_(weights[name])


def mean_weights(models: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of several models' weights, computed in float64."""
    return {
        name: torch.stack([weights[name].double() for weights in models]).mean(0).to(first.dtype)
        for name, first in models[0].items()
    }
