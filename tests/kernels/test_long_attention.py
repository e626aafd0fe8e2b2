"""The kernels for long sequences against the definition: on the CPU under Triton's interpreter, and on CUDA."""

import os
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.encoders.attention import attend
from polytask.fused_forms import definition_of
from polytask.kernels import long_attention
from polytask.kernels.long_attention import Blocks, attend_long, attend_long_packed, long_fits
from polytask.stream import Layout

definition = definition_of(attend)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LENGTHS = [1, 300, 0, 128, 129, 17, 192]
on_cuda = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")


def interpreted(test: Any) -> Any:
    """Collected only in the process with the interpreter."""
    test.__test__ = INTERPRETED
    return test


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__, "-k", "lengths1 or dropout_values or overflow")


@pytest.mark.slow
def test_all_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


def layout_of(lengths: list[int], device: str = "cpu") -> Layout:
    cu = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    return Layout(cu, tuple(lengths), ((0, len(lengths)),), ((0, sum(lengths)),))


def random_qkv(lengths: list[int], size: int, heads: int = 2, **options: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(sum(lengths), heads, size, generator=generator) for _ in range(4)]
    return [t.to(**options).requires_grad_(i < 3) for i, t in enumerate(values)]


def with_gradients(out: Tensor, weights: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [out, *torch.autograd.grad((out * weights).sum(), inputs)]


def attended(qkv: list[Tensor], lengths: list[int], dropout: float = 0.0, bound: int | None = None) -> Tensor:
    q, k, v = qkv
    layout = layout_of(lengths, q.device.type)
    return attend_long(q, k, v, layout.cu_seqlens_S1, dropout, bound or max(lengths))


def masks(lengths: list[int], heads: int, dropout: float, device: str = "cpu") -> list[Tensor]:
    """Which weights of each sequence are kept: with equal scores and a part of the identity as v, the output is that
    part of the weights."""
    size, dtype = 128, torch.bfloat16 if device == "cuda" else torch.float32
    q = torch.zeros(sum(lengths), heads, size, device=device, dtype=dtype)
    parts = []
    for start in range(0, max(lengths), size):
        eye = torch.eye(max(lengths), device=device, dtype=dtype)[:, start : start + size]
        eye = torch.nn.functional.pad(eye, (0, size - eye.shape[1]))
        v = torch.cat([eye[:length] for length in lengths])[:, None].expand_as(q)
        torch.manual_seed(3)
        parts.append(attended([q, q, v], lengths, dropout).float())
    out_THL = torch.cat(parts, -1)
    kept = []
    for own_LHL in out_THL.split(lengths):
        kept_HLL = (own_LHL * len(own_LHL) * (1 - dropout)).transpose(0, 1)[..., : len(own_LHL)]
        torch.testing.assert_close(kept_HLL, kept_HLL.round(), atol=2e-2, rtol=0)
        kept.append(kept_HLL.round())
    return kept


def dropped_out(qkv: list[Tensor], kept: list[Tensor], dropout: float, lengths: list[int]) -> Tensor:
    """The definition for one sequence at a time, with these masks."""
    outs = []
    for q_Lhd, k_Lhd, v_Lhd, kept_HLL in zip(*(t.split(lengths) for t in qkv), kept, strict=True):
        weights_HLL = (torch.einsum("lhd,mhd->hlm", q_Lhd, k_Lhd) / q_Lhd.shape[-1] ** 0.5).softmax(-1)
        outs.append(torch.einsum("hlm,mhd->lhd", weights_HLL * kept_HLL / (1 - dropout), v_Lhd))
    return torch.cat(outs)


@interpreted
def test_values_and_gradients() -> None:
    *qkv, weights = random_qkv(LENGTHS, 17)
    ours = with_gradients(attended(qkv, LENGTHS), weights, qkv)
    theirs = with_gradients(definition(*qkv, layout_of(LENGTHS)), weights, qkv)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@interpreted
@pytest.mark.parametrize("lengths", [list(range(1, 300, 74)), [131, 160, 161, 191, 257]])
def test_every_length(lengths: list[int]) -> None:
    *qkv, weights = random_qkv(lengths, 4, heads=1)
    ours = with_gradients(attended(qkv, lengths), weights, qkv)
    theirs = with_gradients(definition(*qkv, layout_of(lengths)), weights, qkv)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@interpreted
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_packed_is_bit_identical_and_tokens_behind_the_last_sequence_get_zeros(dropout: float) -> None:
    lengths, rest = [9, 0, 140], 5
    cu = layout_of(lengths).cu_seqlens_S1
    qkv = torch.randn(sum(lengths) + rest, 3, 2, 17, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = torch.randn(len(qkv), 2, 17, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    separate = attend_long(*qkv.unbind(1), cu, dropout, 256)  # type: ignore[call-arg]
    torch.manual_seed(2)
    packed = attend_long_packed(qkv, cu, dropout, 256)
    assert torch.equal(packed, separate)
    (one,), (two,) = (torch.autograd.grad(out, qkv, weights) for out in (packed, separate))
    assert torch.equal(one, two)
    assert not packed[-rest:].any()
    assert not one[-rest:].any()


@interpreted
def test_another_scale() -> None:
    lengths = [150, 20]
    cu = layout_of(lengths).cu_seqlens_S1
    qkv = torch.randn(sum(lengths), 3, 1, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    scaled = torch.cat([qkv[:, :1] * 2, qkv[:, 1:]], 1)
    ours, theirs = attend_long_packed(qkv, cu, 0.0, 150, scale=0.5), attend_long_packed(scaled, cu, 0.0, 150)
    torch.testing.assert_close(ours, theirs)
    (one,), (two,) = (torch.autograd.grad(out.square().sum(), qkv) for out in (ours, theirs))
    torch.testing.assert_close(one, two)


@interpreted
def test_dropout_values_and_gradients() -> None:
    lengths, dropout = [150, 30], 0.25
    kept = masks(lengths, 1, dropout)
    *qkv, weights = random_qkv(lengths, 16, heads=1)
    torch.manual_seed(3)
    ours = with_gradients(attended(qkv, lengths, dropout), weights, qkv)
    theirs = with_gradients(dropped_out(qkv, kept, dropout, lengths), weights, qkv)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@interpreted
def test_dropout_keeps_the_right_share_and_draws_are_independent() -> None:
    lengths, heads, dropout = [136, 136], 2, 0.25
    first, second = masks(lengths, heads, dropout)
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert abs(float(first.mean()) - 0.75) < 5 * (0.1875 / first.numel()) ** 0.5
    pairs = [
        *((first[..., 0::8], first[..., b::8]) for b in range(1, 8)),  # drawn together
        (first[..., 8::8], first[..., 7:-1:8]),
        (first[:, 1:], first[:, :-1]),
        (first[..., :64], first[..., 64:128]),
        (first[:, :64], first[:, 64:128]),
        (first[0], first[1]),
        (first, second),
    ]
    for one, two in pairs:
        share = 0.75**2
        assert abs(float((one * two).mean()) - share) < 5 * (share * (1 - share) / one.numel()) ** 0.5


@interpreted
@pytest.mark.parametrize("blocks", [Blocks(32, 64, 4, 1), Blocks(64, 32, 4, 1)])
def test_the_size_of_programs_changes_only_rounding(monkeypatch: pytest.MonkeyPatch, blocks: Blocks) -> None:
    """Also which weights are dropped, and an upper bound of the lengths that no sequence reaches."""
    lengths = [3, 165]
    *qkv, weights = random_qkv(lengths, 16, heads=1)
    torch.manual_seed(0)
    expected = with_gradients(attended(qkv, lengths, 0.2), weights, qkv)
    monkeypatch.setattr(long_attention, "WIDE", blocks)
    torch.manual_seed(0)
    found = with_gradients(attended(qkv, lengths, 0.2, bound=512), weights, qkv)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@interpreted
def test_large_scores_do_not_overflow() -> None:
    lengths = [140]
    q, k, v, weights = random_qkv(lengths, 16, heads=1)
    # All scores are far below zero, so weights relative to a score of zero, as padding has it, would be infinite.
    qkv = [(20 * q.detach().abs()).requires_grad_(), (-3 * k.detach().abs()).requires_grad_(), v]
    ours = with_gradients(attended(qkv, lengths), weights, qkv)
    theirs = with_gradients(definition(*qkv, layout_of(lengths)), weights, qkv)
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}


@on_cuda
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("size", [17, 32, 64])
def test_agrees_with_the_definition_on_cuda(dtype: torch.dtype, size: int) -> None:
    lengths = [*LENGTHS, 511, 512]
    *qkv, weights = random_qkv(lengths, size, heads=12, device="cuda", dtype=dtype)
    exact = [t.detach().double().requires_grad_() for t in qkv]
    assert long_fits(qkv[0])
    ours = with_gradients(attended(qkv, lengths), weights, qkv)
    theirs = with_gradients(definition(*exact, layout_of(lengths, "cuda")), weights.double(), exact)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), two, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
    for _ in range(3):
        again = with_gradients(attended(qkv, lengths), weights, qkv)
        assert all(torch.equal(one, two) for one, two in zip(ours, again, strict=True)), "not bit-identical"


@on_cuda
@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("size", [64, 128])
def test_dropout_on_cuda(dtype: torch.dtype, size: int) -> None:
    lengths, dropout = [150, 30, 512, 129], 0.25
    kept = masks(lengths, 12, dropout, "cuda")
    *qkv, weights = random_qkv(lengths, size, heads=12, device="cuda", dtype=dtype)
    if not long_fits(qkv[0]):
        pytest.skip(f"heads of {size} in {dtype} do not fit into this GPU's shared memory")
    exact = [t.detach().double().requires_grad_() for t in qkv]
    torch.manual_seed(3)
    ours = with_gradients(attended(qkv, lengths, dropout), weights, qkv)
    theirs = with_gradients(dropped_out(exact, kept, dropout, lengths), weights.double(), exact)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), two, atol=2 * TOLERANCES[dtype], rtol=2 * TOLERANCES[dtype])


@on_cuda
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")  # the leaves were created on another CUDA stream
def test_a_graph_replays_it_on_other_lengths() -> None:
    first, second = [20, 0, 200, 7, 129], [130, 64, 0, 133, 29]
    *qkv, weights = random_qkv(first, 64, heads=12, device="cuda", dtype=torch.bfloat16)
    cu = layout_of(first, "cuda").cu_seqlens_S1

    def run(dropout: float) -> list[Tensor]:
        return with_gradients(attend_long(*qkv, cu, dropout, 256), weights, qkv)  # type: ignore[call-arg]

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
@pytest.mark.parametrize("name", ["forward", "queries", "keys"])
def test_it_compiles_for_tensor_cores(ptx: Any, name: str, drops: bool) -> None:
    """Needs no device."""
    kernel = getattr(long_attention, f"_long_{name}")
    halves = ("q", "k", "v", "out", "grad", "q_grad", "k_grad", "v_grad")
    kinds = {
        **dict.fromkeys(("tokens", "blocks"), "i32"),
        **dict.fromkeys(("scale", "dropout"), "fp32"),
        **dict.fromkeys(halves, "*bf16"),
        **{f"{part}_{along}": "i32" for part in halves for along in ("step", "head")},
        "cu": "*i32",
        "seed": "*i64",
    }
    blocks: Blocks = getattr(long_attention, name.upper())
    constants = {"LOW": 128, "HEADS": 12, "SIZE": 64, "WIDTH": 64, "PRECISION": "tf32", "DROPS": drops}
    code = ptx(kernel, kinds, blocks.warps, ROWS=blocks.rows, COLUMNS=blocks.columns, **constants)
    assert "mma" in code
