"""Unsupervised SimCSE against numbers worked out by hand and the formula written out."""

import math

import pytest
import torch

from polytask.heads import simcse
from polytask.heads.simcse import SimcseHead
from polytask.stream import Encoded, Layout
from polytask.types import LabelSpace

TEXT = LabelSpace("text", vocabulary=9)
NO_LABELS = torch.zeros(0)


def encoded(vectors: list[list[float]]) -> Encoded:
    count = len(vectors)
    cu = torch.arange(count + 1, dtype=torch.int32)
    layout = Layout(cu, (1,) * count, ((0, count),), ((0, count),))
    return Encoded(torch.tensor(vectors), layout, 0, lambda x: x)


def test_by_hand() -> None:
    """Two texts at right angles, each with a copy twice as long: cos 1 with its own, 0 with the other."""
    head = SimcseHead("t", TEXT, 2, temperature=0.5, pooling="first")
    outputs = head(encoded([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 6.0]]))
    expected = math.log(1 + math.exp(-2))
    assert head.surprise(outputs).flatten().tolist() == pytest.approx([expected, 1, expected, 1])
    assert head.loss(outputs, NO_LABELS).item() == pytest.approx(expected)
    # The second copies are swapped: each text is closer to the other's copy.
    crossed = head(encoded([[1.0, 0.0], [0.0, 6.0], [0.0, 3.0], [2.0, 0.0]]))
    assert head.loss(crossed, NO_LABELS).item() == pytest.approx(2 + expected)


def test_texts_that_are_all_alike_are_lost_among_each_other() -> None:
    head = SimcseHead("t", TEXT, 2, pooling="first")
    assert head.loss(head(encoded([[1.0, 1.0]] * 12)), NO_LABELS).item() == pytest.approx(math.log(6), abs=1e-5)


def test_the_formula_written_out_and_its_gradient() -> None:
    torch.manual_seed(0)
    head = SimcseHead("t", TEXT, 4)
    vectors = torch.randn(5, 2, 4, dtype=torch.float64)

    def loss(raw: torch.Tensor) -> torch.Tensor:
        return head.loss(raw / raw.norm(dim=-1, keepdim=True), NO_LABELS)

    total = 0.0
    for i in range(5):
        cos = [torch.cosine_similarity(vectors[i, 0], vectors[j, 1], dim=0) / 0.05 for j in range(5)]
        total += (torch.logsumexp(torch.stack(cos), 0) - cos[i]).item()
    assert loss(vectors).item() == pytest.approx(total / 5, rel=1e-10)
    assert torch.autograd.gradcheck(loss, vectors.requires_grad_())


def test_a_whole_split_is_compared_in_equal_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = SimcseHead("t", TEXT, 4)
    outputs = torch.nn.functional.normalize(torch.randn(10, 2, 4), dim=-1)
    monkeypatch.setattr(simcse, "MAX_BLOCK", 4)
    expected = torch.cat([head._nce(block) for block in (outputs[:4], outputs[4:7], outputs[7:])])
    torch.testing.assert_close(head.surprise(outputs)[:, 0], expected)
