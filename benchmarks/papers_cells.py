"""Packs the finished runs of studies, so that another machine can compare them: without models and texts."""

import io
import json
import tarfile
from pathlib import Path

from polytask.disk.json_files import read_json_lines
from polytask.runs.folder import RunFolder
from polytask.studies.cells import summary_of

NOT_COMPARED = ("text", "probabilities")
"""Fields of predictions that no comparison reads."""


def pack_cells(studies: Path, archive: Path, packed: Path | None = None) -> int:
    """Write the files that comparisons read of every finished cell to a tar.xz; returns the number of cells.

    `packed` is a file with the names of cells that are left out, because an earlier archive has them; the new ones are
    added to it.
    """
    known = set(packed.read_text(encoding="utf-8").split()) if packed is not None and packed.exists() else set()
    cells = [path for path in sorted((studies / "cells").iterdir()) if path.name not in known]
    finished = [path for path in cells if path.is_dir() and summary_of(path) is not None]
    with tarfile.open(archive, "w:xz", preset=1) as tar:
        for cell in finished:
            for name, content in compared_files(cell).items():
                entry = tarfile.TarInfo(f"cells/{cell.name}/{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    if packed is not None:
        with packed.open("a", encoding="utf-8") as file:
            file.writelines(f"{cell.name}\n" for cell in finished)
    return len(finished)


def compared_files(run: Path) -> dict[str, bytes]:
    """The content of the files of a run that comparisons, curves and costs are made from, by name inside the run."""
    folder = RunFolder(run)
    whole = (folder.summary, folder.environment, folder.recipe)
    found = {path.relative_to(run).as_posix(): path.read_bytes() for path in whole}
    evaluations = [line for line in read_json_lines(folder.metrics) if line["kind"] != "step"]
    found[folder.metrics.relative_to(run).as_posix()] = as_lines(evaluations)
    for path in sorted(folder.all_predictions.glob("*.jsonl")):
        rows = [{k: v for k, v in row.items() if k not in NOT_COMPARED} for row in read_json_lines(path)]
        found[path.relative_to(run).as_posix()] = as_lines(rows)
    return found


def as_lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
