"""The forms of the bi head, against the formula written out."""

import pytest
import torch

from polytask.heads.bi import BiHead
from polytask.stream import Encoded, Layout
from polytask.types import YES_NO

U = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
V = torch.tensor([[4.0, 0.0], [-1.0, 1.0]])


def encoded() -> Encoded:
    """Two pairs of one-token sequences, u and v in turn."""
    hidden = torch.stack((U, V), dim=1).flatten(0, 1)
    cu = torch.arange(5, dtype=torch.int32)
    return Encoded(hidden, Layout(cu, (1, 1, 1, 1), ((0, 4),), ((0, 4),)), 0, lambda x: x)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("concat", torch.cat((U, V), -1)),
        ("difference", torch.cat((U, V, (U - V).abs()), -1)),
        ("product", torch.cat((U, V, (U - V).abs(), U * V), -1)),
    ],
)
def test_forms(form: str, expected: torch.Tensor) -> None:
    head = BiHead("t", YES_NO, 2, form=form, pooling="first")  # type: ignore[arg-type]
    torch.testing.assert_close(head.features(encoded()), expected)
