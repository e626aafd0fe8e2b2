"""Trains a tiny recipe with captured steps whose sums go through torch.distributed, in a group of one process.

    python connected_steps.py FOLDER DEVICE

Torchrun starts it in one process. On a GPU the all-reduces are those of NCCL inside CUDA graphs, on a CPU those of gloo
in recorded steps. Writes the losses of every step with and without the exchange, and prints how many graphs there are.
"""

import json
import sys
from pathlib import Path

import pytest
from attention_by_borders import use_on_cpu
from divided_steps import CASES, QUICKSTART, SETTINGS
from recorded_graphs import RecordedGraphs

from polytask import read_recipe, start_training
from polytask.connection import connect
from polytask.processes import ALONE, Processes
from polytask.runs.session import make_division
from polytask.training.captured import CapturedSteps


class OneOfOne(Processes):
    """A process that exchanges everything with a group in which it is alone."""

    @property
    def several(self) -> bool:
        return True


def losses(folder: Path, device: str, processes: Processes) -> list[dict[str, float]]:
    changes = [*SETTINGS, *CASES["pal"], "train.clip=1", f"train.device={device}"]
    session = start_training(read_recipe(QUICKSTART, changes), folder).session
    parts = session.optimizer, session.objective, session.settings, session.average
    session.captured = CapturedSteps(session.model, *parts, processes)
    if device == "cpu":
        session.captured.graphs = RecordedGraphs(session.captured.graphs)
    if processes.several:
        session.feed.division = make_division(session.model, session.objective, processes)
    found = [dict(report.losses) for report in session.fit()]
    assert session.captured.reason is None, session.captured.reason
    print("graphs:", sum(entry.graph is not None for entry in session.captured.graphs.entries.values()))
    session.captured.graphs.clear()
    return found


def main(folder: Path, device: str) -> None:
    if device == "cpu":
        use_on_cpu(pytest.MonkeyPatch())
    connect()
    runs = {"alone": losses(folder / "alone", device, ALONE), "connected": losses(folder / "one", device, OneOfOne())}
    (folder / "losses.json").write_text(json.dumps(runs))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
