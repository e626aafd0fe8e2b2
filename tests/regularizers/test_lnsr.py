"""Noise of the right norm at the right layer, the same dropout on both sides, and filler left out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.lnsr import Lnsr
from polytask.stream import Stream
from polytask.types import UserError


class Times(nn.Module):
    """A layer that multiplies its input, so that the effect of noise is known."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, h_TD: Tensor, layout: Any, adapter: Any) -> Tensor:
        return self.factor * h_TD


def linear_toy(make: Any) -> MultiTaskModel:
    model: MultiTaskModel = make(dropout=0.0)
    model.encoder.layers = nn.ModuleList([Times(2.0), Times(3.0)])
    return model


def run(model: MultiTaskModel, stream: Stream, seed: int = 1) -> Pass:
    torch.manual_seed(seed)
    return model.run(stream)


def penalty(regularizer: Lnsr, model: MultiTaskModel, forward: Pass, seed: int = 2) -> Tensor:
    torch.manual_seed(seed)
    return regularizer.penalty(model, forward)


def test_the_noise_of_every_token_is_a_share_of_its_vector(
    tiny_model: Any, tiny_stream: Any, make_context: Any
) -> None:
    x_TD = torch.randn(9, 16) * torch.logspace(-3, 3, 9)[:, None]
    model = tiny_model()
    e_TD = Lnsr(make_context(model), share=0.05).noise(x_TD, run(model, tiny_stream()), 7)
    torch.testing.assert_close(e_TD[:7].norm(dim=-1), 0.05 * x_TD[:7].norm(dim=-1))
    assert not e_TD[7:].any()
    directions = e_TD[:7] / e_TD[:7].norm(dim=-1, keepdim=True)
    assert (directions @ directions.T - torch.eye(7)).abs().max() < 0.9  # each its own


@pytest.mark.parametrize("dropout", ["same", "off"])
@pytest.mark.parametrize(("layer", "lambdas", "factor"), [(0, None, 2**2 + 6**2), (0, (0.5, 2.0), 74), (1, None, 9)])
def test_worked_out_by_hand(
    tiny_model: Any, tiny_stream: Any, make_context: Any, dropout: Any, layer: int, lambdas: Any, factor: float
) -> None:
    """After `2 x` and `3 (2 x)` noise e is 2 e and 6 e; added to the second layer's input it is 3 e."""
    model = linear_toy(tiny_model)
    forward = run(model, tiny_stream())
    regularizer = Lnsr(make_context(model), weight=0.5, layer=layer, lambdas=lambdas, dropout=dropout)
    lengths_T = forward.states[layer].square().sum(-1)
    expected = 0.5 * factor * (0.05**2 * lengths_T / 16).mean()
    torch.testing.assert_close(penalty(regularizer, model, forward), expected)


@pytest.mark.parametrize("dropout", ["same", "off"])
def test_the_gradient_goes_through_both_sides(
    tiny_model: Any, tiny_stream: Any, make_context: Any, dropout: Any
) -> None:
    """(2 e)^2 + (6 e)^2 with 6 = 3 * 2: by 3, the derivative is 2 * 6 * 2 e^2. One side fixed would give e x terms."""
    model = linear_toy(tiny_model)
    forward = run(model, tiny_stream())
    penalty(Lnsr(make_context(model), dropout=dropout), model, forward).backward()
    unit = (0.05**2 * forward.states[0].square().sum(-1) / 16).mean()
    torch.testing.assert_close(model.encoder.layers[1].factor.grad, (24 * unit).detach())


@pytest.mark.parametrize("adapter", ["none", "pal", "own_encoder"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("bf16", [False, True])
def test_without_noise_the_same_dropout_leaves_nothing(
    tiny_model: Any, tiny_stream: Any, make_context: Any, adapter: str, layer: int, bf16: bool
) -> None:
    options = {"size": 4, "heads": 2} if adapter == "pal" else {}
    model = tiny_model(adapter, dropout=0.3, options=options)
    with torch.no_grad():
        for parameter in model.adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        forward = run(model, tiny_stream())
        regularizer = Lnsr(make_context(model), layer=layer, share=0.0)
        assert penalty(regularizer, model, forward).item() == 0
        assert penalty(Lnsr(make_context(model), layer=layer), model, forward).item() > 0


def test_small_noise_is_squared(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    """A tenth of the noise is a hundredth of the penalty: there is no other difference between the sides."""
    model = tiny_model(dropout=0.3)
    forward = run(model, tiny_stream())
    large, small = (penalty(Lnsr(make_context(model), share=s), model, forward).item() for s in (1e-2, 1e-3))
    assert large / small == pytest.approx(100, rel=0.05)


def test_off_means_off(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    """For any dropout of the model and of the step's pass; afterwards the modes are restored."""
    found = []
    for dropout in (0.0, 0.5):
        model = tiny_model(dropout=dropout)
        forward = run(model, tiny_stream())
        found.append(penalty(Lnsr(make_context(model), dropout="off"), model, forward))
        assert all(module.training for module in model.modules())
    torch.testing.assert_close(found[0], found[1])
    model.encoder.eval()  # frozen
    penalty(Lnsr(make_context(model), dropout="off"), model, forward)
    assert not any(module.training for module in model.encoder.modules())
    assert model.adapter.training


def test_filler_is_left_out(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model(dropout=0.0)
    regularizer = Lnsr(make_context(model))
    tight, filled = (
        penalty(regularizer, model, run(model, tiny_stream(token_budget=budget))) for budget in (None, 256)
    )
    torch.testing.assert_close(filled, tight, atol=1e-7, rtol=1e-4)


def test_a_mixed_stream_is_the_mean_over_its_tokens(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model(dropout=0.0)
    regularizer = Lnsr(make_context(model))
    first, both = tiny_stream(["topic"]), tiny_stream(["topic", "alike"])
    forward = run(model, both)
    whole = penalty(regularizer, model, forward)
    x_TD = forward.states[0]
    torch.manual_seed(2)
    noisy = list(model.encoder.states(x_TD + regularizer.noise(x_TD, forward, len(x_TD)), both.layout, model.adapter))
    of_token_T = sum(((n - c).square().sum(-1) / 16 for n, c in zip(noisy, forward.states[1:], strict=True)))
    torch.testing.assert_close(whole, of_token_T.mean())
    torch.testing.assert_close(  # noise is drawn token by token, so the first task's is the same alone
        penalty(regularizer, model, run(model, first)), of_token_T[: len(first.token_ids_T)].mean()
    )


def test_one_more_pass_and_no_more(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    calls: list[bool] = []
    for layer in model.encoder.layers:
        layer.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    forward = run(model, tiny_stream())
    for layer, expected in [(0, [True, True]), (1, [False, True])]:
        calls.clear()
        penalty(Lnsr(make_context(model), layer=layer), model, forward)
        assert calls == expected


def test_a_frozen_encoder_has_a_penalty_without_gradient(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    model.encoder.requires_grad_(False).eval()
    value = penalty(Lnsr(make_context(model)), model, run(model, tiny_stream()))
    assert value > 0
    assert not value.requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 2}, r"lnsr\.layer: must be in \[0, 1\], found 2"),
        ({"layer": 1, "lambdas": (1.0, 1.0)}, r"lnsr\.lambdas: must have 1 numbers, one for each layer from 1 on"),
    ],
)
def test_refused_options(tiny_model: Any, make_context: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Lnsr(make_context(tiny_model()), **options)
