"""SIGTERM and Ctrl-C end a run with a checkpoint and the shell's exit codes; a second Ctrl-C leaves at once."""

import signal
from pathlib import Path

import pytest

from polytask import read_recipe, start_training

from .conftest import STEPS, Starter, ending, write_recipe

BEST, CHECKPOINT = r"/\.best-3\..*/state\.json", r"/\.step-3\..*/state\.json"
"""Two places at which a run halts itself, so that a signal comes just then: inside step 3, and inside what saves it."""


@pytest.fixture
def rarely(tmp_path: Path) -> Path:
    """A recipe that saves nothing before its end."""
    return write_recipe(tmp_path, save_every=1000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_a_checkpoint_and_exits_with_the_shells_code(
    starter: Starter, rarely: Path, tmp_path: Path, number: signal.Signals
) -> None:
    list(start_training(read_recipe(rarely), tmp_path / "straight").steps())
    run = tmp_path / "run"
    child = starter.train(rarely, run, faults={"halt_at": [BEST]})
    child.wait_until_halted()
    child.goes_on_with(number)
    assert child.wait() == 128 + number, child.said
    assert {path.name for path in run.glob("checkpoints/*")} == {"best-3", "step-3"}
    assert f"stopped after step 3 of {STEPS} and saved {run}/checkpoints/step-3" in child.said
    assert "Traceback" not in child.said
    starter.goes_on(rarely, run)
    assert ending(run) == ending(tmp_path / "straight")


def test_a_second_interrupt_exits_at_once(starter: Starter, rarely: Path, tmp_path: Path) -> None:
    """It comes while the checkpoint that the first one asked for is half written."""
    run = tmp_path / "run"
    child = starter.train(rarely, run, faults={"halt_at": [BEST, CHECKPOINT]})
    for _ in range(2):
        child.wait_until_halted()
        child.goes_on_with(signal.SIGINT)
    assert child.wait() == 130, child.said
    assert "press Ctrl-C again to exit at once" in child.said
    assert {path.name for path in run.glob("checkpoints/*")} == {"best-3"}
    assert not list(run.glob("checkpoints/.*"))  # nor half of it
    assert "Traceback" not in child.said


def test_sigterm_after_an_interrupt_still_saves(starter: Starter, rarely: Path, tmp_path: Path) -> None:
    """As when Ctrl-C comes to a study and its runs alike, and the study then ends its runs."""
    run = tmp_path / "run"
    child = starter.train(rarely, run, faults={"halt_at": [BEST, CHECKPOINT]})
    for number in (signal.SIGINT, signal.SIGTERM):
        child.wait_until_halted()
        child.goes_on_with(number)
    assert child.wait() == 130, child.said
    assert (run / "checkpoints" / "step-3").is_dir()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_before_the_first_step_saves_nothing(
    starter: Starter, rarely: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    child = starter.train(rarely, run, faults={"halt_at": [r"/\.recipe\.yaml\."]})
    child.wait_until_halted()
    child.goes_on_with(number)
    assert child.wait() == 128 + number, child.said
    assert "Traceback" not in child.said + "".join(path.name for path in run.glob("checkpoints/*"))
