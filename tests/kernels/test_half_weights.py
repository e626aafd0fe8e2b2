"""bf16 copies of weights: autocast's numbers, right whenever they stand in, one for each weight."""

import torch
from torch import nn

from polytask.kernels.half_weights import HalfWeights
from polytask.training.averages import RunningAverage


def test_the_numbers_are_autocasts_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4))
    x = torch.randn(8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = model(x)
        wanted.square().mean().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    half = HalfWeights(model)
    with half.swapped_in(), torch.autocast("cpu", torch.bfloat16):
        found = model(x)
        found.square().mean().backward()
    half.move_gradients()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.dtype == torch.float32
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=0)


def test_copies_are_cast_anew_where_torch_has_changed_the_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[1].requires_grad_(False)
    half = HalfWeights(model)
    average = RunningAverage(model, 0.5)
    first = model[0].weight

    def right() -> list[bool]:
        half.refresh()
        return [torch.equal(copy, full.detach().bfloat16()) for full, copy in half.copies.items()]

    half.copies[first].detach().zero_()
    assert right() == [False, True, True, True], "what nobody has changed is left alone"
    other = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model.load_state_dict(other.state_dict())
    assert all(right())
    first.grad = torch.ones(3, 4)
    torch.optim.AdamW([first], foreach=True).step()
    assert all(right())
    torch.optim.AdamW([first], fused=True).step()
    half.forget()
    assert all(right())
    half.copies[first].detach().zero_()
    with average.swapped_in(model):
        pass
    assert right() == [False, True, True, True], "an average stands in for them, and they are what they were"
    with average.swapped_in(model):
        assert all(right())
    assert all(right())


def test_a_weight_in_two_places_has_one_copy_and_all_of_its_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    x = torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        model(x).square().mean().backward()
    wanted = model[0].weight.grad
    model.zero_grad(set_to_none=True)
    half = HalfWeights(model)
    with half.swapped_in(), torch.autocast("cpu", torch.bfloat16):
        model(x).square().mean().backward()
    half.move_gradients()
    torch.testing.assert_close(model[0].weight.grad, wanted, rtol=2e-2, atol=1e-4)
