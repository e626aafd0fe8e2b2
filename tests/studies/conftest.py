"""A small study of real runs, run once: two variants, two seeds, and a third variant that fails."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from polytask.studies.compare import StudyRunning
from polytask.studies.runner import CellReport
from polytask.studies.study import read_study

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


@dataclass(frozen=True)
class Done:
    path: Path
    folder: Path
    reports: list[CellReport]
    content: dict[str, Any]


def study_file(folder: Path, settings: list[str], **more: Any) -> Path:
    fixed = {key: yaml.safe_load(value) for key, _, value in (setting.partition("=") for setting in settings)}
    content = {
        "name": "small",
        "base": str(QUICKSTART),
        "set": {**fixed, "train.epochs": 1},
        "seeds": [0, 1],
        "variants": {"cosine": {}, "bi": {"tasks.question.head": "bi", "tasks.similarity.head": "bi"}},
        **more,
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.fixture(scope="session")
def small_study(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Done:
    folder = tmp_path_factory.mktemp("study")
    path = study_file(folder, tiny_settings)
    running = StudyRunning(read_study(path), folder / "out", workers=2)
    reports = list(running.reports())
    return Done(path, folder / "out", reports, running.finish())
