"""What happened, line by line: metrics.jsonl and TensorBoard. Knows reports; knows no model and no method."""

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from polytask.types import EvalReport, Interference, StepReport


class Journal:
    """Writes each report once, inside `with`. A resumed run's journal first drops what came after its step."""

    def __init__(self, run: Path, resumed_at: int = 0) -> None:
        self.run = run
        self.path = run / "metrics.jsonl"
        self.resumed_at = resumed_at

    def write(self, report: StepReport) -> None:
        self._line(step_line(report))
        for name, value in {
            **{f"loss/{task}": loss for task, loss in report.losses.items()},
            **{f"penalty/{name}": value for name, value in report.penalties.items()},
            "step/learning_rate": report.learning_rate,
            "step/gradient_norm": report.gradient_norm,
            "step/examples_per_second": report.examples / report.seconds,
        }.items():
            self._board.add_scalar(name, value, report.step)
        if report.interference is not None:
            self._line(interference_line(report.interference))
            for pair, cosine in report.interference.pairs():
                self._board.add_scalar(f"interference/{pair}", cosine, report.step)
        if report.evaluation is not None:
            self.write_evaluation(report.evaluation, report.best)

    def write_evaluation(self, report: EvalReport, best: bool = False) -> None:
        """That of a step, or by itself, as the one before the first step is."""
        self._line(evaluation_line(report, best))
        for task, score in report:
            self._board.add_scalar(f"dev/{task}/loss", score.loss, report.step)
            for name, metric in score.metrics.items():
                self._board.add_scalar(f"dev/{task}/{name}", metric.value, report.step)

    def _line(self, content: dict[str, Any]) -> None:
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()

    def __enter__(self) -> "Journal":
        self.run.mkdir(parents=True, exist_ok=True)
        _drop_after(self.path, self.resumed_at)
        self._file = self.path.open("a", encoding="utf-8")
        board = str(self.run / "tensorboard")
        self._board = SummaryWriter(board, purge_step=self.resumed_at + 1)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        self._board.close()


def step_line(report: StepReport) -> dict[str, Any]:
    content = asdict(report)
    for field in ("evaluation", "best", "checkpoint", "steps", "interference"):
        del content[field]
    return {"kind": "step", **content}


def interference_line(report: Interference) -> dict[str, Any]:
    return {"kind": "interference", **asdict(report)}


def evaluation_line(report: EvalReport, best: bool) -> dict[str, Any]:
    return {"kind": "evaluation", **asdict(report), "mean": report.mean, "best": best}


def _drop_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = []
    # A run that starts again from its beginning writes what came before the first step once more.
    for line in path.read_text(encoding="utf-8").splitlines() if step > 0 else []:
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except ValueError:
            break  # a line the last process did not finish
    path.write_text("".join(kept), encoding="utf-8")
