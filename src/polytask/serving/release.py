"""When a server returns freed memory to the kernel.

The allocator keeps what large batches of different sizes have freed, and can use little of it for the next ones. After
a minute of overload that was a fifth of the process; nothing else had grown.
"""

from collections.abc import Callable

from polytask.machine import release_freed_memory

LARGE_BATCH = 512
"""Batches with fewer tokens free too little to count."""
IDLE_SECONDS = 1.0
"""How often freed memory is returned at most while the queue is empty."""


class MemoryRelease:
    """Returns freed memory after so many tokens of large batches, and when nothing waits. It takes about 10 ms."""

    def __init__(self, tokens: int, release: Callable[[], None] = release_freed_memory) -> None:
        self.most, self.release = tokens, release
        self._tokens, self._last = 0, float("-inf")

    def computed(self, tokens: int, waiting: int, now: float) -> None:
        """Takes into account a batch with so many tokens, after which so many were waiting."""
        self._tokens += tokens if tokens >= LARGE_BATCH else 0
        idle = waiting == 0 and self._tokens > 0 and now - self._last >= IDLE_SECONDS
        if idle or self._tokens >= self.most:
            self.release()
            self._tokens, self._last = 0, now
