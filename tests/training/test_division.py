"""Processes that divide the steps of a run: the weights, losses and scores of one process, for every method."""

import json
import os
import random
import subprocess
import sys
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from polytask.training.division import deal, equal_parts

from .divided_steps import CASES, RECORDED, STEPS

WORKER = Path(__file__).parent / "divided_steps.py"
OFTEN = ("plain", "pal", "smart", "bregman", "gem, mixed", "pcgrad", "lamb", "accumulated", "frozen", "masked words")
OFTEN += ("shared rows",)
FEW = 15
"""Steps of the tests that are not slow; twice as many where steps are captured once their shapes have been seen."""

EMPTY_PARTS = ("smart, empty parts",)
"""In many of its steps, the last of three processes has no examples. The slow tests have one for PCGrad too."""


def start(count: int, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """Start a program in several processes, as torchrun does."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command = [sys.executable] if count == 1 else command
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *arguments], env=environment, text=True, **options)


def run(count: int, *arguments: str) -> str:
    """Run a program in several processes, and return what they print."""
    process = start(count, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output: str = process.communicate()[0]
    assert process.returncode == 0, output[-4000:]
    return output


def train(count: int, folder: Path, *cases: str, recorded: bool = False, steps: int = STEPS) -> None:
    run(count, str(WORKER), *(["--recorded"] if recorded else []), f"--steps={steps}", str(folder), *cases)


def steps(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines if line["kind"] == "step"]


def check_equal(one: Path, several: Path, cases: tuple[str, ...]) -> None:
    for case in cases:
        name = case.replace(" ", "-")
        alone, divided = (load_file(folder / name / "last.safetensors") for folder in (one, several))
        assert alone.keys() == divided.keys()
        for key, weight in alone.items():
            note = lambda text, c=case: f"{c}: {text}"  # noqa: E731
            torch.testing.assert_close(divided[key], weight, atol=1e-6, rtol=0, equal_nan=True, msg=note)
        for expected, found in zip(steps(one / name), steps(several / name), strict=True):
            for field in ("losses", "penalties", "learning_rates", "examples", "tokens"):
                assert found[field] == pytest.approx(expected[field], rel=1e-4, abs=1e-7), (case, field)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of one process that the tests below compare with."""
    folder = tmp_path_factory.mktemp("one")
    train(1, folder, *OFTEN, steps=FEW)
    return folder


def test_two_processes_train_the_same_weights(one_process: Path, tmp_path: Path) -> None:
    train(2, tmp_path, *OFTEN, steps=FEW)
    check_equal(one_process, tmp_path, OFTEN)


def test_a_process_without_a_part_draws_what_the_others_draw(tmp_path: Path) -> None:
    train(1, tmp_path / "one", *EMPTY_PARTS, steps=FEW)
    train(3, tmp_path / "several", *EMPTY_PARTS, steps=FEW)
    check_equal(tmp_path / "one", tmp_path / "several", EMPTY_PARTS)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_every_method_trains_the_same_weights(count: int, tmp_path: Path) -> None:
    cases = tuple(CASES)
    train(1, tmp_path / "one", *cases)
    train(count, tmp_path / "several", *cases)
    check_equal(tmp_path / "one", tmp_path / "several", cases)


def test_captured_steps_of_two_processes_train_the_same_weights(tmp_path: Path) -> None:
    """From the third step of a shape on no Python runs: what the processes exchange is recorded too."""
    cases = ("plain", "fewer examples than processes", "shared rows")
    train(1, tmp_path / "one", *cases, recorded=True, steps=2 * FEW)
    train(2, tmp_path / "several", *cases, recorded=True, steps=2 * FEW)
    check_equal(tmp_path / "one", tmp_path / "several", cases)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_every_captured_method_trains_the_same_weights(count: int, tmp_path: Path) -> None:
    train(1, tmp_path / "one", *RECORDED, recorded=True)
    train(count, tmp_path / "several", *RECORDED, recorded=True)
    check_equal(tmp_path / "one", tmp_path / "several", RECORDED)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
    ],
)
def test_sums_inside_a_graph_change_nothing_in_one_process(device: str, tmp_path: Path) -> None:
    """On a GPU this is NCCL in a CUDA graph, with a group of one process."""
    launcher = [str(Path(__file__).parent / "connected_steps.py"), str(tmp_path), device]
    output = run(1, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", *launcher)
    graphs = [int(line.removeprefix("graphs: ")) for line in output.splitlines() if line.startswith("graphs: ")]
    assert len(graphs) == 2, output
    assert min(graphs) > 0
    found = json.loads((tmp_path / "losses.json").read_text())
    assert len(found["alone"]) == STEPS
    for alone, connected in zip(found["alone"], found["connected"], strict=True):
        assert connected == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_dealt_parts_are_about_equal_and_their_sizes_depend_on_counts_only(seed: int) -> None:
    rng = random.Random(seed)
    size, count, first = rng.randint(0, 40), rng.randint(1, 8), rng.randint(0, 9)
    lengths, others = ([rng.randint(1, 50) for _ in range(size)] for _ in range(2))
    hands = deal(lengths, count, first)
    assert sorted(item for hand in hands for item in hand) == list(range(size))
    assert all(hand == sorted(hand) for hand in hands)
    assert [len(hand) for hand in hands] == [len(hand) for hand in deal(others, count, first)]
    assert max(map(len, hands)) - min(map(len, hands)) <= 1
    sums = [sum(lengths[item] for item in hand) for hand in hands]
    assert max(sums) - min(sums) <= max(lengths, default=0)


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_consecutive_and_about_equal(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(1, 50) for _ in range(rng.randint(1, 40))]
    count = rng.randint(1, 8)
    ends = equal_parts(lengths, count)
    assert (ends[0], ends[-1], len(ends)) == (0, len(lengths), count + 1)
    assert ends == sorted(ends)
    parts = [sum(lengths[first:last]) for first, last in pairwise(ends)]
    assert parts[0] > 0  # the first process computes what is computed once
    assert max(parts) <= sum(lengths) / count + max(lengths)


def test_few_examples_leave_the_last_processes_without_any() -> None:
    assert equal_parts([5], 3) == [0, 1, 1, 1]
    assert equal_parts([5, 5], 3) == [0, 1, 2, 2]


def by_search(lengths: list[int], count: int) -> list[int]:
    """The definition of `equal_parts`: each part ends at the border that is nearest to its share."""
    borders = [0, *accumulate(lengths)]
    total, ends = borders[-1], [0]
    for number in range(1, count):
        nearest = min(range(len(borders)), key=lambda i: abs(count * borders[i] - number * total))
        if ends[-1] < nearest < len(lengths):
            ends.append(nearest)
    return ends + [len(lengths)] * (count + 1 - len(ends))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_parts_end_at_the_nearest_borders(count: int) -> None:
    rng = random.Random(count)
    for size in (0, 1, 2, 5, 40, 300):
        lengths = [rng.choice([0, 1, 2, 3, 5, 8, 60]) for _ in range(size)]
        assert equal_parts(lengths, count) == by_search(lengths, count), lengths
