"""Sizes are counted before memory is taken for them."""

from pathlib import Path

import pytest
import torch
from torch import nn

from polytask.encoders.bert import Bert, BertShape
from polytask.pretrained.limits import AtMost, check_parameters, most_parameters, num_parameters
from polytask.pretrained.weights import hugging_face_name, tensor_shapes
from polytask.types import UserError

SHAPES = [
    BertShape(layers=1, hidden=4, heads=1, ffn=8, vocabulary=9, positions=5),
    BertShape(layers=3, hidden=6, heads=2, ffn=5, vocabulary=11, positions=7, segments=3),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_counted_parameters_are_those_of_the_encoder(shape: BertShape) -> None:
    parameters = dict(Bert(shape).named_parameters())
    assert num_parameters(shape) == sum(p.numel() for p in parameters.values())
    assert tensor_shapes(shape) == {hugging_face_name(name): tuple(p.shape) for name, p in parameters.items()}


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:      64 kB\n")
    (tmp_path / "max").write_text("max\n")
    assert most_parameters(tmp_path / "meminfo", tmp_path / "max") == 64 * 1024 * 3 // 4 // 4
    (tmp_path / "max").write_text("4096\n")
    assert most_parameters(tmp_path / "meminfo", tmp_path / "max") == 4096 * 3 // 4 // 4
    assert most_parameters(tmp_path / "none", tmp_path / "none") > 10**6


def test_an_encoder_beyond_the_memory_is_refused() -> None:
    check_parameters(SHAPES[0], "here")
    with pytest.raises(UserError, match=r"here: an encoder of this shape has 17,\d+,.* parameters .*choose smaller"):
        check_parameters(BertShape(layers=1000, hidden=65536, heads=1, ffn=1), "here")


def test_modules_are_created_up_to_a_limit() -> None:
    with AtMost(10 * 10 + 10, "too large"):
        nn.Linear(10, 10)
    with pytest.raises(UserError, match="too large"), AtMost(10 * 10 + 9, "too large"):
        nn.Linear(10, 10)
    with pytest.raises(UserError, match="too large"), AtMost(10, "too large"):
        torch.empty(2**40, 2**20)  # no memory is asked for
    with pytest.raises(UserError, match="too large"), AtMost(10, "too large"):
        torch.zeros((3, 4))
    with pytest.raises(UserError, match="too large"), AtMost(10, "too large"):
        torch.randn(size=(3, 4))
