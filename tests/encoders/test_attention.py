"""The definition of attention against attention written out for one sequence at a time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from polytask.encoders.attention import attend
from polytask.fused_forms import definition_of
from polytask.stream import Layout, Stream

MakeStream = Callable[..., Stream]
LENGTHS = [3, 1, 16, 15, 2, 8, 1]
definition = definition_of(attend)


def layout_of(make_stream: MakeStream, lengths: list[int]) -> Layout:
    return make_stream([torch.zeros(length, dtype=torch.long) for length in lengths]).layout


def random_qkv(tokens: int, heads: int = 2, size: int = 4, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (tokens, heads, size)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def written_out(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, lengths: list[int]) -> Tensor:
    outs = []
    for q, k, v in zip(*(t.split(lengths) for t in (q_THd, k_THd, v_THd)), strict=True):
        scores_HLL = torch.einsum("lhd,mhd->hlm", q, k) / q.shape[-1] ** 0.5
        outs.append(torch.einsum("hlm,mhd->lhd", scores_HLL.softmax(-1), v))
    return torch.cat(outs)


@pytest.mark.parametrize("lengths", [LENGTHS, [5], [4, 4, 4], [1], [1, 1, 1], [2, 40, 3, 30, 29]])
def test_values_and_gradients(make_stream: MakeStream, lengths: list[int]) -> None:
    qkv = random_qkv(sum(lengths))
    weights = torch.randn(sum(lengths), 2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = definition(*qkv, layout_of(make_stream, lengths))
    theirs = written_out(*qkv, lengths)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    ours_grads = torch.autograd.grad((ours * weights).sum(), qkv)
    for got, expected in zip(ours_grads, torch.autograd.grad((theirs * weights).sum(), qkv), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)


def test_gradcheck(make_stream: MakeStream) -> None:
    layout = layout_of(make_stream, [3, 1, 4])
    qkv = random_qkv(8, heads=1, size=2)
    assert torch.autograd.gradcheck(lambda q, k, v: definition(q, k, v, layout), qkv)


def test_the_gradient_has_a_gradient(make_stream: MakeStream) -> None:
    layout = layout_of(make_stream, [3, 1])
    qkv = random_qkv(4, heads=1, size=2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda q, k, v: definition(q, k, v, layout), qkv)


def test_no_gradient_crosses_a_border(make_stream: MakeStream) -> None:
    qkv = random_qkv(sum(LENGTHS))
    pieces = definition(*qkv, layout_of(make_stream, LENGTHS)).split(LENGTHS)
    for grad in torch.autograd.grad(pieces[2].sum(), qkv):
        others = [piece for s, piece in enumerate(grad.split(LENGTHS)) if s != 2]
        assert not torch.cat(others).any()


def test_huge_values_in_one_sequence_leave_the_others_alone(make_stream: MakeStream) -> None:
    qkv = [t.detach().float() for t in random_qkv(sum(LENGTHS))]
    layout = layout_of(make_stream, LENGTHS)
    before = definition(*qkv, layout).split(LENGTHS)
    qkv[2].split(LENGTHS)[3].fill_(1e30)
    after = definition(*qkv, layout).split(LENGTHS)
    for s, (one, two) in enumerate(zip(before, after, strict=True)):
        assert torch.equal(one, two) == (s != 3)


def test_dropout_drops_weights_and_keeps_the_mean(make_stream: MakeStream) -> None:
    q, k, v = (t.detach() for t in random_qkv(80, heads=64))
    torch.manual_seed(0)
    out_THd = definition(q, k, torch.ones_like(v), layout_of(make_stream, [40, 40]), dropout=0.5)
    assert float(out_THd.std()) > 0.1  # without dropout every value is 1: the weights of a row sum to 1
    assert abs(float(out_THd.mean()) - 1) < 0.02
