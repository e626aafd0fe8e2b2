"""The cosine head's maps, against numbers worked out by hand."""

import pytest
import torch

from polytask.heads.cosine import CosineHead
from polytask.stream import Encoded, Layout
from polytask.types import LabelSpace

SCORE = LabelSpace("score", low=0, high=5)


def encoded(u: list[float], v: list[float]) -> Encoded:
    cu = torch.arange(3, dtype=torch.int32)
    return Encoded(torch.tensor([u, v]), Layout(cu, (1, 1), ((0, 2),), ((0, 2),)), 0, lambda x: x)


@pytest.mark.parametrize(
    ("kind", "v", "score"),
    [
        ("linear", [2.0, 0.0], 5.0),
        ("linear", [0.0, 1.0], 2.5),
        ("linear", [-3.0, 0.0], 0.0),
        ("direct", [0.0, 1.0], 0.0),
        ("direct", [1.0, 1.0], 5 / 2**0.5),
        ("sigmoid", [2.0, 0.0], 5 * 0.7310586),
        ("sigmoid", [-2.0, 0.0], 5 * 0.2689414),
    ],
)
def test_maps(kind: str, v: list[float], score: float) -> None:
    head = CosineHead("t", SCORE, 2, map=kind, pooling="first")  # type: ignore[arg-type]
    (prediction,) = head.decode(head(encoded([1.0, 0.0], v)))
    assert prediction.label == pytest.approx(score, abs=1e-5)
