"""A small tuning of real runs, run once: six settings, of which one is trained for all steps; a final of two seeds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from polytask.tuning import budget, search
from polytask.tuning.result import Tuned
from polytask.tuning.search import TuneReport, Tuning
from polytask.tuning.tune import start_tuning

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
FIELDS = ["train.batch_size=4,8,16", "optimizer.lr=3e-3,1e-3"]
"""So few settings that the search ends because it has tried all, whatever the machine's speed."""
Start = Callable[..., Tuning]


@dataclass(frozen=True)
class Done:
    folder: Path
    reports: list[TuneReport]
    tuned: Tuned


@pytest.fixture(scope="session")
def start(tiny_settings: list[str]) -> Start:
    """start(folder, vary, **options): a tuning of a recipe of nine steps."""

    def begin(folder: Path, vary: list[str] = FIELDS, **options: Any) -> Tuning:
        # With one thread, because the number that is measured to be fastest may differ between two runs.
        settings = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=9", "train.threads=1"]
        return start_tuning(QUICKSTART, "30m", vary, settings, folder, **options)

    return begin


@pytest.fixture(autouse=True, scope="session")
def _short(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two seeds in the final, and no measurement of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "MOST_SEEDS", 2)
        patch.setattr(search, "MOST_SEEDS", 2)
        patch.setattr(Tuning, "_calibrate", lambda self: (1.0, 0.5))
        yield


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, start: Start, _short: None) -> Done:
    folder = tmp_path_factory.mktemp("tuning") / "out"
    tuning = start(folder, top=1, workers=2)
    reports = list(tuning.reports())
    return Done(folder, reports, tuning.finish())
