"""Dropout masks from random bits: their rate, mean and independence, and the gradient."""

import pytest
import torch

from polytask.kernels.dropout import Dropout, dropout_mask

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_rate_and_the_mean(dtype: torch.dtype, share: float) -> None:
    torch.manual_seed(0)
    mask = dropout_mask((400, 1000), share, dtype).double()
    scale = torch.tensor(1 / (1 - round(share * 2**15) / 2**15), dtype=dtype).double()
    assert mask.unique().tolist() == [0.0, scale.item()]
    dropped = (mask == 0).double()
    deviation = (share * (1 - share) / mask.numel()) ** 0.5
    assert abs(dropped.mean().item() - share) < 4 * deviation
    # Four numbers come from one random word: each of them by itself, and any two of them together.
    four = dropped.view(-1, 4)
    assert (four.mean(0) - share).abs().max().item() < 4 * 2 * deviation
    together = four.T @ four / len(four)
    expected = torch.full((4, 4), share**2, dtype=torch.float64).fill_diagonal_(share)
    assert (together - expected).abs().max().item() < 10 * deviation


def test_it_is_drawn_from_torchs_generator() -> None:
    torch.manual_seed(3)
    one, two = (dropout_mask((7, 11), 0.3, torch.float32) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(dropout_mask((7, 11), 0.3, torch.float32), one)
    assert not torch.equal(one, two)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 0), (5, 7)])
def test_every_shape(shape: tuple[int, ...]) -> None:
    assert dropout_mask(shape, 0.5, torch.float32).shape == shape


def test_the_ends() -> None:
    assert torch.equal(dropout_mask((50,), 1e-9, torch.float32), torch.ones(50))
    assert torch.equal(dropout_mask((50,), 1 - 1e-9, torch.float32), torch.zeros(50))


def test_the_gradient_goes_where_the_value_went() -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 40, requires_grad=True)
    out = Dropout(0.25)(x)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(out.detach(), x.detach() * x.grad)
    assert 0.15 < (x.grad == 0).float().mean().item() < 0.35


def test_nothing_is_dropped_outside_training() -> None:
    x = torch.randn(5, 5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()
