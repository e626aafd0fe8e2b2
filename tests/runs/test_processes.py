"""A run in several processes, from the command line: repeated, killed, stopped and resumed."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import polytask
from polytask.kinds.table import KINDS
from polytask.processes import Processes
from polytask.runs.session import make_division

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
NO_DROPOUT = ("tasks.opinion.head={name: linear, dropout: 0.0}", "tasks.question.head={name: cosine}")
ENCODER = "layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 128"
STEPS = 12
MOMENT = 0.02
"""Seconds between two looks at a journal."""


def command(folder: Path, *options: str, dropout: float = 0.1, steps: int = STEPS) -> list[str]:
    settings = [
        f"encoder={{{ENCODER}, dropout: {dropout}, attention_dropout: {dropout}}}",
        "train.device=cpu",
        "train.epochs=1",
        f"train.steps_per_epoch={steps}",
        "train.save_every=4",
        *(NO_DROPOUT if dropout == 0 else ()),
    ]
    return ["train", str(RECIPE), *(f"--set={one}" for one in settings), f"--run-folder={folder}", *options]


def start(arguments: Sequence[str], launcher: Sequence[str] = ()) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "polytask", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(arguments: Sequence[str], expected: int = 0, launcher: Sequence[str] = ()) -> str:
    process = start(arguments, launcher)
    output, _ = process.communicate()
    assert process.returncode == expected, output
    return output


def run_program(program: str, folder: Path) -> str:
    """Runs a Python program in two processes; its arguments are a recipe, a folder and settings."""
    (folder / "program.py").write_text(program)
    settings = [argument.removeprefix("--set=") for argument in command(folder, steps=3) if "--set=" in argument]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [sys.executable, *launcher, str(folder / "program.py"), str(RECIPE), str(folder), *settings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def journal(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two processes, started as README says."""
    folder = tmp_path_factory.mktemp("processes") / "run"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run(command(folder), launcher=launcher)
    return folder


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(child) for child in found.stdout.split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_step(process: "subprocess.Popen[str]", folder: Path, step: int) -> None:
    """Waits until the journal has the step; fails if the run ends before."""
    while process.poll() is None:
        if (folder / "metrics.jsonl").exists() and any(line.get("step") == step for line in complete_lines(folder)):
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(MOMENT)
    raise AssertionError(process.communicate()[0])


def complete_lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def test_the_same_number_of_processes_gives_the_same_bits(two_processes: Path, tmp_path: Path) -> None:
    run(command(tmp_path / "again", "--processes", "2"))
    assert journal(tmp_path / "again") == journal(two_processes)
    assert weights(tmp_path / "again") == weights(two_processes)
    assert json.loads((two_processes / "environment.json").read_text())["processes"] == 2


def test_evaluations_are_those_of_one_process(two_processes: Path, tmp_path: Path) -> None:
    run(command(tmp_path / "one", steps=1))
    one, two = (
        [line for line in journal(f) if line["kind"] == "evaluation"] for f in (tmp_path / "one", two_processes)
    )
    assert one[0] == two[0]  # before the first step, when the weights are the same


def test_a_killed_process_ends_the_run_which_resumes_exactly(two_processes: Path, tmp_path: Path) -> None:
    process = start(command(tmp_path / "killed", "--processes", "2"))
    wait_for_step(process, tmp_path / "killed", 6)
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "process 1 of 2 was killed (SIGKILL" in output
    assert not any(alive(pid) for pid in workers)
    run(command(tmp_path / "killed", "--processes", "2", "--resume"))
    assert weights(tmp_path / "killed") == weights(two_processes)
    assert journal(tmp_path / "killed") == journal(two_processes)


def test_a_stopped_run_saves_a_checkpoint_and_resumes_exactly(two_processes: Path, tmp_path: Path) -> None:
    process = start(command(tmp_path / "stopped", "--processes", "2"))
    wait_for_step(process, tmp_path / "stopped", 5)
    workers = children(process.pid)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert re.search(r"stopped after step \d+ of 12 and saved", output)
    assert not any(alive(pid) for pid in workers)
    refused = run(command(tmp_path / "stopped", "--resume"), expected=1)
    assert "another number of processes, which draw other dropout:\n  processes: was 2, is 1" in refused
    run(command(tmp_path / "stopped", "--processes", "2", "--resume"))
    assert weights(tmp_path / "stopped") == weights(two_processes)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_the_processes_of_a_killed_launcher_stop_with_a_checkpoint(tmp_path: Path) -> None:
    process = start(command(tmp_path / "run", "--processes", "2", steps=2000))
    wait_for_step(process, tmp_path / "run", 5)
    workers = [os.pidfd_open(pid) for pid in children(process.pid)]
    assert len(workers) == 2
    process.kill()
    output, _ = process.communicate(timeout=60)  # until the last process has closed the pipe
    assert re.search(r"stopped after step \d+ of 2000 and saved", output)
    for worker in workers:  # it closes the pipe a moment before it has ended
        assert select.select([worker], [], [], 60)[0]
        os.close(worker)


@pytest.mark.slow
def test_without_dropout_another_number_of_processes_may_resume(tmp_path: Path) -> None:
    process = start(command(tmp_path / "run", "--processes", "2", dropout=0))
    wait_for_step(process, tmp_path / "run", 5)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    output = run(command(tmp_path / "run", "--resume", dropout=0))
    assert "processes: was 2, is 1; without dropout, only the rounding of sums differs" in output
    run(command(tmp_path / "one", dropout=0))
    for one, other in zip(journal(tmp_path / "run"), journal(tmp_path / "one"), strict=True):
        if one["kind"] == "step":
            assert one["losses"] == pytest.approx(other["losses"], rel=1e-4)


def test_an_error_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    assert run(command(tmp_path / "run", "--processes", "2"), expected=1).count("error: ") == 1
    lwf = ["--set=sampler=in_order", "--set=regularizers=[lwf]"]
    output = run(command(tmp_path / "lwf", "--processes", "2", *lwf), expected=1)
    assert output.count("regularizers: lwf cannot be divided among 2 processes") == 1
    assert not list((tmp_path / "temporary").glob("*/*_*/attempt_*"))  # the launcher's folders
    assert not list((tmp_path / "temporary").glob("polytask-*"))


DIFFERENT = """
import os, sys
import torch
import polytask
from polytask.runs import start

recipe, folder, *settings = sys.argv[1:]
other = os.environ["RANK"] == "1"

def refused(name, settings):
    try:
        polytask.train(recipe, f"{folder}/{name}", settings)
    except polytask.UserError as error:
        sys.stdout.write(f"{type(error).__name__} {error}\\n")  # in one piece: both processes write

refused("recipe", [*settings, "seed=5"] if other else settings)
refused("option", [*settings, "optimizer={name: fused_adamw, lr: 1e-4, betas: 3}"])
machine = start.on_this_machine
if other:
    start.on_this_machine = lambda *a, **k: (machine(*a, **k)[0], torch.device("meta"))
refused("device", settings)
"""


def test_processes_that_differ_are_refused_with_the_difference(tmp_path: Path) -> None:
    output = run_program(DIFFERENT, tmp_path)
    recipe = "UserError process 1 of 2 has other settings in its recipe than process 0: seed is 5 instead of 0;"
    assert output.count(recipe) == 1
    assert "UserError process 1 of 2 has other devices (train.device) than process 0: meta instead of cpu;" in output
    assert len(re.findall("^UserError", output, re.MULTILINE)) == 3  # each error is shown by one process
    assert len(re.findall("^ErrorElsewhere", output, re.MULTILINE)) == 3


PROGRAM = """
import sys
from pathlib import Path
import polytask

def say(text):
    sys.stdout.write(f"{text}\\n")  # in one piece: both processes write

recipe, folder, *settings = sys.argv[1:]
for name in ("first", "second"):  # one program may train several runs
    finished = polytask.train(recipe, f"{folder}/{name}", settings)
    polytask.evaluate_run(finished.folder)
say(f"mean {finished.evaluations['dev'].mean} after {finished.summary.steps} steps")
again = polytask.train(recipe, f"{folder}/second", settings, resume=True)  # its checkpoints were removed
say(f"again {again.evaluations['dev'].mean} after {again.summary.steps} steps")
running = polytask.start_training(polytask.read_recipe(recipe, settings), f"{folder}/third")
for report in running.steps():
    pass
if running.is_main:
    (Path(folder) / "third" / "summary.json").mkdir()
try:
    running.finish()
except Exception as error:
    say(f"refused: {type(error).__name__}")
try:
    polytask.fit({}, run=f"{folder}/fourth")
except polytask.UserError as error:
    say(error)
"""


def test_a_program_under_torchrun_trains_runs_in_all_processes(tmp_path: Path) -> None:
    output = run_program(PROGRAM, tmp_path)
    mean = re.findall(r"mean (.*) after 3 steps", output)
    assert re.findall(r"again (.*) after 3 steps", output) == mean
    assert len(mean) == 2
    assert mean[0] == mean[1]
    assert output.count("refused: ErrorElsewhere") == 1  # and the first process has its own error
    assert output.count("fit: runs in one process, and 2 were started") == 2


def test_other_commands_refuse_several_processes(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["pretrain", str(RECIPE), f"--set=encoder={{{ENCODER}}}", f"--run-folder={tmp_path / 'run'}"]
    assert "runs in one process, and 2 were started" in run(arguments, expected=1, launcher=launcher)


def test_tags_with_unlabelled_rows_are_not_divided() -> None:
    """Their loss is a mean over words times a share of texts, which is no sum over parts."""
    model: Any = SimpleNamespace(head=lambda task: SimpleNamespace(kind=KINDS["tokens"]))
    objective: Any = SimpleNamespace(regularizers={}, losses={}, taught=frozenset({"tags"}))
    with pytest.raises(polytask.UserError, match=r"tasks\.tags\.unlabelled: with a label for each word"):
        make_division(model, objective, Processes(0, 2))


def test_studies_and_tunings_refuse_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(polytask.UserError, match="tune: runs in one process, and 2 were started"):
        polytask.tune(RECIPE, "1m")
    study: Any = None
    with pytest.raises(polytask.UserError, match="compare: runs in one process, and 2 were started"):
        polytask.StudyRunning(study)
