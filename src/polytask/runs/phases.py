"""Where the time of a run goes: seconds of wall-clock time by phase."""

import time


class Phases:
    """Measures phases that follow each other: `end` adds the time since the last call to a phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, phase: str, parts: dict[str, float] | None = None) -> None:
        """Ends a phase. `parts` are phases inside it that were measured elsewhere, and are not counted in it."""
        now = time.perf_counter()
        measured = {phase: now - self._last - sum((parts or {}).values()), **(parts or {})}
        for name, seconds in measured.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self._last = now
