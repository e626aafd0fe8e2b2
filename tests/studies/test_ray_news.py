"""What the engine makes of the answers and errors of Ray, which a fake gives here."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polytask.studies.ray_engine import RETRIES, RayEngine, _Seat
from polytask.studies.ray_worker import Answer
from polytask.types import UserError


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class RayActorError(RayError):
    pass


class OutOfMemoryError(RayError):
    pass


class FakeRay:
    """Calls are their results; one that is an error is raised."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, RayActorError=RayActorError)

    def __init__(self) -> None:
        self.killed: list[Any] = []

    def get(self, call: Any, timeout: float | None = None) -> Any:
        if isinstance(call, Exception):
            raise call
        return call

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


class Actor:
    """A worker whose methods answer as given; those that are called are noted."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.called = answers, list[str]()

    def __getattr__(self, name: str) -> Any:
        def remote(*_: Any) -> Any:
            self.called.append(name)
            answer = self.answers.get(name)
            return answer.pop(0) if isinstance(answer, list) else answer

        return SimpleNamespace(remote=remote)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> RayEngine:
    made = object.__new__(RayEngine)
    made._ray, made._idle, made._running, made._lost = FakeRay(), [], [], {}
    monkeypatch.setattr(made, "_ask_for_seat", lambda job: made._running.append(_Seat(Actor(), job)))
    return made


def seat(engine: RayEngine, folder: Path, call: Any, **answers: Any) -> _Seat:
    """A worker with a cell, whose pending call has this result."""
    cell = SimpleNamespace(key="k", variant="cosine", seed=0, done=False)
    job: Any = SimpleNamespace(cell=cell, folder=folder / "run", log=folder / "log")
    made = _Seat(Actor(**answers), job, call, node="node-2")
    engine._running.append(made)
    return made


def test_a_cell_whose_memory_ran_out_runs_again_a_few_times(engine: RayEngine, tmp_path: Path, caplog: Any) -> None:
    for count in range(1, RETRIES + 1):
        assert engine._news(seat(engine, tmp_path, OutOfMemoryError("memory was low\nmore"))) is None
        assert f"(OutOfMemoryError: memory was low); running it again ({count} of {RETRIES})" in caplog.text
    last = engine._news(seat(engine, tmp_path, OutOfMemoryError("memory was low")))
    assert last is not None
    assert last.exit_code is not None
    assert "its worker was lost 4 times, the last time on node-2: OutOfMemoryError: memory was low" in str(last.error)
    assert len(engine._running) == RETRIES


def test_a_worker_that_is_given_up_removes_its_files(engine: RayEngine, tmp_path: Path) -> None:
    lost = seat(engine, tmp_path, Answer(3, exit_code=-9))
    assert engine._news(lost) is None
    assert lost.actor.called == ["stop"]
    assert engine._ray.killed == [lost.actor]


def test_a_node_that_dies_after_its_files_were_fetched_costs_nothing(engine: RayEngine, tmp_path: Path) -> None:
    ended = Answer(5, 0, "the log", (("a/weights", 4),))
    one = seat(engine, tmp_path, ended, read=[b"we", b"ll"], forget=RayActorError("it died"))
    progress = engine._news(one)
    assert progress is not None
    assert (progress.exit_code, progress.error) == (0, None)
    assert (tmp_path / "run" / "a" / "weights").read_bytes() == b"well"
    assert one.actor.called == ["read", "read", "forget"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("weights", r"node-2: weights became smaller while it was fetched \(4 bytes, now 2\)"),
        ("../weights", "node-2: this node sends a file that is not in the run's folder: ../weights"),
    ],
)
def test_files_that_cannot_be_fetched(engine: RayEngine, tmp_path: Path, name: str, message: str) -> None:
    one = seat(engine, tmp_path, Answer(5, 0, "", ((name, 4),)), read=[b"we", b""])
    with pytest.raises(UserError, match=message):
        engine._news(one)
    assert not (tmp_path / "run").exists()
