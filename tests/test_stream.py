"""Layouts: what can be read of that of a captured step, prefixes, and padded batches."""

from dataclasses import replace

import pytest
import torch

from polytask.stream import Layout
from polytask.types import UserError


def layout(length_bound: int | None = 8) -> Layout:
    return Layout(torch.tensor([0, 3, 8, 12]), (3, 5, 4), ((0, 2), (2, 3)), ((0, 8), (8, 12)), length_bound)


@pytest.mark.parametrize("name", ["lengths", "real_tokens", "groups", "buckets"])
def test_lengths_cannot_be_read_or_used(name: str) -> None:
    assert getattr(layout(), name)
    with pytest.raises(RuntimeError, match=r"layout\.lengths is not known in a captured step.*train\.capture: false"):
        getattr(layout().for_capture(), name)


def test_everything_else_is_the_same() -> None:
    whole, captured = layout(), layout().for_capture()
    assert isinstance(captured, Layout)
    for name in (
        "sequence_ranges",
        "token_ranges",
        "length_bound",
        "max_length",
        "static_shape",
        "only_task",
        "equal_tasks",
    ):
        assert getattr(captured, name) == getattr(whole, name)
    assert torch.equal(captured.cu_seqlens_S1, whole.cu_seqlens_S1)


@pytest.mark.parametrize("length_bound", [8, None])
def test_a_prefix_moves_every_border(length_bound: int | None) -> None:
    """Filler behind a task's sequences belongs to the task only if the shape is static."""
    filled = replace(layout(length_bound), sequence_ranges=((0, 1), (2, 3)))
    longer = filled.with_prefix(2)
    assert longer.cu_seqlens_S1.tolist() == [0, 5, 12, 18]
    assert longer.lengths == (5, 7, 6)
    assert longer.max_length == (7 if length_bound is None else 10)
    assert longer.token_ranges == (((0, 12) if length_bound else (0, 10)), (12, 18))
    captured = filled.for_capture().with_prefix(2)
    assert torch.equal(captured.cu_seqlens_S1, longer.cu_seqlens_S1)
    with pytest.raises(RuntimeError, match="is not known"):
        _ = captured.lengths


def test_without_a_static_shape_the_maximum_length_is_not_known_either() -> None:
    with pytest.raises(RuntimeError, match="is not known"):
        _ = layout(length_bound=None).for_capture().max_length


def test_a_padded_batch_is_a_stream_of_texts_and_padding() -> None:
    mask_BL = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]])
    found = Layout.from_padding(mask_BL, [0, 2, 2, 2])
    assert found.lengths == (2, 2, 4, 3, 1, 4)
    assert found.cu_seqlens_S1.tolist() == [0, 2, 4, 8, 11, 12, 16]
    assert found.sequence_ranges == ((0, 2), (2, 2), (2, 6))
    assert found.token_ranges == ((0, 4), (4, 4), (4, 16))
    assert Layout.from_padding(mask_BL, 1).token_ranges == ((0, 0), (0, 16))
    assert Layout.from_padding(torch.ones(2, 3)).lengths == (3, 3)


def test_padding_that_is_not_a_stream() -> None:
    with pytest.raises(UserError, match="found it between tokens"):
        Layout.from_padding(torch.tensor([[1, 0, 1]]))
    for tasks in ([1, 0], [0], [0, 1, 1]):
        with pytest.raises(UserError, match="2 indices from 0 on in ascending order"):
            Layout.from_padding(torch.ones(2, 3), tasks)
    with pytest.raises(UserError, match=r"from 0 on .* found \[-1, 0\]"):
        Layout.from_padding(torch.ones(2, 3), [-1, 0])
    for mask in (torch.ones(3), torch.ones(0, 3), torch.ones(2, 1, 3)):
        with pytest.raises(UserError, match="mask_BL: must be a matrix with a row for each text, found the shape"):
            Layout.from_padding(mask)
