"""How fast a server computes lately, and so how many seconds its queue is."""

from dataclasses import dataclass

KEPT = 0.8
"""The weight of all earlier batches after each batch: the last five or so decide."""


@dataclass
class Pace:
    """The tokens per second of recent batches. A batch with more tokens counts more."""

    tokens: float = 0.0
    seconds: float = 0.0

    def computed(self, tokens: int, seconds: float) -> None:
        """Takes a batch into account."""
        self.tokens = KEPT * self.tokens + tokens
        self.seconds = KEPT * self.seconds + seconds

    def seconds_for(self, tokens: int) -> float:
        """The estimated seconds to compute so many tokens; 0 before the first batch."""
        return tokens * self.seconds / self.tokens if self.tokens else 0.0
