"""The kernels for short sequences against padded attention: on the CPU under Triton's interpreter, and on CUDA."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate, combinations, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

from polytask.encoders.attention import attend
from polytask.fused_forms import definition_of
from polytask.kernels import short_attention
from polytask.kernels.short_attention import attend_short, attend_short_packed, short_fits
from polytask.kernels.triton_support import TRITON
from polytask.stream import Layout

definition = definition_of(attend)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LENGTHS = [1, 15, 16, 0, 17, 31, 33, 64, 65, 127, 128, 0]
on_cuda = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")


def interpreted(test: Any) -> Any:
    """Collected in the process with the interpreter alone."""
    test.__test__ = INTERPRETED
    return test


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__, "-k", "not without_triton")


@pytest.fixture
def written() -> Iterator[None]:
    """Fills memory that nobody writes to with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(before)


def layout_of(lengths: list[int], device: str = "cpu") -> Layout:
    cu = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    return Layout(cu, tuple(lengths), ((0, len(lengths)),), ((0, sum(lengths)),))


def random_qkv(lengths: list[int], size: int, heads: int = 2, seed: int = 0, **options: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(sum(lengths), heads, size, generator=generator) for _ in range(4)]
    return [t.to(**options).requires_grad_(i < 3) for i, t in enumerate(values)]


def with_gradients(out: Tensor, weights: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [out, *torch.autograd.grad((out * weights).sum(), inputs)]


def dropped_out(q: Tensor, k: Tensor, v: Tensor, kept: list[Tensor], dropout: float, lengths: list[int]) -> Tensor:
    """Written out for one sequence at a time, with these masks."""
    outs = []
    for q_Lhd, k_Lhd, v_Lhd, kept_HLL in zip(*(t.split(lengths) for t in (q, k, v)), kept, strict=True):
        weights_HLL = (torch.einsum("lhd,mhd->hlm", q_Lhd, k_Lhd) / q.shape[-1] ** 0.5).softmax(-1)
        outs.append(torch.einsum("hlm,mhd->lhd", weights_HLL * kept_HLL / (1 - dropout), v_Lhd))
    return torch.cat(outs)


def masks(lengths: list[int], heads: int, dropout: float, device: str = "cpu") -> list[Tensor]:
    """What is kept of each sequence's weights: with equal scores and v the identity, the output is the weights."""
    size = max(lengths)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q = torch.zeros(sum(lengths), heads, size, device=device, dtype=dtype)
    eye_LL = torch.eye(size, device=device, dtype=dtype)
    v = torch.cat([eye_LL[:length] for length in lengths])[:, None].expand_as(q)
    out = attend_short(q, q, v, layout_of(lengths, device).cu_seqlens_S1, dropout)
    found = []
    for own_Lhd in out.split(lengths):
        kept_HLL = (own_Lhd.float() * len(own_Lhd) * (1 - dropout)).transpose(0, 1)[..., : len(own_Lhd)]
        torch.testing.assert_close(kept_HLL, kept_HLL.round(), atol=1e-2, rtol=0)
        found.append(kept_HLL.round())
    return found


@interpreted
@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("size", [17, 32, 64])
def test_values_and_gradients(size: int) -> None:
    *qkv, weights = random_qkv(LENGTHS, size)
    layout = layout_of(LENGTHS)
    ours = with_gradients(attend_short(*qkv, layout.cu_seqlens_S1), weights, qkv)
    theirs = with_gradients(definition(*qkv, layout), weights, qkv)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert all(t.is_contiguous() for t in ours)


@interpreted
@pytest.mark.parametrize("size", [1, 16, 100, 128])
def test_heads_of_every_size(size: int) -> None:
    lengths = [20, 3]
    *qkv, weights = random_qkv(lengths, size)
    layout = layout_of(lengths)
    ours = with_gradients(attend_short(*qkv, layout.cu_seqlens_S1), weights, qkv)
    theirs = with_gradients(definition(*qkv, layout), weights, qkv)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@interpreted
def test_views_with_strides_of_their_own() -> None:
    lengths = [9, 40]
    layout = layout_of(lengths)
    tokens = sum(lengths)
    one_product = torch.randn(tokens, 3, 2, 17, generator=torch.Generator().manual_seed(0)).requires_grad_()
    columns_first = torch.randn(3, 17, 2, tokens, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for whole, parts in ((one_product, one_product.unbind(1)), (columns_first, columns_first.transpose(1, 3).unbind())):
        # The gradient of a sum is one number seen from everywhere, a view too.
        ours = torch.autograd.grad(attend_short(*parts, layout.cu_seqlens_S1).sum(), whole)
        theirs = torch.autograd.grad(definition(*parts, layout).sum(), whole)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@interpreted
@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_packed_it_is_the_same(dropout: float) -> None:
    lengths, rest = [9, 0, 40], 5
    cu = layout_of(lengths).cu_seqlens_S1
    qkv = torch.randn(sum(lengths) + rest, 3, 2, 17, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = torch.randn(len(qkv), 2, 17, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    apart = attend_short(*qkv.unbind(1), cu, dropout)
    torch.manual_seed(2)
    packed = attend_short_packed(qkv, cu, dropout)
    assert torch.equal(packed, apart)
    (one,), (two,) = (torch.autograd.grad(out, qkv, weights) for out in (packed, apart))
    assert torch.equal(one, two)


@interpreted
def test_padded_heads_with_the_scale_of_the_original_size() -> None:
    """Heads filled up with zeros, and scaled as if they were not."""
    lengths = [9, 20]
    cu = layout_of(lengths).cu_seqlens_S1
    qkv = torch.randn(sum(lengths), 3, 2, 17, generator=torch.Generator().manual_seed(0)).requires_grad_()
    wide = attend_short_packed(F.pad(qkv, (0, 7)), cu, scale=17**-0.5)
    assert not wide[..., 17:].any()
    expected = attend_short_packed(qkv, cu)
    torch.testing.assert_close(wide[..., :17], expected)
    (one,), (two,) = (torch.autograd.grad(out.square().sum(), qkv) for out in (wide, expected))
    torch.testing.assert_close(one, two)


@interpreted
@pytest.mark.usefixtures("written")
def test_tokens_behind_the_last_sequence_get_zeros() -> None:
    lengths, rest = [5, 0, 20, 0], 37
    *qkv, weights = random_qkv([*lengths, rest], 17)
    cu = layout_of(lengths).cu_seqlens_S1
    found = with_gradients(attend_short(*qkv, cu), weights, qkv)
    alone = [t[:-rest].detach().requires_grad_() for t in qkv]
    expected = with_gradients(attend_short(*alone, cu), weights[:-rest], alone)
    for one, two in zip(found, expected, strict=True):
        assert torch.equal(one[:-rest], two)
        assert not one[-rest:].any()


@interpreted
def test_huge_values_in_one_sequence_leave_the_others_alone() -> None:
    lengths = [3, 16, 20, 40]
    q, k, v, _ = (t.detach() for t in random_qkv(lengths, 16))
    cu = layout_of(lengths).cu_seqlens_S1
    before = attend_short(q, k, v, cu).split(lengths)
    v.split(lengths)[2].fill_(1e30)
    for s, (one, two) in enumerate(zip(before, attend_short(q, k, v, cu).split(lengths), strict=True)):
        assert torch.equal(one, two) == (s != 2)


@interpreted
@pytest.mark.parametrize(
    ("plan", "few"), [(((128, 4),), 0), (((16, 1), (32, 1), (128, 2)), 1000), (((64, 2), (128, 8)), 0)]
)
def test_the_result_does_not_depend_on_how_lengths_are_shared_out_to_launches(
    monkeypatch: Any, plan: Any, few: int
) -> None:
    lengths = [1, 16, 17, 33, 65, 128]
    *qkv, weights = random_qkv(lengths, 16, heads=1)
    cu = layout_of(lengths).cu_seqlens_S1
    torch.manual_seed(0)
    expected = with_gradients(attend_short(*qkv, cu, 0.2), weights, qkv)
    monkeypatch.setattr(short_attention, "FORWARD", plan)
    monkeypatch.setattr(short_attention, "BACKWARD", plan)
    monkeypatch.setattr(short_attention, "FEW", few)
    torch.manual_seed(0)
    found = with_gradients(attend_short(*qkv, cu, 0.2), weights, qkv)
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


@interpreted
@pytest.mark.parametrize("few", [0, 1000])
def test_a_bound_on_the_lengths_saves_launches(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(short_attention, "FEW", few)
    lengths = [3, 32, 17]
    *qkv, weights = random_qkv(lengths, 16)
    cu = layout_of(lengths).cu_seqlens_S1
    expected = with_gradients(attend_short(*qkv, cu), weights, qkv)
    found = with_gradients(attend_short(*qkv, cu, max_length=32), weights, qkv)
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


@interpreted
def test_dropout_keeps_the_share_it_should_and_each_draw_is_its_own() -> None:
    lengths, heads, dropout = [128, 128, 64, 5], 4, 0.3
    torch.manual_seed(0)
    kept = masks(lengths, heads, dropout)
    assert all(set(own.unique().tolist()) == {0.0, 1.0} for own in kept)
    flat_HT = torch.cat([own.flatten(1) for own in kept], dim=1)
    count = flat_HT.numel()
    assert abs(float(flat_HT.mean()) - (1 - dropout)) < 4 * (dropout * (1 - dropout) / count) ** 0.5
    # Of two draws that have nothing to do with each other, (1 - p)^2 are kept both: of four columns, which are drawn
    # together, of neighbours in a row and in a column, of two heads (and of one's end with the next one's start), of
    # two sequences.
    first, second, *_ = kept
    pairs = [
        *((first[..., a::4], first[..., b::4]) for a, b in combinations(range(4), 2)),
        (first[..., 4::4], first[..., 3:-1:4]),
        (first[:, 1:], first[:, :-1]),
        *((flat_HT[a], flat_HT[b]) for a, b in pairwise(range(heads))),
        *((first[:-1, :, -width:], first[1:, :, :width]) for width in (32, 64, 96)),
        (first, second),
    ]
    for one, two in pairs:
        share = (1 - dropout) ** 2
        spread = (share * (1 - share) / one.numel()) ** 0.5
        assert abs(float((one * two).mean()) - share) < 5 * spread
    # Rows and columns: none is dropped more than chance does it.
    for means in (first.mean((0, 1)), first.mean((0, 2))):
        assert float((means - (1 - dropout)).abs().max()) < 5 * (dropout * (1 - dropout) / (heads * 128)) ** 0.5


@interpreted
def test_dropout_follows_torchs_seed() -> None:
    lengths = [16, 3]
    cu = layout_of(lengths).cu_seqlens_S1
    q, k, v, _ = random_qkv(lengths, 16)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs += [attend_short(q, k, v, cu, 0.5), attend_short(q, k, v, cu, 0.5)]
    assert torch.equal(outs[0], outs[2])
    assert torch.equal(outs[1], outs[3])
    assert not torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[4])
    before = torch.get_rng_state()
    attend_short(q, k, v, cu)
    assert torch.equal(before, torch.get_rng_state())


@interpreted
def test_dropouts_values_and_gradients() -> None:
    lengths, dropout = [1, 16, 17, 64, 100], 0.25
    torch.manual_seed(3)
    kept = masks(lengths, 2, dropout)
    *qkv, weights = random_qkv(lengths, 32)
    torch.manual_seed(3)
    ours = with_gradients(attend_short(*qkv, layout_of(lengths).cu_seqlens_S1, dropout), weights, qkv)
    theirs = with_gradients(dropped_out(*qkv, kept, dropout, lengths), weights, qkv)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@interpreted
def test_autocast_casts_as_it_does_for_torchs_attention() -> None:
    lengths = [3, 17]
    q, k, v, _ = random_qkv(lengths, 16)
    cu = layout_of(lengths).cu_seqlens_S1
    with torch.autocast("cpu", torch.float16):
        out = attend_short(q, k, v.half(), cu)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), attend_short(q, k, v, cu), atol=5e-3, rtol=5e-3)
    (grad,) = torch.autograd.grad(out.float().sum(), q)
    assert grad.dtype == torch.float32


def test_without_triton_it_is_imported_and_not_used() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "from polytask.kernels.short_attention import TRITON\nassert not TRITON"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(not TRITON, reason="needs Triton")
def test_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not short_fits(torch.zeros(1, 1, 64), 16), "there is no CUDA device here"

    def fits(kilobytes: int, size: int, max_length: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        monkeypatch.setattr(short_attention, "kernels_run", lambda device: device.type == "cuda")
        monkeypatch.setattr(short_attention, "shared_memory", lambda _: kilobytes * 1024)
        with FakeTensorMode():
            return short_fits(torch.empty(4, 12, size, dtype=dtype, device="cuda:0"), max_length)

    # An H200 has 227 KB, an A100 163, an L4 or a card for desktops 99.
    assert fits(227, 64, 128)
    assert fits(227, 128, 128)
    assert fits(227, 64, 128, torch.float32)
    assert not fits(227, 128, 128, torch.float32)
    assert not fits(227, 64, 129)
    assert not fits(227, 129, 16)
    assert not fits(227, 64, 16, torch.float64)
    assert fits(163, 128, 128)
    assert not fits(163, 64, 16, torch.float32)
    assert fits(99, 64, 128)
    assert fits(99, 128, 64)
    assert not fits(99, 128, 128)
    assert not fits(0, 17, 16)


TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 3e-5}


@on_cuda
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("size", [17, 32, 64])
def test_agrees_with_padded_on_cuda(dtype: torch.dtype, size: int) -> None:
    layout = layout_of(LENGTHS, "cuda")
    *qkv, weights = random_qkv(LENGTHS, size, heads=12, device="cuda", dtype=dtype)
    exact = [t.detach().double().requires_grad_() for t in qkv]
    assert short_fits(qkv[0], layout.max_length)
    ours = with_gradients(attend_short(*qkv, layout.cu_seqlens_S1), weights, qkv)
    theirs = with_gradients(definition(*exact, layout), weights.double(), exact)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), two, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
    again = with_gradients(attend_short(*qkv, layout.cu_seqlens_S1), weights, qkv)
    assert all(torch.equal(one, two) for one, two in zip(ours, again, strict=True)), "the same bits every time"


@on_cuda
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_dropout_on_cuda(dtype: torch.dtype) -> None:
    lengths, dropout = [1, 16, 17, 64, 100, 128], 0.25
    torch.manual_seed(3)
    kept = masks(lengths, 12, dropout, "cuda")
    *qkv, weights = random_qkv(lengths, 64, heads=12, device="cuda", dtype=dtype)
    exact = [t.detach().double().requires_grad_() for t in qkv]
    torch.manual_seed(3)
    ours = with_gradients(attend_short(*qkv, layout_of(lengths, "cuda").cu_seqlens_S1, dropout), weights, qkv)
    theirs = with_gradients(dropped_out(*exact, kept, dropout, lengths), weights.double(), exact)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), two, atol=2 * TOLERANCES[dtype], rtol=2 * TOLERANCES[dtype])


@on_cuda
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")  # the leaves were made on another CUDA stream
def test_a_graph_replays_it_on_other_lengths_and_with_other_draws() -> None:
    first, second = [20, 0, 100, 7, 1], [3, 64, 0, 33, 28]
    *qkv, weights = random_qkv(first, 64, heads=12, device="cuda", dtype=torch.bfloat16)
    cu = layout_of(first, "cuda").cu_seqlens_S1

    def run(dropout: float) -> list[Tensor]:
        return with_gradients(attend_short(*qkv, cu, dropout), weights, qkv)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(0.0), run(0.5)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plain, dropping = run(0.0), run(0.5)
    for lengths in (first, second):
        cu.copy_(layout_of(lengths).cu_seqlens_S1)
        graph.replay()
        for one, two in zip(plain, run(0.0), strict=True):
            assert torch.equal(one, two)
        before = dropping[0].clone()
        graph.replay()
        assert not torch.equal(before, dropping[0])


@pytest.mark.parametrize("drops", [False, True])
def test_it_compiles_for_tensor_cores(ptx: Any, drops: bool) -> None:
    """No device is needed for that."""
    numbers = {**dict.fromkeys(("sequences", "tokens"), "i32"), "scale": "fp32", "dropout": "fp32"}
    addresses = dict.fromkeys(("q", "k", "v", "out", "grad", "q_grad", "k_grad", "v_grad"), "*bf16")
    steps = {f"{name}_{far}": "i32" for name in ("q", "k", "v", "grad", "out") for far in ("step", "head")}
    kinds = {**numbers, **addresses, **steps, "cu": "*i32", "seed": "*i64"}
    plans = (
        (short_attention._attend_forward, short_attention.FORWARD),
        (
            short_attention._attend_backward,
            short_attention.BACKWARD,
        ),
    )
    for kernel, plan in plans:
        high, warps = plan[0]
        shape = {"LOW": 0, "HIGH": high, "HEADS": 12, "SIZE": 64, "WIDTH": 64, "DROPS": drops, "PRECISION": "tf32"}
        assert "mma" in ptx(kernel, kinds, warps, **shape)
