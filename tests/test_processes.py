"""The end of a process that was connected to others."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from polytask import connection
from polytask.connection import ProcessLost, lost_processes
from polytask.processes import join_processes
from polytask.types import UserError

PROGRAM = """
import os
from pathlib import Path

from polytask import connection
from polytask.processes import join_processes

def threads():
    return [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]

processes = join_processes()
processes.texts("hello")
import torch._dynamo  # as optimizers do
assert any("gloo" in name for name in threads())
END
assert not any("gloo" in name for name in threads()), threads()
os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the names of threads are read from /proc")
@pytest.mark.parametrize("end", ["processes.leave()", "connection._end()"], ids=["last step", "error"])
def test_no_thread_of_gloo_is_left_at_the_end(end: str, tmp_path: Path) -> None:
    """A thread that frees a tensor while Python ends aborts the process: one in ten runs had failed after its end."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("END", end))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


CONNECT_AGAIN = """
from polytask.processes import join_processes

for number in range(3):
    processes = join_processes()
    assert processes.texts(f"{number} from {processes.rank}") == [f"{number} from 0", f"{number} from 1"]
    alone = processes.leave()
    assert (alone.several, alone.is_main) == (False, processes.rank == 0)
    if processes.is_main:
        processes.tell_others(f"end of {number}")
    else:
        assert processes.told_by_main() == f"end of {number}"
"""


def test_processes_part_and_meet_again(tmp_path: Path) -> None:
    """A program may train several runs; what is said at the end of one is not taken for that of another."""
    program = tmp_path / "program.py"
    program.write_text(CONNECT_AGAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_processes_that_cannot_connect_say_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(connection, "TIMEOUT", timedelta(milliseconds=10))
    with pytest.raises(UserError, match="the 2 processes could not be connected at localhost:1: "):
        join_processes()


WAIT_FOR_ANOTHER = """
import signal, sys

from polytask.processes import join_processes

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # as the command line does
join_processes()
"""


def test_a_signal_ends_a_process_that_waits_for_one_that_never_comes() -> None:
    """The launcher sends SIGTERM if the other one was killed; it kills who does not end within 30 seconds."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = free.getsockname()
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(address[1])}
    waiting = subprocess.Popen([sys.executable, "-c", WAIT_FOR_ANOTHER], env={**os.environ, **environment})
    try:
        while True:  # until it listens, and waits for the other one
            with suppress(subprocess.TimeoutExpired):
                waiting.wait(0.02)
            assert waiting.poll() is None
            with suppress(ConnectionRefusedError), socket.create_connection(address):
                break
        waiting.terminate()
        assert waiting.wait(timeout=25) == -signal.SIGTERM
    finally:
        waiting.kill()
        waiting.wait()


def test_the_error_of_a_lost_process_has_that_of_pytorch() -> None:
    expected = r"has ended .* PyTorch's error: \[gloo\] Connection closed by peer$"
    with pytest.raises(ProcessLost, match=expected), lost_processes():
        raise RuntimeError("[gloo] Connection closed by peer. This is typically caused by others.\nmore")


SEND_TENSORS = """
import torch
from polytask.processes import join_processes

sent = {
    "matrix": torch.arange(6.0).view(2, 3).T, "number": torch.tensor(5), "empty": torch.zeros(0, 4),
    "flags": torch.tensor([True, False]), "half": torch.ones(3, dtype=torch.bfloat16), "state": torch.get_rng_state(),
}
processes = join_processes()
torch.manual_seed(7)
received = processes.from_main(sent if processes.is_main else None)
assert list(received) == list(sent)
for name, tensor in sent.items():
    assert received[name].dtype == tensor.dtype and received[name].shape == tensor.shape
    assert name == "state" or torch.equal(received[name], tensor)
assert len(set(processes.texts(str(received["state"].sum())))) == 1
processes.leave()
"""


def test_tensors_of_the_first_process_arrive_as_they_are(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SEND_TENSORS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
