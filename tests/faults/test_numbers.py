"""Losses and gradients that are no numbers, and memory that runs out: nothing moves, and the run is not lost."""

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask import Running, UserError, read_recipe, start_training
from polytask.model import MultiTaskModel
from polytask.regularizers.bregman import Bregman
from polytask.training.checkpoint import newest, optimizer_tensors
from polytask.training.objective import Objective

from .conftest import ending

Change = Callable[[Tensor], Tensor]
POLICIES = ["replay", "pcgrad", "gem"]
"""One backward pass; gradients told apart; and memories among them."""


@contextmanager
def spoiled(running: Running, steps: Collection[int], change: Change) -> Iterator[None]:
    """Inside, the loss of task two is in these steps what `change` makes of it."""
    real = Objective.task_losses

    def task_losses(self: Objective, model: MultiTaskModel, *more: Any) -> dict[str, Tensor]:
        found = real(self, model, *more)
        return {n: change(x) if n == "two" and running.session.step in steps else x for n, x in found.items()}

    with pytest.MonkeyPatch.context() as context:
        context.setattr(Objective, "task_losses", task_losses)
        yield


def nan(loss: Tensor) -> Tensor:
    return loss * math.nan


def inf(loss: Tensor) -> Tensor:
    return loss * math.inf


def root_of_nothing(loss: Tensor) -> Tensor:
    """The same number, with a gradient that is none."""
    return loss + (0 * loss).sqrt()


def bits(running: Running) -> dict[str, Tensor]:
    session = running.session
    found = {**session.model.state_dict(), **optimizer_tensors(session.optimizer)}
    return {name: tensor.clone() for name, tensor in found.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


SAID = {
    nan: "the loss of two is nan",
    inf: "the loss of two is inf",
    root_of_nothing: "the gradient of .*two is not finite",
}


@pytest.mark.parametrize("change", SAID)
@pytest.mark.parametrize("policy", POLICIES)
def test_stop_names_task_and_step_and_saves_what_was_before(
    recipe: Path, tmp_path: Path, change: Change, policy: str
) -> None:
    settings = ["train.save_every=100", f"policy={policy}"]
    list(start_training(read_recipe(recipe, settings), tmp_path / "straight").steps())
    run = tmp_path / "run"
    running = start_training(read_recipe(recipe, settings), run)
    where = run / "checkpoints" / "step-4"
    message = rf"step 5: {SAID[change]}; set train.on_nan: skip .*The run before this step is saved in {where}"
    with spoiled(running, [5], change), pytest.raises(UserError, match=message):
        list(running.steps())
    assert all(torch.isfinite(tensor).all() for tensor in bits(running).values())
    assert newest(run / "checkpoints") == where
    list(start_training(read_recipe(recipe, settings), run, resume=True).steps())  # now without the bad step
    assert ending(run) == ending(tmp_path / "straight")


@pytest.mark.parametrize("change", SAID)
@pytest.mark.parametrize("policy", [*POLICIES, "dwa"])
def test_skip_changes_no_weights_and_continues(recipe: Path, tmp_path: Path, change: Change, policy: str) -> None:
    settings = ["train.on_nan=skip", f"policy={policy}"]
    running = start_training(read_recipe(recipe, settings), tmp_path / "run")
    with spoiled(running, [4, 5, 7], change):
        after = [bits(running) for _ in running.steps()]
    assert same(after[2], after[4])  # steps 4 and 5 moved nothing
    assert same(after[5], after[6])
    assert not same(after[4], after[5])
    assert all(torch.isfinite(tensor).all() for tensor in after[-1].values())
    lines = [line for line in ending(tmp_path / "run")["lines"] if line["kind"] == "step"]
    assert [line["step"] for line in lines if "skipped" in line] == [4, 5, 7]
    assert all(
        ("two" in line["losses"]) == (change is root_of_nothing or line["step"] not in (4, 5, 7)) for line in lines
    )
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    policy_state = running.session.objective.policy.state_dict()
    assert all(torch.isfinite(tensor).all() for name, tensor in policy_state.items() if name != "earlier_K")


def test_skipped_steps_are_part_of_what_is_resumed(recipe: Path, tmp_path: Path) -> None:
    made = read_recipe(recipe, ["train.on_nan=skip"])
    straight, stopped = (start_training(made, tmp_path / name) for name in ("straight", "run"))
    with spoiled(straight, [3, 4, 6], nan):
        list(straight.steps())
    with spoiled(stopped, [3, 4, 6], nan):
        list(itertools.islice(stopped.steps(), 4))
    resumed = start_training(made, tmp_path / "run", resume=True)
    assert (resumed.session.progress.skipped, resumed.session.progress.skipped_in_a_row) == (2, 2)
    with spoiled(resumed, [3, 4, 6], nan):
        list(resumed.steps())
    assert ending(tmp_path / "run") == ending(tmp_path / "straight")
    assert resumed.finish().summary.skipped_steps == 3  # and the report is written, though norms are missing


def test_ten_in_a_row_are_too_many(recipe: Path, tmp_path: Path) -> None:
    more = ["train.on_nan=skip", "train.epochs=5", "train.save_every=100", "train.evaluate_every=100"]
    running = start_training(read_recipe(recipe, more), tmp_path / "run")
    with (
        spoiled(running, [2, 3, *range(5, 99)], nan),
        pytest.raises(UserError, match=r"step 14: the loss of two is nan; so were the 9 steps before it.*step-13"),
    ):
        list(running.steps())
    assert (running.session.progress.skipped, running.session.progress.skipped_in_a_row) == (11, 9)


def test_a_penalty_is_named_too(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start_training(read_recipe(recipe), tmp_path / "run")
    monkeypatch.setattr(Bregman, "penalty", lambda self, model, done: torch.tensor(math.nan))
    with pytest.raises(
        UserError, match=r"^step 1: the penalty bregman is nan; set train.on_nan: skip to skip such steps$"
    ):
        list(running.steps())


def test_a_run_that_really_diverges(recipe: Path, tmp_path: Path) -> None:
    more = ["optimizer.lr=1e25", "train.warmup=0", "train.clip=null", "regularizers=[]"]
    running = start_training(read_recipe(recipe, more), tmp_path / "run")
    with pytest.raises(UserError, match=r"step \d: the (loss|gradient) of .* is "):
        list(running.steps())
    assert all(torch.isfinite(tensor).all() for tensor in running.session.model.state_dict().values())
    checkpoint = newest(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    assert json.loads((checkpoint / "state.json").read_text())["step"] == running.session.step


# --- out of memory ----------------------------------------------------------------------------------------------------
SHORT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried ..."
    ),
    MemoryError(),
]


@pytest.mark.parametrize("error", SHORT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_out_of_memory_in_a_step(
    recipe: Path, straight: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    running = start_training(read_recipe(recipe), tmp_path / "run")
    real = MultiTaskModel.run

    def run(self: MultiTaskModel, stream: Any) -> Any:
        if running.session.step == 4:
            raise error
        return real(self, stream)

    monkeypatch.setattr(MultiTaskModel, "run", run)
    message = r"^step 4: out of memory on cpu with a batch of \d\d+ tokens; lower train.batch_size \(it is 6\) .*step-3"
    with pytest.raises(UserError, match=message):
        list(running.steps())
    monkeypatch.undo()
    list(start_training(read_recipe(recipe), tmp_path / "run", resume=True).steps())
    assert ending(tmp_path / "run") == straight


def test_out_of_memory_in_an_evaluation(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    running = start_training(read_recipe(recipe), tmp_path / "run")
    steps = running.steps()
    next(steps)
    monkeypatch.setattr("polytask.runs.score.evaluate", short)
    with pytest.raises(UserError, match=r"^step 3: out of memory on cpu after its gradient was computed"):
        list(steps)
    with pytest.raises(UserError, match=r"^out of memory on cpu in the evaluation before the first step"):
        list(start_training(read_recipe(recipe), tmp_path / "other").steps())
    assert newest(tmp_path / "run" / "checkpoints") == tmp_path / "run" / "checkpoints" / "step-2"


def test_other_errors_are_not_taken_for_it(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> None:
        raise RuntimeError("shapes do not fit")

    running = start_training(read_recipe(recipe), tmp_path / "run")
    monkeypatch.setattr(MultiTaskModel, "run", wrong)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        list(running.steps())
