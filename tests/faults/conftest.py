"""Tiny runs in processes that can be killed, and what is compared of how they end."""

import itertools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from polytask import read_recipe, start_training
from polytask.training.checkpoint import newest

LONG = bool(os.environ.get("POLYTASK_SLOW_TESTS"))
"""`make slow`: many more kills, and every point at which a run touches a file."""
STEPS = 8
RECIPE: dict[str, Any] = {
    "name": "tiny",
    "encoder": {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "positions": 32},
    "max_length": 16,
    "sampler": "mixed",
    "policy": {"name": "replay", "size": 8},
    "regularizers": ["bregman"],
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "seed": 2,  # with losses as they are, each evaluation is better than the one before
    "train": {
        "epochs": 2,
        "steps_per_epoch": STEPS // 2,
        "batch_size": 6,
        "save_every": 1,
        "evaluate_every": 3,
        "loss_scale": "none",
        "device": "cpu",  # also on a machine with a GPU: the best steps below are those of the CPU
    },
}
"""Something of everything that must come back: memories, a running average, moments, best models, dropout."""


def rows(words: str, labels: list[str], count: int) -> str:
    lines = [f"the {words} number {n} is {'good' if n % 2 else 'bad'},{labels[n % len(labels)]}" for n in range(count)]
    return "text,label\n" + "\n".join(lines) + "\n"


def write_recipe(folder: Path, **train: Any) -> Path:
    """The recipe file with its data; `train` is put over its train settings."""
    (folder / "one.csv").write_text(rows("book", ["bad", "good", "so-so"], 24))
    (folder / "two.csv").write_text(rows("film", ["no", "yes"], 16))
    tasks = {
        name: {"kind": kind, "text": "text", "label": "label", "train": f"{name}.csv", "dev": f"{name}.csv"}
        for name, kind in [("one", "classes"), ("two", "yes_no")]
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "tasks": tasks, "train": {**RECIPE["train"], **train}}))
    return path


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe, for tests that leave it as it is."""
    return write_recipe(tmp_path_factory.mktemp("recipe"))


@dataclass
class Child:
    """A process that runs, or has run."""

    pid: int
    starter: "Starter"
    log: Path
    halts: int = 0

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, negative for a signal; None if it is still running after so long."""
        if seconds is not None and not select.select([self.starter.process.stdout], [], [], seconds)[0]:
            return None
        code = int(self.starter.read())
        self.starter.child = None
        return code

    def wait_until_halted(self) -> None:
        """By itself, at the next place of `halt_at`."""
        self.halts += 1
        while self.said.count("halted at") < self.halts or self._state() != "T":
            code = self.wait(0.005)
            assert code is None, f"ended with {code}: {self.said}"

    def goes_on_with(self, number: signal.Signals) -> None:
        """A signal for a halted process, which takes it as soon as it runs again."""
        os.kill(self.pid, number)
        self.continues()

    def continues(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _state(self) -> str:
        """As the kernel says it: R running, T halted ..."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


class Starter:
    """See starter.py. One child at a time."""

    def __init__(self, recipe: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("starter.py")), str(recipe)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.child: Child | None = None
        assert self.read() == "ready"

    def __enter__(self) -> "Starter":
        return self

    def __exit__(self, *_: object) -> None:
        self.end_child()
        self.process.communicate()

    def end_child(self) -> None:
        """That of a test that failed."""
        if self.child is not None:
            os.kill(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def read(self) -> str:
        """A line, byte by byte: nothing may stay in a buffer that `select` does not see."""
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            found = self.process.stdout.read(1)
            assert found, "the starter has ended"
            line += found
        return line.decode().strip()

    def start(self, run: Path, **order: Any) -> Child:
        assert self.process.stdin is not None
        self.end_child()
        log = run.parent / f"{run.name}.log"
        log.write_text("")
        self.process.stdin.write(json.dumps({"run": str(run), "log": str(log), **order}).encode() + b"\n")
        self.child = Child(int(self.read()), self, log)
        return self.child

    def steps(self, recipe: Path, run: Path, resume: bool = False, **more: Any) -> Child:
        """Starts all steps of a run, without the report and the rest that comes after them."""
        return self.start(run, recipe=str(recipe), resume=resume, **more)

    def train(self, recipe: Path, run: Path, *arguments: str, **more: Any) -> Child:
        """Starts `polytask train`."""
        return self.start(run, arguments=["train", str(recipe), "--run", str(run), *arguments], **more)

    def goes_on(self, recipe: Path, run: Path) -> str:
        """Resumes a run to its last step; what it said."""
        child = self.steps(recipe, run, resume=run.exists())
        assert child.wait() == 0, child.said
        return child.said


@pytest.fixture(scope="session")
def starter(recipe: Path) -> Iterator[Starter]:
    with Starter(recipe) as starter:
        yield starter


def ending(run: Path) -> dict[str, Any]:
    """Everything a run has ended with, times aside: the bits of its last checkpoint and its best model, its journal."""
    last = newest(run / "checkpoints")
    assert last is not None
    state = json.loads((last / "state.json").read_text())
    best = [f"best-{step}" for _, step in state["bests"]]
    tensors = {
        f"{folder}/{file.name}/{name}": tensor.numpy().tobytes()
        for folder in [last.name, *best]
        for file in sorted((run / "checkpoints" / folder).glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        **tensors,
        "state": {key: value for key, value in state.items() if "seconds" not in key},
        "lines": [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
        "steps": [line["step"] for line in lines if line["kind"] == "step"],
    }


@pytest.fixture(scope="session")
def straight(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How the run ends when nothing happens to it."""
    run = tmp_path_factory.mktemp("straight") / "run"
    list(start_training(read_recipe(recipe), run).steps())
    found = ending(run)
    assert found["steps"] == list(range(1, STEPS + 1))
    return found


@pytest.fixture(scope="session")
def stopped(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run after six of its steps: step-5 and step-6, which need best-3 and best-6. Tests damage copies of it."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    running = start_training(read_recipe(recipe), run)
    list(itertools.islice(running.steps(), 6))
    running.lock.release()
    return run
