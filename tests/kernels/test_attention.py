"""Which kernel attention uses, and that varlen attention and padded heads compute what the definition does."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from polytask.encoders.attention import attend
from polytask.fused_forms import definition_of
from polytask.kernels import attention
from polytask.kernels.attention import attend_varlen, fused_attend, pad_heads, varlen_fits
from polytask.kernels.cpu_attention import attend_on_cpu
from polytask.kernels.triton_support import TRITON
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


def test_the_cpu_uses_products_or_the_definition(make_stream: MakeStream) -> None:
    q, k, v = (t.detach().bfloat16() for t in random_qkv(5))
    assert not varlen_fits(q, 0.0)
    layout = layout_of(make_stream, [2, 3])
    assert torch.equal(fused_attend(q, k, v, layout), attend_on_cpu(q, k, v, layout.lengths, 0.0))
    q, k, v = (t.detach() for t in random_qkv(300))
    layout = layout_of(make_stream, [300])
    assert torch.equal(fused_attend(q, k, v, layout), definition(q, k, v, layout))


def test_gradients_inside_half_precision_are_those_outside(make_stream: MakeStream) -> None:
    qkv = [t.detach().bfloat16().requires_grad_() for t in random_qkv(9)]
    layout = layout_of(make_stream, [4, 5])
    towards = torch.randn(9, *qkv[0].shape[1:])
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad((fused_attend(*qkv, layout).float() * towards).sum(), qkv)
        total = (fused_attend(*qkv, layout).float() * towards).sum()
    for one, other in zip(inside, torch.autograd.grad(total, qkv), strict=True):
        assert torch.equal(one, other)


def test_short_sequences_use_the_short_kernel(make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    given: list[object] = []
    monkeypatch.setattr(attention, "short_fits", lambda q_THd, max_length: asked.append(max_length) is None)
    monkeypatch.setattr(attention, "attend_short", lambda *inputs: given.extend(inputs) or inputs[0])
    layout = layout_of(make_stream, [2, 3])
    qkv = random_qkv(5)
    fused_attend(*qkv, layout, 0.1)
    assert asked == [3]
    assert all(one is two for one, two in zip(given[:4], [*qkv, layout.cu_seqlens_S1], strict=True))
    assert given[4:] == [0.1, 3]


@pytest.mark.skipif(not (torch.cuda.is_available() and TRITON), reason="needs a CUDA device and Triton")
@pytest.mark.parametrize(
    ("dtype", "length", "dropout", "learns", "way"),
    [
        (torch.bfloat16, 128, 0.0, False, "attend_short"),
        (torch.bfloat16, 128, 0.1, True, "attend_short"),
        (torch.bfloat16, 129, 0.0, False, "attend_varlen"),
        (torch.bfloat16, 129, 0.0, True, "attend_long"),
        (torch.bfloat16, 129, 0.1, False, "attend_long"),
        (torch.float32, 129, 0.0, False, "attend_long"),
        (torch.float64, 129, 0.0, True, "definition"),
        (torch.float64, 8, 0.0, False, "definition"),
    ],
)
def test_what_cuda_uses(
    make_stream: MakeStream,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    length: int,
    dropout: float,
    learns: bool,
    way: str,
) -> None:
    device = torch.device("cuda")
    layout = layout_of(make_stream, [length, 1]).to(device)
    start = random_qkv(length + 1, heads=4, size=32)
    qkv = [t.detach().to(device, dtype).requires_grad_(learns) for t in start]
    used: list[str] = []
    for name in ("attend_short", "attend_long", "attend_varlen"):
        own = getattr(attention, name)
        monkeypatch.setattr(attention, name, lambda *inputs, own=own, name=name: used.append(name) or own(*inputs))
    assert torch.isfinite(fused_attend(*qkv, layout, dropout)).all()
    assert used == ([] if way == "definition" else [way])


def test_padded_heads_give_the_same_output(make_stream: MakeStream) -> None:
    layout = layout_of(make_stream, LENGTHS)
    qkv = random_qkv(sum(LENGTHS), size=17)
    wide = pad_heads(*qkv)
    assert [t.shape[-1] for t in wide] == [24, 24, 24]
    found = definition(*wide, layout)
    torch.testing.assert_close(found[..., :17], definition(*qkv, layout), atol=1e-12, rtol=0)
    assert not found[..., 17:].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [32, 17])
def test_varlen_agrees_with_the_definition(make_stream: MakeStream, dtype: torch.dtype, size: int) -> None:
    device = torch.device("cuda")
    lengths = [1, 2, 511, 512, 77]
    layout = layout_of(make_stream, lengths).to(device)
    start = random_qkv(sum(lengths), heads=4, size=size)
    qkv = [t.detach().to(device, dtype).requires_grad_() for t in start]
    assert varlen_fits(qkv[0], 0.0)
    assert not varlen_fits(qkv[0], 0.1)
    # Rounding of the half precision itself, about 3 and 4 digits.
    tolerance = 2e-2 if dtype == torch.bfloat16 else 3e-3
    ways = [attend_varlen(*qkv, layout), definition(*qkv, layout)]
    torch.testing.assert_close(ways[0], ways[1], atol=tolerance, rtol=tolerance)
    grads = [torch.autograd.grad(way.float().square().sum(), qkv) for way in ways]
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, atol=2 * tolerance, rtol=2 * tolerance)
