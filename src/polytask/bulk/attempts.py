"""Counts how often each shard was begun, for engines that repeat lost work without a limit. Imports nothing heavy."""

from collections import Counter

ATTEMPTS = 3
"""How often a shard is tried: after an error that may pass, and after the death of its worker."""


class Attempts:
    """An actor of Ray that all workers ask before they begin a shard."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()

    def begin(self, name: str) -> int:
        """Counts an attempt, and returns the number of attempts so far."""
        self.begun[name] += 1
        return self.begun[name]
