"""A linear layer on the pooled text."""

import torch

from polytask.heads.linear import LinearHead
from polytask.stream import Encoded, Layout
from polytask.types import LabelSpace


def test_pools_and_maps() -> None:
    """Two sequences of two and one tokens, each pooling worked out by hand."""
    hidden = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 7.0]])
    layout = Layout(torch.tensor([0, 2, 3], dtype=torch.int32), (2, 1), ((0, 2),), ((0, 3),))
    pooled = {
        "first": [[1.0, 2.0], [5.0, 7.0]],
        "mean": [[2.0, 4.0], [5.0, 7.0]],
        "pooler": [[10.0, 20.0], [50.0, 70.0]],
    }
    for pooling, expected in pooled.items():
        head = LinearHead("t", LabelSpace("classes", ("x", "y", "z")), 2, pooling=pooling).eval()  # type: ignore[arg-type]
        out = head(Encoded(hidden, layout, 0, lambda x: 10 * x))
        torch.testing.assert_close(out, torch.tensor(expected) @ head.output.weight.T + head.output.bias)
