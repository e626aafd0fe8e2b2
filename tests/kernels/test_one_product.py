"""Several linear maps as one product: the same numbers and gradients as one by one."""

import pytest
import torch
from torch import Tensor, nn

from polytask.kernels.half_weights import HalfWeights
from polytask.kernels.one_product import ZeroPadding, joined, one_product


def three_maps(sizes: tuple[int, ...], features: int = 64) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(features, size) for size in sizes)


def of_maps(x: Tensor, maps: nn.ModuleList) -> Tensor:
    return one_product(x, [m.weight for m in maps], [m.bias for m in maps])  # type: ignore[misc]


def gradients(out: Tensor, x: Tensor, maps: nn.Module) -> list[Tensor]:
    learning = [x, *(p for p in maps.parameters() if p.requires_grad)]
    return list(torch.autograd.grad(out, learning, torch.linspace(-1, 1, out.numel()).view(out.shape).to(out)))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (3, 5)])
def test_outputs_and_gradients(sizes: tuple[int, ...], frozen: bool) -> None:
    maps = three_maps(sizes)
    maps.requires_grad_(not frozen)
    x = torch.randn(7, 64, requires_grad=True)
    one, apart = of_maps(x, maps), torch.cat([m(x) for m in maps], 1)
    torch.testing.assert_close(one, apart)
    torch.testing.assert_close(gradients(one, x, maps), gradients(apart, x, maps))


def test_neighbouring_copies_in_bf16_are_one_matrix_and_gradients_come_in_bf16() -> None:
    maps = three_maps((64, 64, 64))
    half = HalfWeights(maps)
    weights = [half.copies[m.weight] for m in maps]  # type: ignore[index]
    assert joined(weights).data_ptr() == weights[0].data_ptr()
    assert torch.equal(joined(weights), torch.cat(weights))
    biases = [half.copies[m.bias] for m in maps]  # type: ignore[index]
    assert joined(biases).data_ptr() == biases[0].data_ptr()
    assert joined(weights[::-1]).data_ptr() != weights[2].data_ptr()
    assert torch.equal(joined(weights[::-1]), torch.cat(weights[::-1]))
    x = torch.randn(7, 64).bfloat16()
    with half.swapped_in(), torch.autocast("cpu", torch.bfloat16):
        one, apart = of_maps(x.float(), maps), torch.cat([m(x) for m in maps], 1)
    torch.testing.assert_close(one, apart)
    one.float().sum().backward()
    assert all(copy.grad is not None and copy.grad.dtype == torch.bfloat16 for copy in half.copies.values())


def test_what_only_happens_to_lie_side_by_side_is_copied() -> None:
    flat = torch.arange(12.0)
    one, two = flat[:6].view(3, 2), flat[6:].view(3, 2)
    assert joined([one, two]).data_ptr() == one.data_ptr()
    assert joined([one, two.clone()]).data_ptr() != one.data_ptr()
    assert torch.equal(joined([one, two[:, :1].expand(3, 2)]), torch.cat([one, two[:, :1].expand(3, 2)]))


@pytest.mark.parametrize("padding", [ZeroPadding(3, 2, 4), ZeroPadding(1, 5, 0), ZeroPadding(6, 0, 3), ZeroPadding()])
def test_padded_with_zeros(padding: ZeroPadding) -> None:
    maps = three_maps((12,), features=8)
    (linear,) = maps
    assert isinstance(linear, nn.Linear)
    x = torch.randn(7, 8 + padding.columns, requires_grad=True)
    wide = one_product(x, [linear.weight], [linear.bias], padding)
    expected = linear(x[:, :8])
    in_blocks = wide.unflatten(1, (padding.blocks, -1))
    own = 12 // padding.blocks
    assert not in_blocks[..., own:].any()
    torch.testing.assert_close(in_blocks[..., :own].flatten(1), expected)
    found = gradients(in_blocks[..., :own].flatten(1), x, maps)
    torch.testing.assert_close(found, gradients(expected, x, maps))
    assert all(g.is_contiguous() for g in found)
