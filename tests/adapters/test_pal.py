"""PAL against the formula written out, sequence by sequence."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from polytask.adapters.base import AdapterContext
from polytask.adapters.pal import Pal, PalLayer
from polytask.encoders.attention import attend
from polytask.kernels.fused.pal import padded_branch
from polytask.text.packing import Packer, Part
from polytask.types import UserError

CONTEXT = AdapterContext(("a", "b"), layers=2, hidden=8, heads=2, ffn=16, dropout=0.1, attend=attend)


@pytest.mark.parametrize("gelu", [False, True])
def test_the_branch_is_the_papers(gelu: bool) -> None:
    torch.manual_seed(0)
    pal = Pal(CONTEXT, size=6, heads=3, gelu=gelu)
    for parameter in pal.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    parts = [Part("a", [(np.arange(5, 9),)]), Part("b", [(np.arange(5, 7),), (np.arange(5, 11),)])]
    layout = Packer(("a", "b"), 2, 3, 16).pack(parts).layout
    x = torch.randn(sum(layout.lengths), 8)
    layer = pal.layer(1)
    assert isinstance(layer, PalLayer)
    got = layer.parallel(x, layout)
    shared = pal.projections[0]
    for s, task in enumerate((0, 1, 1)):
        rows = slice(int(layout.cu_seqlens_S1[s]), int(layout.cu_seqlens_S1[s + 1]))
        z = x[rows] @ shared.down.weights[task].T + shared.down.biases[task]
        weights, biases = layer.query_key_value.weights[task].split(6), layer.query_key_value.biases[task].split(6)
        q, k, v = ((z @ w.T + b).view(-1, 3, 2).transpose(0, 1) for w, b in zip(weights, biases, strict=True))
        mixed = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(2), -1) @ v
        out = mixed.transpose(0, 1).reshape(-1, 6) @ shared.up.weights[task].T + shared.up.biases[task]
        torch.testing.assert_close(got[rows], F.gelu(out) if gelu else out, atol=1e-5, rtol=1e-5)


def test_projections_are_shared_by_layers_and_saved_once() -> None:
    shared, own = Pal(CONTEXT, size=6, heads=3), Pal(CONTEXT, size=6, heads=3, shared_projections=False)
    assert sum("projections" in key for key in shared.state_dict()) == 8  # two tasks, two maps, weight and bias
    assert sum("projections" in key for key in own.state_dict()) == 16
    pointers = [t.data_ptr() for t in shared.state_dict().values()]
    assert len(set(pointers)) == len(pointers)


def test_starts_silent_but_learns() -> None:
    pal = Pal(CONTEXT, size=6, heads=3)
    layout = Packer(("a", "b"), 2, 3, 16).pack([Part("a", [(np.arange(5, 9),)])]).layout
    layer = pal.layer(0)
    out = layer.parallel(torch.randn(sum(layout.lengths), 8), layout)
    assert out is not None
    assert torch.equal(out, torch.zeros_like(out))
    out.sum().backward()
    assert pal.projections[0].up.weights[0].grad.abs().sum() > 0


def test_v_d_starts_from_a_normal_distribution_with_the_deviation() -> None:
    """As in the authors' code, with the deviation of the other weights; the model is another one from the start."""
    torch.manual_seed(0)
    pal = Pal(CONTEXT, size=600, heads=3, deviation=0.02)
    starts = torch.stack([weight.detach() for weight in pal.projections[0].up.weights])
    assert starts.std().item() == pytest.approx(0.02, rel=0.05)
    assert abs(starts.mean().item()) < 5 * 0.02 / math.sqrt(starts.numel())
    assert not torch.equal(starts[0], starts[1])
    assert (pal.plain_at_start, Pal(CONTEXT, size=6, heads=3).plain_at_start) == (False, True)
    layer = pal.layer(0).eval()
    out = layer.parallel(torch.randn(sum(LONG.lengths), 8), LONG)
    assert out is not None
    assert out.abs().max() > 0


def test_heads_must_divide_the_size() -> None:
    with pytest.raises(UserError, match="size must be a multiple of heads, found size 326 and 12 heads"):
        Pal(CONTEXT, size=326)


def random_pal(attention_dropout: float) -> Pal:
    torch.manual_seed(0)
    pal = Pal(CONTEXT, size=6, heads=3, attention_dropout=attention_dropout)
    for parameter in pal.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return pal


LONG = Packer(("a", "b"), 2, 3, 16).pack([Part("b", [(np.arange(5, 19),)] * 4)]).layout


@pytest.mark.parametrize("padded", [False, True])
def test_attention_dropout_keeps_the_mean_and_is_for_training_only(padded: bool) -> None:
    """Also in the padded form. The branch is linear in the attention weights, so its mean is that without."""
    layer, plain = random_pal(0.3).layer(1), random_pal(0.0).layer(1)
    assert isinstance(layer, PalLayer)
    x = torch.randn(sum(LONG.lengths), 8)

    def branch(of: Any) -> torch.Tensor:
        out: torch.Tensor = padded_branch(of, x, LONG, 1) if padded else of.parallel(x, LONG)
        return out

    with torch.no_grad():
        exact = branch(plain)
        torch.testing.assert_close(branch(layer.eval()), exact, atol=1e-5, rtol=1e-5)
        drawn = torch.stack([branch(layer.train()) for _ in range(600)])
    assert not torch.equal(drawn[0], drawn[1])
    error = (drawn.mean(0) - exact) / (drawn.std(0) / math.sqrt(len(drawn)))
    assert error.abs().mean() < 1.2  # 0.8 of a standard error is expected; a wrong scale is many of them


@pytest.mark.parametrize("padded", [False, True])
def test_attention_dropout_drops_weights_of_each_head_and_scales_the_rest(padded: bool) -> None:
    """With V_E = 0 every attention weight is 1/L and every value the bias, so an output counts the weights it kept."""
    share, heads, length = 0.25, 3, 16
    layer = random_pal(share).layer(0)
    assert isinstance(layer, PalLayer)
    (projections,) = layer.projections
    with torch.no_grad():
        for parameter in (*projections.down.parameters(), *projections.up.parameters()):
            parameter.zero_()
        torch.nn.init.eye_(projections.up.weights[1])
        layer.query_key_value.biases[1].copy_(torch.ones(18))
        x = torch.randn(sum(LONG.lengths), 8)
        out = padded_branch(layer, x, LONG, 1) if padded else layer.parallel(x, LONG)
    kept = out[:, :6].view(-1, heads, 2) * (length * (1 - share))
    torch.testing.assert_close(kept, kept.round(), atol=1e-3, rtol=0)  # whole numbers of weights were kept
    assert torch.equal(kept[..., 0].round(), kept[..., 1].round())  # the same weights for all of a head
    assert not torch.equal(kept[:, 0].round(), kept[:, 1].round())  # other weights for another head
    expected, error = length * (1 - share), math.sqrt(length * share * (1 - share) / kept[..., 0].numel())
    assert abs(kept[..., 0].mean().item() - expected) < 5 * error


def test_attention_dropout_is_drawn_from_torchs_generator() -> None:
    """A step is repeated or resumed by its seed."""
    layer = random_pal(0.5).layer(0)
    x = torch.randn(sum(LONG.lengths), 8)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(layer.parallel(x, LONG))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_attention_dropout_must_be_a_share(share: float) -> None:
    with pytest.raises(UserError, match=r"recipe: adapter: attention_dropout: must be in \[0, 1\), found"):
        Pal(CONTEXT, attention_dropout=share)
