"""A cross head reads both texts in one sequence."""

import numpy as np
import torch

from polytask.heads.cross import CrossHead
from polytask.heads.linear import LinearHead
from polytask.text.packing import Packer, Part


def test_three_texts_are_one_sequence_with_two_segments() -> None:
    texts = (np.array([7, 8]), np.array([9]), np.array([10, 11]))
    stream = Packer(("t",), 2, 3, 16).pack([Part("t", [texts], CrossHead.reading)])
    torch.testing.assert_close(stream.token_ids_T, torch.tensor([2, 7, 8, 3, 9, 3, 10, 11, 3]))
    torch.testing.assert_close(stream.segment_ids_T, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1]))
    torch.testing.assert_close(stream.position_ids_T, torch.arange(9))


def test_a_pair_is_one_sequence_with_two_segments() -> None:
    assert CrossHead.texts == (2, 3, 4, 5, 6, 7, 8)
    assert LinearHead.texts == (1,)
    assert CrossHead.reading == "joined"
    pair = (np.array([7, 8]), np.array([9]))
    stream = Packer(("t",), 2, 3, 16).pack([Part("t", [pair], CrossHead.reading)])
    torch.testing.assert_close(stream.token_ids_T, torch.tensor([2, 7, 8, 3, 9, 3]))
    torch.testing.assert_close(stream.segment_ids_T, torch.tensor([0, 0, 0, 0, 1, 1]))
    torch.testing.assert_close(stream.position_ids_T, torch.arange(6))
