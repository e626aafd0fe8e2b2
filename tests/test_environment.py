"""What a run ran on."""

import pytest
import torch

from polytask import UserError
from polytask.environment import environment, peak_memory, pick_device


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
    with pytest.raises(UserError, match="not a device torch knows"):
        pick_device("abacus")
