"""The journal: one line a step, in order, also when a stopped run goes on."""

import json
import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from polytask.training.journal import Journal
from polytask.types import EvalReport, MetricValue, StepReport, TaskScore


def report(step: int, evaluated: bool = False, steps: int = 10) -> StepReport:
    score = TaskScore(0.5, {"accuracy": MetricValue(0.7, 0.6, 0.8)}, "accuracy", 100)
    evaluation = EvalReport(step, "dev", {"t": score}) if evaluated else None
    return StepReport(step, steps, 1, {"t": 0.25}, {}, 1e-3, 2.0, 4, 40, 0.1, evaluation, evaluated)


def journal_in(run: Path, resumed_at: int = 0) -> Journal:
    return Journal(run / "metrics.jsonl", run / "tensorboard", resumed_at)


def steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_lines_hold_the_report(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.write(report(1, evaluated=True))
    step, evaluation = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (step["kind"], step["losses"], step["examples"]) == ("step", {"t": 0.25}, 4)
    assert evaluation["tasks"]["t"]["metrics"]["accuracy"] == {
        "value": 0.7,
        "low": 0.6,
        "high": 0.8,
        "greater_is_better": True,
    }
    assert (evaluation["mean"], evaluation["best"]) == (0.7, True)
    assert list((tmp_path / "tensorboard").iterdir())


def test_of_a_long_run_tensorboard_is_given_some_steps_and_every_evaluation(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        for step in range(1, 61):
            journal.write(report(step, evaluated=step == 31, steps=38_000))
    assert steps(tmp_path) == [*range(1, 32), *range(31, 61)]
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("loss/t")] == [19, 38, 57]
    assert [event.step for event in board.Scalars("dev/t/accuracy")] == [31]


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        for step in range(1, 6):
            journal.write(report(step))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')  # the process died here
    with journal_in(tmp_path, resumed_at=3) as journal:
        for step in (4, 5):
            journal.write(report(step))
    assert steps(tmp_path) == [1, 2, 3, 4, 5]


def test_tensorboard_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    for resumed_at, last in ((0, 5), (3, 4)):
        with journal_in(tmp_path, resumed_at) as journal:
            for step in range(resumed_at + 1, last + 1):
                journal.write(report(step))
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("loss/t")] == [1, 2, 3, 4]


def test_a_run_goes_on_if_tensorboard_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tensorboard").write_text("a file in place of the folder")
    with journal_in(tmp_path) as journal:
        journal.write(report(1))
    assert steps(tmp_path) == [1]
    assert "TensorBoard gets no more events" in caplog.text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk without room")
def test_a_run_goes_on_if_the_disk_has_no_room_for_events(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with journal_in(tmp_path) as journal:
        assert journal._board is not None
        with Path("/dev/full").open("wb") as full:
            os.dup2(full.fileno(), journal._board._file.fileno())
        for step in (1, 2):
            journal.write(report(step))
    assert steps(tmp_path) == [1, 2]
    assert caplog.text.count("No space left on device") == 1
