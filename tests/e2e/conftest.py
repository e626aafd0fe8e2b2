"""A folder of a study, for its page."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from polytask import Finished
from polytask.studies.page import write_page

Json = dict[str, Any]


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory, tiny_run: Finished) -> Path:
    """Fourteen variants with long names, four tasks; one has failed. The runs' reports are all that of the tiny run."""
    folder = tmp_path_factory.mktemp("study")
    study = _study([f"variant-{number}-{'long-name-' * (number % 3 * 4)}" for number in range(14)])
    (folder / "study.json").write_text(json.dumps(study), encoding="utf-8")
    for found in study["variants"].values():
        for cell in found["cells"]:
            (folder / cell["run"]).mkdir(parents=True)
            shutil.copy(tiny_run.folder / "report.html", folder / cell["run"])
    write_page(folder)
    return folder


def _study(variants: list[str]) -> Json:
    tasks = ["topic", "sentiment", "a-task-with-quite-a-long-name", "similarity"]
    views, (reference, *others, failed) = [*tasks, "mean"], variants
    score = {v: dict.fromkeys(views, 0.7 + at * 7 % 13 / 100) for at, v in enumerate(variants)}
    ends = {
        v: {t: {"mean": x, "low": x - 0.01, "high": x + 0.01} for t, x in of.items()}
        for v, of in score.items()
        if v != failed
    }
    size = {"shared": 22_000_000, "per_task": dict.fromkeys(tasks, 1234), "trainable": 22_004_936, "total": 22_004_936}
    cost = {"parameters": size, "examples_per_second": 151.3, "peak_memory_bytes": 2**31, "seconds": 723.0}
    return {
        **{"format": 2, "margin": 0.5, "name": "Many variants", "reference": reference, "seeds": [0, 1]},
        "tasks": {task: {"kind": "classes", "metric": "accuracy", "examples": 500} for task in tasks},
        "variants": {
            v: {
                "settings": {"adapter.name": v},
                "cells": [_cell(at, seed, v == failed, score[v]) for seed in (0, 1)],
                "scores": ends.get(v, {}),
                "cost": cost if v in ends else None,
            }
            for at, v in enumerate(variants)
        },
        "comparisons": [_comparison(v, reference, t, score[v][t] - 0.7) for v in others for t in views],
        "curves": {v: {"0": {t: [[10, 0.5], [20, score[v][t]]] for t in tasks}} for v in ends},
        "differences": {"adapter.name": {v: v for v in variants}},
        "environment": {"cpu": "a processor with a name that goes on and on " * 3, "torch": "2.13.0"},
        **{"started": "2026-11-20T09:12:44+00:00", "workers": 2},
    }


def _cell(variant: int, seed: int, failed: bool, values: Json) -> Json:
    state = (
        {"state": "failed", "error": "x" * 300 + " <b>", "values": {}} if failed else {"state": "done", "error": None}
    )
    return {"seed": seed, "run": f"cells/{variant}-{seed}", "values": values, **state}


def _comparison(variant: str, reference: str, task: str, difference: float) -> Json:
    claim = "better" if difference > 0.06 else "same" if difference < 0.02 else "undecided"
    return {
        **{"variant": variant, "reference": reference, "task": task, "difference": difference, "claim": claim},
        **{"low": difference - 0.02, "high": difference + 0.02, "detectable": 0.03, "effect_seeds": 1.0},
        **{"p": 0.01, "p_noise": 0.01, "p_swap": 0.005, "p_holm": 0.2, "effect_examples": 0.1, "seeds": 2},
        **{"p_study": 0.01, "p_same": 0.3, "margin": 0.005, "seeds_needed": 7, "greater_is_better": True},
        **{"paired": True, "seed_noise_known": True, "examples": 500, "comparisons": 60},
        "sentence": f"{variant} and {reference} on {task}: {claim}",
    }
