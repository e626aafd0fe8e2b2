"""Low-rank layers against their formula."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polytask.adapters.base import AdapterContext
from polytask.adapters.low_rank import LowRank
from polytask.stream import Layout


@pytest.mark.parametrize("gelu", [False, True])
def test_low_rank(gelu: bool, context: AdapterContext, layout: Layout, shaken: Any) -> None:
    adapter = shaken(LowRank(context, size=3, gelu=gelu))
    x = torch.randn(sum(layout.lengths), 8)
    got = adapter.layer(0).parallel(x, layout)
    p = adapter.projections
    for k, rows in enumerate(layout.token_ranges):
        narrow = F.linear(x[slice(*rows)], p.down.weights[k], p.down.biases[k])
        expected = F.linear(F.gelu(narrow) if gelu else narrow, p.up.weights[k], p.up.biases[k])
        torch.testing.assert_close(got[slice(*rows)], expected, atol=1e-5, rtol=1e-5)
