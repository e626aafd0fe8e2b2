"""What a run ran on."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from polytask import UserError, machine
from polytask.machine import (
    commit,
    environment,
    multiplies_bf16,
    peak_memory,
    pick_device,
    pick_precision,
    pick_threads,
    reset_peak_memory,
    usable_cores,
)


def test_names_versions_and_hardware() -> None:
    said = environment(torch.device("cpu"))
    assert said["device"] == "cpu"
    assert said["cores"] >= 1
    assert said["torch"].startswith(torch.__version__.partition("+")[0])
    assert said["cpu"]


def test_no_commit_is_asked_for_outside_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed inside a checkout of something else, git would tell that one's commit, and may run its programs."""

    def start(*command: object, **options: object) -> None:
        raise AssertionError(f"started {command}")

    (tmp_path / ".git").mkdir()
    installed = tmp_path / ".venv" / "lib" / "site-packages" / "polytask" / "environment.py"
    monkeypatch.setattr("polytask.machine.__file__", str(installed))
    monkeypatch.setattr(subprocess, "run", start)
    assert commit.__wrapped__() is None


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory(torch.device("cpu"))
    held = torch.ones(60_000_000)  # 240 MB
    assert peak_memory(torch.device("cpu")) >= before
    assert peak_memory(torch.device("cpu")) > held.numel() * 4


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can measure again")
def test_the_peak_of_an_earlier_run_is_forgotten() -> None:
    held = torch.ones(60_000_000)
    before = peak_memory(torch.device("cpu"))
    del held
    reset_peak_memory(torch.device("cpu"))
    assert peak_memory(torch.device("cpu")) < before - 200_000_000


def test_devices() -> None:
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="must be auto, cpu, cuda or cuda:NUMBER"):
        pick_device("abacus")
    with pytest.raises(UserError, match="device meta: must be auto, cpu"):
        pick_device("meta")  # torch knows it: its tensors have shapes and no values


def test_devices_that_the_machine_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device cuda:7: this machine has no CUDA device"):
        pick_device("cuda:7")
    assert pick_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="device cuda:7: the last CUDA device of this machine is cuda:0; use that, or"):
        pick_device("cuda:7")
    assert pick_device("cuda:0") == torch.device("cuda:0")
    assert pick_device("auto") == torch.device("cuda")


@pytest.mark.parametrize(
    ("said", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("", 64), ("9900000 100000", 64)]
)
def test_a_containers_share_limits_the_cores(
    said: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    (tmp_path / "cpu.max").write_text(said)
    assert usable_cores(tmp_path / "cpu.max") == cores
    assert usable_cores(tmp_path / "none") == 64


def test_bf16_is_used_where_the_processor_supports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for said, expected in {
        "flags\t\t: fpu avx512f avx512_bf16 vme": True,
        "flags\t\t: fpu avx2 avx512f": False,
        "Features\t: fp asimd bf16 i8mm": True,
        "Features\t: fp asimd": False,
    }.items():
        monkeypatch.setattr(Path, "read_text", lambda self, encoding, said=said: f"processor\t: 0\n{said}\n")
        assert multiplies_bf16(cpu) == expected


def test_auto_is_bf16_only_where_the_device_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cpu = torch.device("cpu")
    for multiplies, chosen in {True: "bf16", False: "float32"}.items():
        monkeypatch.setattr("polytask.machine.multiplies_bf16", lambda device, answer=multiplies: answer)
        assert pick_precision("auto", cpu) == chosen
        assert pick_precision("float32", cpu) == "float32"
    assert not caplog.messages
    assert pick_precision("bf16", cpu) == "bf16"  # as asked, with a warning
    assert "precision: auto" in caplog.text


def test_fewer_threads_only_where_they_are_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 12)
    monkeypatch.setattr("polytask.machine.usable_cores", lambda: 8)
    free = {8: 1.0, 4: 1.6, 2: 3.0, 1: 5.8}
    noisy = {8: 1.0, 4: 0.8, 2: 0.9, 1: 1.1}
    assert pick_threads(cpu, free.__getitem__) == pick_threads(cpu, noisy.__getitem__) == 8
    assert not caplog.messages
    shared = {8: 9.0, 4: 6.0, 2: 2.0, 1: 3.0}
    assert pick_threads(cpu, shared.__getitem__) == 2
    assert "using 2 of 8 CPU threads, which is 4.5 times as fast here" in caplog.text
    assert pick_threads(torch.device("cuda"), shared.__getitem__) == 8


def test_measuring_threads_changes_neither_their_number_nor_random_draws() -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    assert 1 <= pick_threads(torch.device("cpu")) <= threads
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), before)


WITH_AND_WITHOUT = """
import resource, torch
from polytask.machine import keep_freed_memory

def pages():
    for _ in range(3):
        torch.zeros(15_000_000).add_(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.zeros(15_000_000).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = pages()
print(keep_freed_memory(), before, pages())
"""


def test_freed_memory_is_used_again() -> None:
    """In a process of its own, whose memory is then like that for good."""
    done = subprocess.run([sys.executable, "-c", WITH_AND_WITHOUT], capture_output=True, text=True, check=True)
    worked, before, after = done.stdout.split()
    if worked == "False":
        pytest.skip("this C library has no mallopt")
    assert int(before) > 100  # of 2 MB at most
    assert int(after) < int(before) // 4  # at most one of the five tensors gets new pages


def test_building_an_optimizer_does_not_import_the_compiler() -> None:
    program = (
        "import sys, torch\n"
        "from polytask.machine import skip_compiler_import\n"
        "skip_compiler_import()\n"
        "weight = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.AdamW([weight], lr=0.1)\n"
        "optimizer.zero_grad()\n"
        "optimizer.load_state_dict(optimizer.state_dict())\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_warm_up_starts_nothing_on_the_cpu() -> None:
    machine.start_warm_up(torch.device("cpu"))
    machine.wait_for_warm_up()
    assert machine._warm_up is None
