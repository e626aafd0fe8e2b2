"""Noise stability: little noise inside the encoder should change the layers above it little."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from polytask.losses.base import at_least_float32
from polytask.modes import eval_mode
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.seeds import RandomState
from polytask.settings import NonNegative
from polytask.types import UserError

if TYPE_CHECKING:
    from polytask.model import MultiTaskModel, Pass

Dropout = Literal["same", "off"]


class Lnsr(Regularizer):
    """Noise stability (LNSR): `weight * sum_{r>=b} lambda_r |h_r(x+e) - h_r(x)|^2 / D`, noise e on layer b's input x.

    h_r is the output of layer r; b is `layer`, counted from 0, whose input is the output of the embeddings. Each
    token's e has a random direction and a norm of `share` times the norm of the token's x. `lambdas`: one factor per
    layer from b on; left out, all are 1. Mean over the real tokens of the stream, all tasks together, without filler.
    The gradient flows through both sides.
    dropout same: both sides have the dropout of the step's forward pass, whose states are the clean side. Cost: 2 plain
    steps. dropout off, as in the paper: both sides are computed without dropout. Cost: 3 plain steps.

    Paper: Hua et al., "Noise Stability Regularization for Improving BERT Fine-tuning", 2021.
    Difference: the paper's second kind of noise, towards the vectors of other words, is not implemented.
    """

    capturable = True
    divisible = True

    def __init__(
        self,
        context: RegularizerContext,
        *,
        weight: NonNegative = 1.0,
        layer: int = 0,
        share: NonNegative = 0.05,
        lambdas: tuple[NonNegative, ...] | None = None,
        dropout: Dropout = "same",
    ) -> None:
        super().__init__(context)
        where, layers = "recipe: regularizers: lnsr", context.model.encoder.shape.layers
        if not 0 <= layer < layers:
            raise UserError(f"{where}.layer: must be in [0, {layers - 1}], found {layer}")
        if lambdas is not None and len(lambdas) != layers - layer:
            raise UserError(
                f"{where}.lambdas: must have {layers - layer} numbers, one for each layer from {layer} on, "
                f"found {len(lambdas)}"
            )
        self.weight = weight
        self.layer = layer
        self.share = share
        self.lambdas = lambdas or (1.0,) * (layers - layer)
        self.dropout = dropout

    def penalty(self, model: "MultiTaskModel", forward: "Pass") -> Tensor:
        layout = forward.stream.layout
        real = max(last for _, last in layout.token_ranges)
        states = self._with_same_dropout if self.dropout == "same" else self._without_dropout
        clean, noisy = ([h_TD[:real] for h_TD in side] for side in states(model, forward, real))
        # Only streams of static shape have filler among these tokens.
        is_real_T = layout.is_real_T if layout.static_shape else None
        return forward.stream.token_share * self.weight * state_distance(clean, noisy, self.lambdas, is_real_T)

    def noise(self, x_TD: Tensor, forward: "Pass", real: int) -> Tensor:
        """Draw e, without gradient; it is zero for filler, which is in the rows from `real` on."""
        x_TD = x_TD.detach()
        e_TD = torch.zeros_like(x_TD)
        e_TD[:real] = noise_of(x_TD[:real], self.share, forward.stream.normal_like(x_TD[:real]))
        return e_TD

    def _with_same_dropout(
        self, model: "MultiTaskModel", forward: "Pass", real: int
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the outputs of the layers from b on, clean and noisy."""
        encoder, adapter, layout = model.encoder, model.adapter, forward.stream.layout
        x_TD = forward.states[self.layer]
        noisy_TD = x_TD + self.noise(x_TD, forward, real)
        with forward.random.replay():
            # The layers below b run only to draw their random numbers, so that layer b draws the same ones as before.
            with torch.no_grad():
                h_TD = encoder.embed(forward.stream, adapter, forward.words_TD)
                for _ in islice(encoder.states(h_TD, layout, adapter), self.layer):
                    pass
            noisy = list(encoder.states(noisy_TD, layout, adapter, self.layer))
        return forward.states[self.layer + 1 :], noisy

    def _without_dropout(
        self, model: "MultiTaskModel", forward: "Pass", real: int
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the outputs of the layers from b on, clean and noisy."""
        encoder, adapter, layout = model.encoder, model.adapter, forward.stream.layout
        with eval_mode(model):
            embedded_TD = encoder.embed(forward.stream, adapter, forward.words_TD)
            clean = [embedded_TD, *encoder.states(embedded_TD, layout, adapter)]
            x_TD = clean[self.layer]
            noisy = list(encoder.states(x_TD + self.noise(x_TD, forward, real), layout, adapter, self.layer))
        return clean[self.layer + 1 :], noisy


def noise_of(x_TD: Tensor, share: float, direction_TD: Tensor) -> Tensor:
    """Return noise in this direction for each token, with a norm of `share` times the norm of the token's x."""
    norm_T1 = share * x_TD.norm(dim=-1, keepdim=True)
    noise_TD: Tensor = direction_TD * (norm_T1 / direction_TD.norm(dim=-1, keepdim=True))
    return noise_TD


def state_distance(
    clean: Sequence[Tensor], noisy: Sequence[Tensor], lambdas: Sequence[float], is_real_T: Tensor | None
) -> Tensor:
    """`sum_r lambda_r |noisy_r - clean_r|^2 / D`, mean over the real tokens (None: all tokens are real)."""
    parts = [
        factor * mean_square(at_least_float32(noisy_TD) - at_least_float32(clean_TD), is_real_T)
        for factor, clean_TD, noisy_TD in zip(lambdas, clean, noisy, strict=True)
    ]
    return torch.stack(parts).sum()


def mean_square(x_TD: Tensor, is_real_T: Tensor | None) -> Tensor:
    """Mean of the squares over the real tokens."""
    if is_real_T is None:
        return x_TD.square().mean()
    return (x_TD.square().mean(-1) * is_real_T).sum() / is_real_T.sum()


def penalty_of(
    layers: Callable[[Tensor], Sequence[Tensor]],
    x_BLD: Tensor,
    *,
    share: float = 0.05,
    lambdas: Sequence[float] | None = None,
    mask_BL: Tensor | None = None,
) -> tuple[Sequence[Tensor], Tensor]:
    """Return the states `layers(x)` of any model and LNSR's penalty `sum_r lambda_r |h_r(x+e) - h_r(x)|^2 / D`.

    `layers` maps the input x of a layer, such as the output of the embeddings, to the outputs of that layer and of
    those above it, each [B, L, D]. It is called twice, with the same dropout. Where `mask_BL` is 0, tokens are padding:
    they get no noise and have no part in the mean. The formula is that of `Lnsr`, with a weight of 1.
    """
    random = RandomState(x_BLD.device)
    clean = layers(x_BLD)
    e_BLD = noise_of(x_BLD.detach(), share, torch.randn_like(x_BLD))
    if mask_BL is not None:
        e_BLD = e_BLD * mask_BL[..., None]
    with random.replay():
        noisy = layers(x_BLD + e_BLD)
    lambdas = [1.0] * len(clean) if lambdas is None else lambdas
    if len(lambdas) != len(clean):
        raise UserError(f"lambdas: must have {len(clean)} numbers, one for each of the layers, found {len(lambdas)}")
    return clean, state_distance(clean, noisy, lambdas, mask_BL)
