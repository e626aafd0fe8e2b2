"""Workers and the whole command are killed at random moments; every row is in the output exactly once in the end."""

import os
import random
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polytask import Finished, load, predict_file

from .conftest import make_table, read_output, same_rows

ROWS, PER_SHARD, FILES = 90, 10, 8
MOMENT = 0.005
"""Seconds between two looks at the output."""


@pytest.fixture(scope="module")
def many(tiny_run: Finished, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Files with 72 shards, and the predictions of their rows."""
    folder = tmp_path_factory.mktemp("many")
    pq.write_table(make_table(0, ROWS * FILES), folder / "all.parquet")
    predict_file(load(tiny_run.folder), None, str(folder / "all.parquet"), folder / "predicted.parquet")
    (folder / "in").mkdir()
    for number in range(FILES):
        pq.write_table(make_table(number * ROWS, ROWS), folder / "in" / f"{number}.parquet")
    return folder / "in", pq.read_table(folder / "predicted.parquet").to_pylist()


class Command:
    """`polytask predict` in a process of its own. A variable in their environment marks the processes it starts."""

    def __init__(self, run: Path, source: Path, output: Path, *options: str) -> None:
        self.output, self.mark = output, f"POLYTASK_TEST={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        words = [sys.executable, "-P", "-m", "polytask", "predict", str(run), "--input", f"{source}/*.parquet"]
        words += ["--output", str(output), "--rows-per-shard", str(PER_SHARD), "--workers", "2", *options]
        self.log = output.parent / "log.txt"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(words, env={**os.environ, name: value}, stdout=log, stderr=log)

    def pids(self) -> Iterator[tuple[int, str]]:
        """The processes with the mark, and their command lines."""
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended, or is another user's
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()

    def workers(self, name: str) -> list[int]:
        return [pid for pid, line in self.pids() if name in line]

    @property
    def written(self) -> int:
        return len(list(self.output.glob("part-*.parquet")))

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Waits for a condition; False if the command has ended first."""
        while self.process.poll() is None:
            if condition():
                return True
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(MOMENT)
        return False


def wait_until_gone(command: Command) -> None:
    while list(command.pids()):
        pass  # the look at all processes takes a while itself


def wait_for_moment(command: Command, shards: int, moments: int) -> bool:
    """Waits until so many shards are written, and some moments longer; False if the command has ended first."""
    left = iter(range(moments))
    return command.wait_for(lambda: command.written >= shards) and command.wait_for(lambda: next(left, None) is None)


def kill_at_random(make: Callable[[], Command], worker: str, kills: int, parents: bool) -> Iterator[Counter[str]]:
    """Kills workers, and now and then the whole command, until there were enough kills.

    A kill is due when a few more shards have been written, and a random number of moments later. Yields the kills so
    far whenever a command has finished all shards, and starts again if there are more kills to come.
    """
    draw, killed, command, shards = random.Random(3), Counter[str](), make(), 1
    while True:
        if killed.total() < kills and wait_for_moment(command, shards, draw.randrange(60)):
            victims = command.workers(worker)
            whole = parents and draw.random() < 0.25
            if whole or victims:
                with suppress(ProcessLookupError):
                    os.kill(command.process.pid if whole else draw.choice(victims), signal.SIGKILL)
                    killed["commands" if whole else "workers"] += 1
            shards = command.written + draw.randint(0, 2)
            if not whole:
                continue
        code = command.process.wait()
        said = command.log.read_text()
        assert code in (0, -signal.SIGKILL) or (code == 1 and "in the last of 3 attempts" in said), said
        if code == 0:
            wait_until_gone(command)
            yield killed
            if killed.total() >= kills:
                return
            shutil.rmtree(command.output)
            shards = 1
        command = make()  # after a kill at once, while workers of the killed command may still be there


def check_killed(run: Path, many: Any, folder: Path, engine: str, worker: str, kills: int, parents: bool) -> None:
    source, expected = many
    output = folder / "out"
    rounds = kill_at_random(lambda: Command(run, source, output, "--engine", engine), worker, kills, parents)
    for finished, killed in enumerate(rounds, 1):
        same_rows(read_output(output), expected)
        assert [path.name for path in output.iterdir() if path.name.startswith(".")] == [".lock"]
        assert (output / "_SUCCESS.json").is_file()
        print(f"{engine}: killed {dict(killed)}, {finished} times all rows")
    assert killed.total() == kills


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_local_workers_are_killed(tiny_run: Finished, many: Any, tmp_path: Path, kills: int) -> None:
    check_killed(tiny_run.folder, many, tmp_path, "local", "polytask.bulk.worker", kills, parents=True)


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_ray_actors_are_killed(tiny_run: Finished, many: Any, tmp_path: Path, kills: int) -> None:
    """The command is killed in the long version only, because Ray takes seconds to start."""
    check_killed(tiny_run.folder, many, tmp_path, "ray", "ray::Map", kills, parents=kills > 1)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_ends_the_command_without_orphans_and_half_shards(
    tiny_run: Finished, many: Any, tmp_path: Path, number: signal.Signals
) -> None:
    source, expected = many
    command = Command(tiny_run.folder, source, tmp_path / "out", "--engine", "local")
    assert command.wait_for(lambda: command.written > 3)
    command.process.send_signal(number)
    assert command.process.wait() == 128 + number, command.log.read_text()
    assert not list(command.pids())
    found = read_output(tmp_path / "out")
    numbers = {row["number"] for row in found}
    same_rows(found, [row for row in expected if row["number"] in numbers])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {name for name in names if not name.startswith("part-")} == {"_plan.json", ".lock"}
