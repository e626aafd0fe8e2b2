"""How fast a server computes lately, and so how many seconds its queue is."""

from dataclasses import dataclass

KEPT = 0.8
"""The weight of all earlier batches after each batch: the last five or so decide."""
SMALL_BATCH = 512
"""Tokens below which a batch mostly takes time that does not depend on its tokens."""
SLOWEST = 4.0
"""How many times as slow as before a batch can be counted: the process may have been stopped for an hour meanwhile."""


@dataclass
class Pace:
    """The tokens per second of recent batches. A batch with more tokens counts more."""

    tokens: float = 0.0
    seconds: float = 0.0
    least: int = 0
    """Batches of fewer tokens count only until there is another one."""

    def computed(self, tokens: int, seconds: float) -> None:
        """Takes a batch into account."""
        if self.tokens and tokens < self.least:
            return
        if self.tokens:
            seconds = min(seconds, SLOWEST * self.seconds_for(tokens))
        self.tokens = KEPT * self.tokens + tokens
        self.seconds = KEPT * self.seconds + seconds

    def forget(self) -> None:
        """Starts again."""
        self.tokens = self.seconds = 0.0

    def seconds_for(self, tokens: int) -> float:
        """The estimated seconds to compute so many tokens; 0 before the first batch."""
        return tokens * self.seconds / self.tokens if self.tokens else 0.0
