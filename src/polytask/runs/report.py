"""Writes the pages of a run: report.html and the model card. Reads the run's files; the pages are in reports/."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polytask.disk.atomic import write_atomically
from polytask.disk.json_files import read_json, read_json_lines, read_text
from polytask.reports.card import card_page
from polytask.reports.report import RunRecord, report_page
from polytask.runs.folder import RunFolder
from polytask.runs.summary import Summary, read_summary
from polytask.types import UserError

Json = dict[str, Any]


def write_report(run: str | Path) -> Path:
    """Writes report.html into a run's folder, from the other files there. The run may still be training."""
    folder = RunFolder(Path(run))
    if not folder.path.is_dir():
        raise UserError(f"{run} is not a run's folder")
    # Atomically: whoever opens the page while it is written sees the old one.
    write_atomically(folder.report, report_page(read_run(folder)))
    return folder.report


def write_card(folder: RunFolder, summary: Summary) -> Path:
    """Writes README.md into the model folder of a run."""
    card = folder.model.card
    write_atomically(card, card_page(summary.to_json(), folder.path.resolve().name))
    return card


def read_run(folder: RunFolder) -> RunRecord:
    # Steps after the last checkpoint are written again by a resumed run: the later line counts.
    lines: dict[str, dict[int, Json]] = {"step": {}, "evaluation": {}, "interference": {}}
    for line in _lines(folder.metrics):
        kind, step = line.get("kind"), line.get("step")
        if kind not in list(lines) or type(step) is not int:
            raise UserError(f"{folder.metrics}: a line has kind {kind!r:.40} and step {step!r:.40}: damaged")
        lines[kind][step] = line
    steps, evaluations, probes = ([found[step] for step in sorted(found)] for found in lines.values())
    return RunRecord(
        folder=folder.path,
        recipe=read_text(folder.recipe, "recipe") if folder.recipe.exists() else None,
        environment=read_json(folder.environment) if folder.environment.exists() else {},
        summary=read_summary(folder.summary).to_json() if folder.summary.exists() else {},
        steps=steps,
        evaluations=evaluations,
        probes=probes,
        predictions=_predictions(folder),
        attention=folder.attention.name if folder.attention.exists() else None,
    )


def _lines(path: Path) -> Iterator[Json]:
    return read_json_lines(path) if path.exists() else iter(())


def _predictions(folder: RunFolder) -> dict[str, dict[str, Path]]:
    """By task and split: the files of the run's own splits."""
    files: dict[str, dict[str, Path]] = {}
    for split in ("dev", "test"):
        for path in sorted(folder.all_predictions.glob(f"*-{split}.jsonl")):
            files.setdefault(path.stem.removesuffix(f"-{split}"), {})[split] = path
    return files
