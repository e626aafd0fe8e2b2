"""Every script in examples/ runs as a program of its own and prints what it promises."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import polytask

FOLDER = Path(__file__).parent.parent.parent / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))


def run(script: str) -> list[str]:
    source = Path(polytask.__file__).parent.parent
    places = {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "error", str(FOLDER / script)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **places})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", line)]


def losses_fall(lines: list[str]) -> bool:
    """`... loss FIRST -> LAST`: by half or more."""
    return all(last < first / 2 for first, last in (numbers(line.partition("loss")[2]) for line in lines))


def last_falls(lines: list[str]) -> bool:
    """Without the penalty and with it: the last number of the line is at least a tenth smaller with it."""
    without, with_penalty = (numbers(line)[-1] for line in lines)
    return with_penalty < 0.9 * without


def fewer_conflicts(lines: list[str]) -> bool:
    conflicts = {line.split()[0]: int(line.split()[1]) for line in lines}
    return conflicts["UpGrad"] == conflicts["Mgda"] == 0 and conflicts["PcGrad"] < conflicts["sum"] / 2


def remembers(lines: list[str]) -> bool:
    first = {line.split()[0]: numbers(line)[0] for line in lines}
    return min(first["gem"], first["a_gem"]) > first["none"] + 0.1


def both_learned(lines: list[str]) -> bool:
    steps = [re.findall(r"(?:loss|topic|tone) (\S+)", line) for line in lines if line.startswith("step")]
    return all(float(last) < float(first) / 10 for first, last in zip(steps[0], steps[-1], strict=True))


CHECKS: dict[str, Callable[[list[str]], bool]] = {
    "adapters_in_transformers.py": both_learned,
    "bregman.py": last_falls,
    "gem.py": remembers,
    "gradient_surgery.py": fewer_conflicts,
    "lnsr.py": last_falls,
    "optimizers.py": losses_fall,
    "padded_adapters.py": losses_fall,
    "r_drop.py": last_falls,
    "samplers.py": lambda lines: lines[-1] == "resumed after 60 batches: equal",
    "smart.py": last_falls,
    "task_weights.py": both_learned,
}


QUICK = ("gradient_surgery.py", "samplers.py")
"""Run at every change; the others are slow tests."""


@pytest.mark.parametrize(
    "script", [script if script in QUICK else pytest.param(script, marks=pytest.mark.slow) for script in SCRIPTS]
)
def test_it_runs(script: str) -> None:
    lines = run(script)
    assert lines
    check = CHECKS.get(script)
    assert check is None or check(lines), "\n".join(lines)


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_is_short_and_listed(script: str) -> None:
    code = (FOLDER / script).read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 60
    assert f"[{script}]({script})" in (FOLDER / "README.md").read_text(encoding="utf-8")
