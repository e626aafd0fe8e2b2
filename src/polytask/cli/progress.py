"""The progress of a run: a progress bar on a terminal, lines of text elsewhere."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import polytask
from polytask.cli.console import plain_console
from polytask.cli.stopping import until_stopped

SMOOTHING = 0.95
SECONDS_BETWEEN_LINES = 10.0


class Pace:
    """Smoothed losses, and the mean speed."""

    def __init__(self) -> None:
        self.losses: dict[str, float] = {}
        self.examples = 0
        self.seconds = 0.0

    def add(self, report: "polytask.StepReport") -> None:
        for task, loss in report.losses.items():
            self.losses[task] = SMOOTHING * self.losses.get(task, loss) + (1 - SMOOTHING) * loss
        self.examples += report.examples
        self.seconds += report.seconds

    def __str__(self) -> str:
        return f"{_numbers(self.losses)}  {self.examples / max(self.seconds, 1e-9):.0f} examples/s"


def follow(running: "polytask.Running", console: Console | None = None) -> None:
    """Trains to the end and shows the progress; SIGTERM and Ctrl-C stop it with a checkpoint."""
    if not running.is_main:
        for _ in until_stopped(running):
            pass
        return
    console = console or plain_console()
    if running.device.type == "cuda":
        reason = running.not_captured
        how = "replayed as CUDA graphs" if reason is None else f"launched kernel by kernel: {reason}"
        console.print(f"steps are {how}", highlight=False, soft_wrap=True)
    if console.is_terminal:
        _follow_live(running, console)
    else:
        _follow_lines(running, console)


def _follow_live(running: "polytask.Running", console: Console) -> None:
    pace = Pace()
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("training", total=running.session.steps, completed=running.session.step, epoch=1, pace="")
        for report in until_stopped(running):
            pace.add(report)
            bar.update(line, completed=report.step, epoch=report.epoch, pace=str(pace))
            if report.evaluation is not None:
                bar.console.print(_evaluation(report), highlight=False)


def _follow_lines(running: "polytask.Running", console: Console) -> None:
    pace = Pace()
    first, started, shown = running.session.step, time.monotonic(), time.monotonic()
    for report in until_stopped(running):
        pace.add(report)
        now = time.monotonic()
        if report.step == first + 1:  # the evaluation before the first step comes once, and says nothing about the rest
            started = now - report.seconds
        if now - shown > SECONDS_BETWEEN_LINES or report.step == first + 1:
            left = (now - started) / (report.step - first) * (report.steps - report.step)
            console.print(
                f"step {report.step}/{report.steps}  {pace}  {left:.0f} s left", highlight=False, soft_wrap=True
            )
            shown = now
        if report.evaluation is not None:
            console.print(_evaluation(report), highlight=False, soft_wrap=True)


def _evaluation(report: "polytask.StepReport") -> str:
    assert report.evaluation is not None
    scores = {f"{task} {score.primary}": score.value for task, score in report.evaluation}
    best = "  (best so far)" if report.best else ""
    mean = "" if report.evaluation.mean_is_loss else f"  mean {report.evaluation.mean:.3f}"
    left = f"  (stopped: {', '.join(report.left)})" if report.left else ""
    return f"step {report.step}/{report.steps}  dev: {_numbers(scores)}{mean}{best}{left}"


def _numbers(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in values.items())
