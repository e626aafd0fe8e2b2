"""PAL's branch with padded sizes."""

import numpy as np
import pytest
import torch

from polytask.adapters.base import AdapterContext
from polytask.adapters.pal import Pal, PalLayer
from polytask.encoders.attention import attend
from polytask.kernels.fused.pal import padded_branch
from polytask.text.packing import Packer, Part

CONTEXT = AdapterContext(("a", "b"), layers=2, hidden=8, heads=2, ffn=16, dropout=0.1, attend=attend)


@pytest.mark.parametrize(("size", "heads"), [(34, 2), (16, 2), (12, 12)])
def test_it_is_the_branch_with_other_sizes(size: int, heads: int) -> None:
    """Outputs, gradients, and projections that two layers share."""
    torch.manual_seed(0)
    pal = Pal(CONTEXT, size=size, heads=heads)
    for parameter in pal.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    layout = Packer(("a", "b"), 2, 3, 16).pack([Part("b", [(np.arange(5, 7),), (np.arange(5, 11),)])]).layout
    x = torch.randn(sum(layout.lengths), 8, requires_grad=True)

    def both(padded: bool) -> list[torch.Tensor]:
        layers = [layer for layer in pal.layers if isinstance(layer, PalLayer)]
        outs = [padded_branch(layer, x, layout, 1) if padded else layer.parallel(x, layout) for layer in layers]
        wanted = [x, *pal.task_parameters("b")]
        return [*outs, *torch.autograd.grad(outs, wanted, [torch.ones_like(out) for out in outs])]

    for one, two in zip(both(True), both(False), strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
