"""Noise stability: a little noise inside the encoder changes the layers above it little."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.types import NonNegative, UserError

Dropout = Literal["same", "off"]


class Lnsr(Regularizer):
    """Noise stability (LNSR): `weight * sum_{r>=b} lambda_r |h_r(x+e) - h_r(x)|^2 / D`, noise e on layer b's input x.

    h_r is the output of layer r; b is `layer`, counted from 0, whose input is the embeddings' output. Every token's e
    has a random direction and the length `share` times that of the token's x. `lambdas`: one factor for each layer from
    b on; left out, all are 1. Mean over the real tokens of the stream, all tasks together; filler takes no part. The
    gradient goes through both sides.
    dropout same: both sides have the dropout of the step's own pass, whose states are the clean side. Costs twice a
    plain step. dropout off, the paper's: both sides are computed without. Costs three times a plain step.

    Paper: Hua et al., "Noise Stability Regularization for Improving BERT Fine-tuning", 2021. Its second kind of noise,
    towards the vectors of other words, is not here.
    """

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
            raise UserError(f"{where}.layer: a number from 0 to {layers - 1} is needed, found {layer}")
        if share < 0:
            raise UserError(f"{where}.share: a number from 0 is needed, found {share:g}")
        if lambdas is not None and len(lambdas) != layers - layer:
            raise UserError(
                f"{where}.lambdas: {layers - layer} numbers are needed, one for each layer from {layer} on, "
                f"found {len(lambdas)}"
            )
        self.weight = weight
        self.layer = layer
        self.share = share
        self.lambdas = lambdas or (1.0,) * (layers - layer)
        self.dropout = dropout

    def penalty(self, model: MultiTaskModel, done: Pass) -> Tensor:
        real = max(last for _, last in done.stream.layout.token_ranges)
        both = self._same_dropout(model, done, real) if self.dropout == "same" else self._no_dropout(model, done, real)
        parts = [
            factor * _mean_square(noisy_TD[:real], clean_TD[:real])
            for factor, clean_TD, noisy_TD in zip(self.lambdas, *both, strict=True)
        ]
        return self.weight * torch.stack(parts).sum()

    def noise(self, x_TD: Tensor, real: int) -> Tensor:
        """e: zero for filler, which are the rows from `real` on. A number as far as the gradient goes."""
        x_TD = x_TD.detach()
        e_TD = torch.zeros_like(x_TD)
        direction_TD = torch.randn_like(x_TD[:real])
        length_T1 = self.share * x_TD[:real].norm(dim=-1, keepdim=True)
        e_TD[:real] = direction_TD * (length_T1 / direction_TD.norm(dim=-1, keepdim=True))
        return e_TD

    def _same_dropout(self, model: MultiTaskModel, done: Pass, real: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The outputs of the layers from b on, clean and noisy."""
        encoder, adapter, layout = model.encoder, model.adapter, done.stream.layout
        x_TD = done.states[self.layer]
        noisy_TD = x_TD + self.noise(x_TD, real)
        with done.random.again():
            # The layers below b are run for their random numbers alone: those that follow are b's.
            with torch.no_grad():
                h_TD = encoder.embed(done.stream, adapter, done.words_TD)
                for _ in islice(encoder.states(h_TD, layout, adapter), self.layer):
                    pass
            noisy = list(encoder.states(noisy_TD, layout, adapter, self.layer))
        return done.states[self.layer + 1 :], noisy

    def _no_dropout(self, model: MultiTaskModel, done: Pass, real: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        encoder, adapter, layout = model.encoder, model.adapter, done.stream.layout
        with _evaluating(model):
            embedded_TD = encoder.embed(done.stream, adapter, done.words_TD)
            clean = [embedded_TD, *encoder.states(embedded_TD, layout, adapter)]
            x_TD = clean[self.layer]
            noisy = list(encoder.states(x_TD + self.noise(x_TD, real), layout, adapter, self.layer))
        return clean[self.layer + 1 :], noisy


def _mean_square(one_TD: Tensor, other_TD: Tensor) -> Tensor:
    """Mean over tokens of `|one - other|^2 / D`, in float32 at least."""
    wide = torch.promote_types(one_TD.dtype, torch.float32)
    return (one_TD.to(wide) - other_TD.to(wide)).square().mean()


@contextmanager
def _evaluating(model: MultiTaskModel) -> Iterator[None]:
    """Encoder and adapter without dropout; afterwards as they were (a frozen encoder has none anyway)."""
    were = [(part, part.training) for part in (model.encoder, model.adapter)]
    for part, _ in were:
        part.eval()
    try:
        yield
    finally:
        for part, was in were:
            part.train(was)
