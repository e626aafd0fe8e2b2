"""The header of a safetensors file is read without its tensors; damaged files and NaN are refused by name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from polytask.pretrained.header import Entry, check_finite, read_header
from polytask.types import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tensors = {
        "a": torch.zeros(2, 3),
        "b": torch.ones(4, dtype=torch.bfloat16),
        "c": torch.zeros((), dtype=torch.int64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_shapes_and_types_are_read(file: Path) -> None:
    assert read_header(file) == {"a": Entry((2, 3), "F32"), "b": Entry((4,), "BF16"), "c": Entry((), "I64")}


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b[:4], lambda b: b"", lambda b: b"\xff" * 8 + b[8:]])
def test_a_damaged_file_is_named_with_what_to_do(file: Path, change: object) -> None:
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(UserError, match=r"model\.safetensors: the safetensors file is damaged .*; copy it again"):
        read_header(file, "copy it again")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.safetensors: the safetensors file is damaged"):
        read_header(tmp_path / "none.safetensors")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_that_are_not_finite_are_refused_by_tensor(value: float, dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 3, dtype=dtype)
    check_finite(Path("file"), "a.weight", tensor)
    check_finite(Path("file"), "a.weight", tensor[:0])
    tensor[1, 2] = value
    with pytest.raises(UserError, match=r"file: tensor a\.weight contains NaN or infinite values"):
        check_finite(Path("file"), "a.weight", tensor)
