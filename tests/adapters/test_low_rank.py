"""Low-rank layers against their formula."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polytask.adapters.base import AdapterContext
from polytask.adapters.low_rank import LowRank
from polytask.adapters.per_task import Projections
from polytask.stream import Layout


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_low_rank(gelu: bool, shared: bool, context: AdapterContext, layout: Layout, shaken: Any) -> None:
    adapter = shaken(LowRank(context, size=3, gelu=gelu, shared_projections=shared))
    x = torch.randn(sum(layout.lengths), 8)
    for index in range(context.layers):
        got = adapter.layer(index).parallel(x, layout)
        p = adapter.projections if shared else adapter.projections[index]
        assert isinstance(p, Projections)
        for k, rows in enumerate(layout.token_ranges):
            narrow = F.linear(x[slice(*rows)], p.down.weights[k], p.down.biases[k])
            expected = F.linear(F.gelu(narrow) if gelu else narrow, p.up.weights[k], p.up.biases[k])
            torch.testing.assert_close(got[slice(*rows)], expected, atol=1e-5, rtol=1e-5)


def test_every_layer_has_its_own_projections_unless_they_are_shared(context: AdapterContext) -> None:
    own, shared = LowRank(context, size=3), LowRank(context, size=3, shared_projections=True)
    assert isinstance(own.projections, nn.ModuleList)
    assert len(own.projections) == context.layers
    assert len(LowRank(context, size=3, layers=1).projections) == 1
    # The names of models that were saved when projections were always shared.
    assert set(shared.state_dict()) == {
        f"projections.{way}.{kind}.{k}" for way in ("down", "up") for kind in ("weights", "biases") for k in (0, 1)
    }
