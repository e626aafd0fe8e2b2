"""A worker of a study: a run in it is bit-identical to the same run in a process of its own."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from polytask.child_processes import python_module
from polytask.cli.worker import restored_state
from polytask.disk.kept import MOST_VALUES, keeping_values, kept
from polytask.pretrained.weights import load_encoder

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
TIMES = ("seconds", "phases", "examples_per_second", "peak_memory_bytes")


def arguments(run: Path, settings: list[str]) -> list[str]:
    return ["train", str(QUICKSTART), "--run", str(run), *(word for one in settings for word in ("--set", one))]


def requests(*runs: list[str], log: Path) -> str:
    return "".join(json.dumps({"arguments": run, "log": str(log)}) + "\n" for run in runs)


def serve(lines: str) -> subprocess.CompletedProcess[str]:
    command = python_module("polytask.cli.worker")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.run(command, input=lines, capture_output=True, text=True, env=environment)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(entry) for key, entry in value.items() if key not in TIMES}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


def results(run: Path) -> dict[str, Any]:
    """Everything that a run has computed, by file."""
    files = [run / "recipe.yaml", *sorted((run / "model").iterdir()), *sorted((run / "predictions").iterdir())]
    content: dict[str, Any] = {file.name: file.read_bytes() for file in files if file.suffix != ".md"}
    lines = (run / "metrics.jsonl").read_text().splitlines()
    content["metrics.jsonl"] = [without_times(json.loads(line)) for line in lines]
    content["summary.json"] = without_times(json.loads((run / "summary.json").read_text()))
    return content


@pytest.mark.slow
def test_a_run_after_another_is_bit_identical_to_the_run_alone(tmp_path: Path, tiny_settings: list[str]) -> None:
    """The first run has another adapter, policy, head and seed."""
    other = ["adapter=pal", "policy=pcgrad", "seed=5", "tasks.question.head=bi"]
    short = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=5"]
    first = arguments(tmp_path / "first", [*short, *other])
    log = tmp_path / "log.txt"
    done = serve(requests(first, arguments(tmp_path / "second", short), log=log))
    assert done.stdout == '{"exit_code": 0}\n' * 2, log.read_text() + done.stderr
    assert done.returncode == 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*python_module("polytask"), *arguments(tmp_path / "alone", short)]
    alone = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    expected, actual = results(tmp_path / "alone"), results(tmp_path / "second")
    assert expected.keys() == actual.keys()
    for name in expected:
        assert expected[name] == actual[name], name
    environments = [json.loads((tmp_path / run / "environment.json").read_text()) for run in ("alone", "second")]
    assert environments[0]["threads"] == environments[1]["threads"] == 1
    # What it prints is the same too, apart from the paths and the times.
    second_log = log.read_text()[log.read_text().rindex("step 1/5") :]
    assert len(second_log.splitlines()) == len(alone.stdout.splitlines())


def test_a_run_that_fails_ends_the_worker(tmp_path: Path, tiny_settings: list[str]) -> None:
    log = tmp_path / "log.txt"
    wrong = arguments(tmp_path / "wrong", [*tiny_settings, "tasks.opinion.dev=none.csv"])
    done = serve(requests(wrong, arguments(tmp_path / "never", tiny_settings), log=log))
    assert (done.returncode, done.stdout) == (1, "")
    assert "none.csv: no such file" in log.read_text()
    assert not (tmp_path / "never").exists()


def test_the_state_of_the_process_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path.cwd())
    folder, threads = Path.cwd(), torch.get_num_threads()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    shown: list[Any] = []
    warnings.simplefilter("default")
    monkeypatch.setattr(warnings, "showwarning", lambda *about, **options: shown.append(about))
    for _ in range(2):
        with restored_state():
            warnings.warn("shown in every log", stacklevel=1)
            torch.rand(7)
            torch.set_num_threads(threads + 1)
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = True
            os.environ["POLYTASK_LEFT_BEHIND"] = "1"
            os.chdir(tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert (torch.get_num_threads(), torch.get_default_dtype(), Path.cwd()) == (threads, torch.float32, folder)
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    assert "POLYTASK_LEFT_BEHIND" not in os.environ
    assert len(shown) == 2


def test_values_are_kept_inside_the_context_only() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        return kept("numbers", number, lambda: made.append(number) or number)  # type: ignore[func-returns-value]

    assert [make(1), make(1)] == [1, 1]
    assert made == [1, 1]
    with keeping_values():
        for number in (2, *range(2, 2 + MOST_VALUES), 2, 99, 2, 3):
            assert make(number) == number
    assert made == [1, 1, *range(2, 2 + MOST_VALUES), 99, 3]  # 3 was used least recently when 99 came


def test_kept_weights_are_copied(minilm: Path) -> None:
    with keeping_values():
        first = load_encoder(minilm, keep=True)
        before = first.words.weight.detach().clone()
        with torch.no_grad():
            first.words.weight.add_(1)
        assert torch.equal(load_encoder(minilm, keep=True).words.weight, before)
    assert torch.equal(load_encoder(minilm).words.weight, before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_that_a_run_starts_can_read_the_requests(
    tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard input is /dev/null inside a run."""
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "config"))
    own = tmp_path / "own.py"
    text = "import os\ndef share(gold, predicted):\n    print(os.readlink('/proc/self/fd/0'))\n    return 0.5\n"
    own.write_text(text)
    settings = [*tiny_settings, "train.steps_per_epoch=1", "train.epochs=1", f"tasks.opinion.metrics=['{own}:share']"]
    trusting = [*arguments(tmp_path / "run", settings), "--trust-plugins"]
    done = serve(requests(trusting, log=tmp_path / "log.txt"))
    assert done.returncode == 0, (tmp_path / "log.txt").read_text()
    assert "/dev/null" in (tmp_path / "log.txt").read_text()
