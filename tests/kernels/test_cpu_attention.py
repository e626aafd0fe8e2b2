"""The CPU's attention against attention written out for one sequence at a time."""

import pytest
import torch
from torch import Tensor

from polytask.kernels.cpu_attention import MAX_LENGTH, MAX_LENGTH_FORWARD, attend_on_cpu, products_fit

LENGTHS = (3, 1, 16, 15, 2, 8, 1)


def random_qkv(tokens: int, heads: int = 2, size: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (tokens, heads, size)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def written_out(q_THd: Tensor, k_THd: Tensor, v_THd: Tensor, lengths: tuple[int, ...]) -> Tensor:
    outs = []
    for q, k, v in zip(*(t.split(lengths) for t in (q_THd, k_THd, v_THd)), strict=True):
        scores_HLL = torch.einsum("lhd,mhd->hlm", q, k) / q.shape[-1] ** 0.5
        outs.append(torch.einsum("hlm,mhd->lhd", scores_HLL.softmax(-1), v))
    return torch.cat(outs)


@pytest.mark.parametrize("lengths", [LENGTHS, (5,), (4, 4, 4), (1,), (1, 1, 1), (2, 40, 3, 30, 29), (3, 0, 2, 0)])
def test_values_and_gradients(lengths: tuple[int, ...]) -> None:
    qkv = random_qkv(sum(lengths), heads=3)
    weights = torch.randn(sum(lengths), 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours, theirs = attend_on_cpu(*qkv, lengths, 0.0), written_out(*qkv, lengths)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    ours_grads = torch.autograd.grad((ours * weights).sum(), qkv)
    for got, expected in zip(ours_grads, torch.autograd.grad((theirs * weights).sum(), qkv), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradcheck(dropout: float) -> None:
    def seeded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(0)
        return attend_on_cpu(q, k, v, (3, 1, 4), dropout)

    assert torch.autograd.gradcheck(seeded, random_qkv(8, heads=2, size=2))


def test_half_precision_is_computed_in_float32() -> None:
    """The result is the exact one, rounded once at the end: under autocast too, which would halve the products."""
    qkv = [t.detach().bfloat16() for t in random_qkv(sum(LENGTHS), size=32)]
    with torch.autocast("cpu", torch.bfloat16):
        ours = attend_on_cpu(*qkv, LENGTHS, 0.0)
    exact = written_out(*(t.double() for t in qkv), LENGTHS)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, atol=1e-6, rtol=2**-8)


def test_no_gradient_crosses_a_border() -> None:
    qkv = random_qkv(sum(LENGTHS))
    pieces = attend_on_cpu(*qkv, LENGTHS, 0.0).split(LENGTHS)
    for grad in torch.autograd.grad(pieces[2].sum(), qkv):
        others = [piece for s, piece in enumerate(grad.split(LENGTHS)) if s != 2]
        assert not torch.cat(others).any()


def test_huge_values_in_one_sequence_leave_the_others_alone() -> None:
    qkv = [t.detach().float() for t in random_qkv(sum(LENGTHS))]
    before = attend_on_cpu(*qkv, LENGTHS, 0.0).split(LENGTHS)
    qkv[2].split(LENGTHS)[3].fill_(1e30)
    after = attend_on_cpu(*qkv, LENGTHS, 0.0).split(LENGTHS)
    for s, (one, two) in enumerate(zip(before, after, strict=True)):
        assert torch.equal(one, two) == (s != 3)


def test_dropout_drops_weights_and_keeps_the_mean() -> None:
    q, k, v = (t.detach() for t in random_qkv(80, heads=64))
    torch.manual_seed(0)
    out_THd = attend_on_cpu(q, k, torch.ones_like(v), (40, 40), dropout=0.5)
    assert float(out_THd.std()) > 0.1  # without dropout every value is 1: the weights of a row sum to 1
    assert abs(float(out_THd.mean()) - 1) < 0.02


def test_long_sequences_are_left_to_torchs_kernel_unless_weights_are_dropped() -> None:
    q = torch.zeros(1, 1, 1, requires_grad=True)
    assert products_fit(q, MAX_LENGTH, 0.0)
    assert not products_fit(q, MAX_LENGTH + 1, 0.0)
    assert products_fit(q, MAX_LENGTH + 1, 0.1)
    with torch.no_grad():
        assert products_fit(q, MAX_LENGTH_FORWARD, 0.0)
        assert not products_fit(q, MAX_LENGTH_FORWARD + 1, 0.0)
    assert not products_fit(q.to("meta"), 1, 0.1)
