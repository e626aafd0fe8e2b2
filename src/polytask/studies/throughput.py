"""Measures how many runs per minute a study finishes. Knows a file of times in the study's folder; starts nothing."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polytask.disk.writable import open_in_place
from polytask.studies.cells import Cell

TIMES = "times.jsonl"
"""A line for each run that has finished, written at once: a study that is killed keeps its measurement."""


class Clock:
    """The time since a study was started or continued with a number of workers."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, workers
        self.started, self._start = time.time(), time.monotonic()

    def record(self, cell: Cell) -> None:
        """Records that a cell has finished now."""
        seconds = time.monotonic() - self._start
        line = {"run": cell.key, "workers": self.workers, "started": self.started, "seconds": round(seconds, 3)}
        with open_in_place(self.folder / TIMES, "a") as file:
            file.write(json.dumps(line) + "\n")


def throughput(folder: Path) -> list[dict[str, Any]]:
    """Returns, for each number of workers, the runs that it has finished, the seconds, and the runs per minute."""
    seconds: dict[tuple[int, float], float] = {}
    runs: dict[int, int] = {}
    for line in _lines(folder / TIMES):
        workers, part = line["workers"], (line["workers"], line["started"])
        runs[workers] = runs.get(workers, 0) + 1
        seconds[part] = max(seconds.get(part, 0.0), line["seconds"])
    totals = {workers: sum(s for (own, _), s in seconds.items() if own == workers) for workers in runs}
    return [
        {
            "workers": workers,
            "runs": count,
            "seconds": totals[workers],
            "runs_per_minute": 60 * count / max(totals[workers], 1e-9),
        }
        for workers, count in runs.items()
    ]


def finish_times(folder: Path) -> dict[str, float]:
    """Returns, for each finished run in order, the seconds of work up to its end, over all starts of the study."""
    times: dict[str, float] = {}
    started, before, last = None, 0.0, 0.0
    for line in _lines(folder / TIMES):
        if line["started"] != started:
            started, before = line["started"], last
        last = before + line["seconds"]
        times.setdefault(line["run"], last)
    return times


def _lines(path: Path) -> list[Mapping[str, Any]]:
    lines: list[Mapping[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            content = json.loads(line)
            numbers = {key: content[key] + 0 for key in ("workers", "started", "seconds")}
            lines.append({"run": str(content.get("run", "")), **numbers})
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # a line that a killed process did not finish
    return lines
