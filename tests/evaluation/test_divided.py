"""Evaluation by several processes: the outputs of one process, bit for bit, on whatever GPUs the others run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
PROGRAM = """
import sys
from safetensors.torch import save_file
from polytask import read_recipe
from polytask.model import MultiTaskModel
from polytask.processes import join_processes
from polytask.runs.prepare import prepare
from polytask.runs.score import score_split

recipe, folder, budget, *settings = sys.argv[1:]
processes = join_processes()
MultiTaskModel.token_budget = lambda self, task: int(budget) if processes.is_main else 77  # as of another GPU
prepared = prepare(read_recipe(recipe, settings))
scores = score_split(prepared, "dev", 0, processes=processes)
save_file({task: own.contiguous() for task, own in scores.outputs.items()}, f"{folder}/{processes.rank}.safetensors")
"""
TAGS = "{kind: tokens, text: text, label: spans, train: 'sample:entities-train', dev: 'sample:entities-dev'}"


def outputs(count: int, folder: Path, budget: int, settings: list[str]) -> list[dict[str, torch.Tensor]]:
    """By rank: the outputs of every task for its dev split."""
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)] if count > 1 else []
    arguments = [sys.executable, *launcher, str(folder / "program.py"), str(RECIPE), str(folder), str(budget)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*arguments, *settings], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [load_file(folder / f"{rank}.safetensors") for rank in range(count)]


@pytest.mark.parametrize("budget", [512, 10**6], ids=["many batches", "fewer batches than processes"])
def test_processes_compute_the_batches_of_the_first(budget: int, tmp_path: Path, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, f"tasks.tags={TAGS}"]
    (alone,) = outputs(1, tmp_path / "one", budget, settings)
    for found in outputs(2, tmp_path / "two", budget, settings):
        assert found.keys() == alone.keys()
        assert all(torch.equal(found[task], alone[task]) for task in alone)
