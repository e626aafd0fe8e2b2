"""Padded and varlen attention against attention written out for one sequence at a time, and which way is taken."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from polytask.encoders import attention
from polytask.encoders.attention import attend, attend_padded, attend_varlen, varlen_works, widened
from polytask.kernels.cpu_attention import attend_on_cpu
from polytask.kernels.triton_support import TRITON
from polytask.stream import Layout, Stream

MakeStream = Callable[..., Stream]
LENGTHS = [3, 1, 16, 15, 2, 8, 1]


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
    ours = attend_padded(*qkv, layout_of(make_stream, lengths))
    theirs = written_out(*qkv, lengths)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    ours_grads = torch.autograd.grad((ours * weights).sum(), qkv)
    for got, expected in zip(ours_grads, torch.autograd.grad((theirs * weights).sum(), qkv), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)


def test_gradcheck(make_stream: MakeStream) -> None:
    layout = layout_of(make_stream, [3, 1, 4])
    qkv = random_qkv(8, heads=1, size=2)
    assert torch.autograd.gradcheck(lambda q, k, v: attend_padded(q, k, v, layout), qkv)


def test_the_gradient_has_a_gradient(make_stream: MakeStream) -> None:
    layout = layout_of(make_stream, [3, 1])
    qkv = random_qkv(4, heads=1, size=2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda q, k, v: attend_padded(q, k, v, layout), qkv)


def test_no_gradient_crosses_a_border(make_stream: MakeStream) -> None:
    qkv = random_qkv(sum(LENGTHS))
    pieces = attend_padded(*qkv, layout_of(make_stream, LENGTHS)).split(LENGTHS)
    for grad in torch.autograd.grad(pieces[2].sum(), qkv):
        others = [piece for s, piece in enumerate(grad.split(LENGTHS)) if s != 2]
        assert not torch.cat(others).any()


def test_huge_values_in_one_sequence_leave_the_others_alone(make_stream: MakeStream) -> None:
    qkv = [t.detach().float() for t in random_qkv(sum(LENGTHS))]
    layout = layout_of(make_stream, LENGTHS)
    before = attend_padded(*qkv, layout).split(LENGTHS)
    qkv[2].split(LENGTHS)[3].fill_(1e30)
    after = attend_padded(*qkv, layout).split(LENGTHS)
    for s, (one, two) in enumerate(zip(before, after, strict=True)):
        assert torch.equal(one, two) == (s != 3)


def test_dropout_drops_weights_and_keeps_the_mean(make_stream: MakeStream) -> None:
    q, k, v = (t.detach() for t in random_qkv(80, heads=64))
    torch.manual_seed(0)
    out_THd = attend_padded(q, k, torch.ones_like(v), layout_of(make_stream, [40, 40]), dropout=0.5)
    assert float(out_THd.std()) > 0.1  # without dropout every value is 1: the weights of a row sum to 1
    assert abs(float(out_THd.mean()) - 1) < 0.02


def test_the_cpu_takes_the_way_of_products_or_the_padded_one(make_stream: MakeStream) -> None:
    q, k, v = (t.detach().bfloat16() for t in random_qkv(5))
    assert not varlen_works(q, 0.0)
    layout = layout_of(make_stream, [2, 3])
    assert torch.equal(attend(q, k, v, layout), attend_on_cpu(q, k, v, layout.lengths, 0.0))
    q, k, v = (t.detach() for t in random_qkv(300))
    layout = layout_of(make_stream, [300])
    assert torch.equal(attend(q, k, v, layout), attend_padded(q, k, v, layout))


def test_gradients_inside_half_precision_are_those_outside(make_stream: MakeStream) -> None:
    qkv = [t.detach().bfloat16().requires_grad_() for t in random_qkv(9)]
    layout = layout_of(make_stream, [4, 5])
    towards = torch.randn(9, *qkv[0].shape[1:])
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad((attend(*qkv, layout).float() * towards).sum(), qkv)
        total = (attend(*qkv, layout).float() * towards).sum()
    for one, other in zip(inside, torch.autograd.grad(total, qkv), strict=True):
        assert torch.equal(one, other)


def test_short_sequences_take_the_short_way(make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    given: list[object] = []
    monkeypatch.setattr(attention, "short_fits", lambda q_THd, max_length: asked.append(max_length) is None)
    monkeypatch.setattr(attention, "attend_short", lambda *inputs: given.extend(inputs) or inputs[0])
    layout = layout_of(make_stream, [2, 3])
    qkv = random_qkv(5)
    attend(*qkv, layout, 0.1)
    assert asked == [3]
    assert all(one is two for one, two in zip(given[:4], [*qkv, layout.cu_seqlens_S1], strict=True))
    assert given[4:] == [0.1, 3]


@pytest.mark.skipif(not (torch.cuda.is_available() and TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize(
    ("dtype", "length", "dropout", "way"),
    [
        (torch.bfloat16, 128, 0.0, "attend_short"),
        (torch.bfloat16, 128, 0.1, "attend_short"),
        (torch.bfloat16, 129, 0.0, "attend_varlen"),
        (torch.bfloat16, 129, 0.1, "attend_padded"),
        (torch.float32, 129, 0.0, "attend_padded"),
        (torch.float64, 8, 0.0, "attend_padded"),
    ],
)
def test_which_way_cuda_takes(
    make_stream: MakeStream,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    length: int,
    dropout: float,
    way: str,
) -> None:
    device = torch.device("cuda")
    layout = layout_of(make_stream, [length, 1]).to(device)
    qkv = [t.detach().to(device, dtype) for t in random_qkv(length + 1, heads=4, size=32)]
    taken: list[str] = []
    for name in ("attend_short", "attend_varlen", "attend_padded"):
        own = getattr(attention, name)
        monkeypatch.setattr(attention, name, lambda *inputs, own=own, name=name: taken.append(name) or own(*inputs))
    assert torch.isfinite(attend(*qkv, layout, dropout)).all()
    assert taken == [way]


def test_wider_heads_give_the_same(make_stream: MakeStream) -> None:
    layout = layout_of(make_stream, LENGTHS)
    qkv = random_qkv(sum(LENGTHS), size=17)
    wide = widened(*qkv)
    assert [t.shape[-1] for t in wide] == [24, 24, 24]
    found = attend_padded(*wide, layout)
    torch.testing.assert_close(found[..., :17], attend_padded(*qkv, layout), atol=1e-12, rtol=0)
    assert not found[..., 17:].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [32, 17])
def test_varlen_agrees_with_padded(make_stream: MakeStream, dtype: torch.dtype, size: int) -> None:
    device = torch.device("cuda")
    lengths = [1, 2, 511, 512, 77]
    layout = layout_of(make_stream, lengths).to(device)
    start = random_qkv(sum(lengths), heads=4, size=size)
    qkv = [t.detach().to(device, dtype).requires_grad_() for t in start]
    assert varlen_works(qkv[0], 0.0)
    assert not varlen_works(qkv[0], 0.1)
    # Rounding of the half precision itself, about 3 and 4 digits.
    tolerance = 2e-2 if dtype == torch.bfloat16 else 3e-3
    ways = [attend_varlen(*qkv, layout), attend_padded(*qkv, layout)]
    torch.testing.assert_close(ways[0], ways[1], atol=tolerance, rtol=tolerance)
    grads = [torch.autograd.grad(way.float().square().sum(), qkv) for way in ways]
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, atol=2 * tolerance, rtol=2 * tolerance)
