"""How long a batch waits for more inputs. Knows no clock: it is told the time.

Clients often wait for an answer before they send the next request. If the next batch were computed as soon as the last
one is finished, it would miss the clients that were just answered: they would be in the batch after it, and two groups
of clients would alternate in batches half as large as possible, which take more time per input.
"""

from dataclasses import dataclass

LONGEST_WAIT = 0.5
"""The longest wait, as a share of the time that the last batch took, so that waiting costs at most a third."""
ENOUGH_TOKENS = 0.25
"""The share of a full batch that is worth no wait: larger ones are hardly faster per token."""


@dataclass
class Gathering:
    """Expects as many inputs for the next batch as there were lately. A single client never waits for others."""

    expected: int = 1
    """The inputs of the last batch, and those that were waiting when it was finished."""
    finished: float = float("-inf")
    """When the last batch was finished."""
    longest: float = 0.0
    """The seconds that the next batch may wait."""

    def computed(self, inputs: int, waiting: int, started: float, finished: float) -> None:
        """Takes into account a batch with so many inputs, and how many were waiting when it was finished."""
        self.expected, self.finished = inputs + waiting, finished
        self.longest = LONGEST_WAIT * (finished - started)

    def end(self, inputs: int, first: float, last: float, pause: float) -> float:
        """The time at which a batch must be computed, if nothing else arrives.

        It has so many inputs, of which the first and the last arrived at these times. A `pause` in seconds without new
        inputs means that no more are sent.
        """
        if inputs >= self.expected:
            return last
        return min(max(first, self.finished) + self.longest, max(last, self.finished) + pause)
