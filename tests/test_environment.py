"""What a run ran on."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from polytask import UserError
from polytask.environment import environment, multiplies_bf16, peak_memory, pick_device, usable_cores


def test_names_versions_and_hardware() -> None:
    said = environment(torch.device("cpu"))
    assert said["device"] == "cpu"
    assert said["cores"] >= 1
    assert said["torch"].startswith(torch.__version__.partition("+")[0])
    assert said["cpu"]


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory(torch.device("cpu"))
    held = torch.ones(60_000_000)  # 240 MB
    assert peak_memory(torch.device("cpu")) >= before
    assert peak_memory(torch.device("cpu")) > held.numel() * 4


def test_devices() -> None:
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="must be auto, cpu, cuda or cuda:NUMBER"):
        pick_device("abacus")
    with pytest.raises(UserError, match="device meta: must be auto, cpu"):
        pick_device("meta")  # torch knows it: its tensors have shapes and no numbers


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


def test_bf16_is_multiplied_where_the_processor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for said, expected in {
        "flags\t\t: fpu avx512f avx512_bf16 vme": True,
        "flags\t\t: fpu avx2 avx512f": False,
        "Features\t: fp asimd bf16 i8mm": True,
        "Features\t: fp asimd": False,
    }.items():
        monkeypatch.setattr(Path, "read_text", lambda self, encoding, said=said: f"processor\t: 0\n{said}\n")
        assert multiplies_bf16(cpu) == expected


WITH_AND_WITHOUT = """
import resource, torch
from polytask.environment import keep_freed_memory

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
    assert int(after) < int(before) // 10
