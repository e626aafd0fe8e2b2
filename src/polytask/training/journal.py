"""The journal of a run: JSON lines and TensorBoard events. Knows reports; knows no model and no method."""

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from polytask.disk.atomic import write_atomically
from polytask.disk.writable import make_folder, open_in_place
from polytask.training.event_file import EventFile
from polytask.types import EvalReport, Interference, StepReport

log = logging.getLogger(__name__)
SECONDS_BETWEEN_EVENTS = 1.0
"""Between two writes to TensorBoard."""
MOST_EVENTS = 2000
"""The number of steps, evenly spread over the run, that TensorBoard gets; it plots a thousand at most. An event takes
about four times as long to write as a JSON line, and short steps on a GPU would wait for it."""


class Journal:
    """Writes each report once, inside `with`. A resumed run's journal first drops the lines after its step."""

    def __init__(self, path: Path, tensorboard: Path, resumed_at: int = 0) -> None:
        self.path = path
        self.tensorboard = tensorboard
        self.resumed_at = resumed_at
        self._file: IO[str] | None = None
        self._board: EventFile | None = None
        self._events: list[tuple[float, int, Mapping[str, float]]] = []
        self._events_written_at = 0.0

    def write(self, report: StepReport) -> None:
        self._line(step_line(report))
        if report.step % -(-report.steps // MOST_EVENTS) == 0:
            self._add_step_event(report)
        if report.interference is not None:
            self._line(interference_line(report.interference))
            self._add_event(
                report.step, {f"interference/{pair}": cosine for pair, cosine in report.interference.pairs()}
            )
        if report.evaluation is not None:
            self.write_evaluation(report.evaluation, report.best)

    def write_evaluation(self, report: EvalReport, best: bool = False) -> None:
        """Writes the evaluation after a step, or the one before the first step."""
        self._line(evaluation_line(report, best))
        values = {
            f"{split}/{task}/{name}": value
            for split, scores in (("dev", report.tasks), ("train", report.train))
            for task, score in scores.items()
            for name, value in {"loss": score.loss, **{n: m.value for n, m in score.metrics.items()}}.items()
        }
        self._add_event(report.step, values)

    def _add_step_event(self, report: StepReport) -> None:
        self._add_event(
            report.step,
            {
                **{f"loss/{task}": loss for task, loss in report.losses.items()},
                **{f"penalty/{name}": value for name, value in report.penalties.items()},
                "step/learning_rate": report.learning_rate,
                **{f"learning_rate/{part}": rate for part, rate in report.learning_rates.items()},
                **({"step/gradient_norm": report.gradient_norm} if report.skipped is None else {}),
                "step/examples_per_second": report.examples / report.seconds,
            },
        )

    def _add_event(self, step: int, values: Mapping[str, float]) -> None:
        """Queues an event for TensorBoard. Events are written in groups, because each write goes to the disk."""
        now = time.time()
        self._events.append((now, step, values))
        if now - self._events_written_at > SECONDS_BETWEEN_EVENTS:
            self._write_events()
            self._events_written_at = now

    def _write_events(self) -> None:
        try:
            if self._board is not None:
                self._board.add(self._events)
        except OSError as error:
            self._go_on_without_events(error)
        self._events.clear()

    def _go_on_without_events(self, error: OSError) -> None:
        """TensorBoard shows what the journal has as well, so its file is not worth the end of a run."""
        log.warning("%s: TensorBoard gets no more events from this run: %s", self.tensorboard, error)
        if self._board is not None:
            self._board.close()
            self._board = None

    def sync(self) -> None:
        """Flushes all lines to the disk: a checkpoint must not exist before the lines of its steps."""
        if self._file is not None and not self._file.closed:
            os.fsync(self._file.fileno())

    def _line(self, content: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()

    def __enter__(self) -> "Journal":
        make_folder(self.path.parent)
        _keep_up_to(self.path, self.resumed_at)
        self._file = open_in_place(self.path, "a")
        try:
            self._board = EventFile(self.tensorboard, self.resumed_at + 1)
        except OSError as error:
            self._go_on_without_events(error)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
        self._write_events()
        if self._board is not None:
            self._board.close()


class NoJournal(Journal):
    """Writes nothing, in a process that leaves the run's files to another one."""

    def write(self, report: StepReport) -> None:
        pass

    def write_evaluation(self, report: EvalReport, best: bool = False) -> None:
        pass

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


def step_line(report: StepReport) -> dict[str, Any]:
    content = dict(vars(report))
    for field in ("evaluation", "best", "checkpoint", "steps", "interference"):
        del content[field]
    for field in ("skipped", "left"):
        if not content[field]:
            del content[field]
    if not math.isfinite(report.gradient_norm):  # JSON has no NaN
        content["gradient_norm"] = None
    return {"kind": "step", **content}


def read_start(journal: Path) -> dict[str, Any] | None:
    """The line of the evaluation before the first step; None if there is none, as in runs of earlier versions."""
    for line in journal.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            content = json.loads(line)
            if content["kind"] == "evaluation" and content["step"] == 0:
                return dict(content)
        except (ValueError, KeyError, TypeError):
            continue  # a damaged line
    return None


def interference_line(report: Interference) -> dict[str, Any]:
    return {"kind": "interference", **asdict(report)}


def evaluation_line(report: EvalReport, best: bool) -> dict[str, Any]:
    content = asdict(report)
    for optional in ("baselines", "not_trained", "train"):
        if not content[optional]:
            del content[optional]
    return {"kind": "evaluation", **content, "mean": report.mean, "best": best}


def _keep_up_to(path: Path, step: int) -> None:
    """Drops the lines after a step; at step 0 all lines, since all are written again."""
    kept, steps = [], []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() and step > 0 else []:
        try:
            content = json.loads(line)
            if content["step"] <= step:
                kept.append(line + "\n")
                steps += [content["step"]] if content["kind"] == "step" else []
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # a line that the last process did not finish, or one that was damaged later
    if steps != list(range(1, step + 1)):
        log.warning("%s: the lines of %d of the %d steps so far are missing", path, step - len({*steps}), step)
    if path.exists():
        write_atomically(path, "".join(kept))
