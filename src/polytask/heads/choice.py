"""A linear layer on a text with each of its options."""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from polytask.heads.base import PooledHead
from polytask.kinds.choice import MISSING
from polytask.settings import Rate
from polytask.stream import Encoded, Pooling, Reading
from polytask.types import LabelKind, LabelSpace, Prediction


class ChoiceHead(PooledHead):
    """One number for each option of a row: `w drop(pool(h_m)) + b`, where h_m is `[CLS] text [SEP] option_m [SEP]`.

    The softmax over the options of a row gives their probabilities.
    Paper: Devlin et al., "BERT", 2019, section 4.4 (SWAG), which uses the pooler. The bias b of the usual code is the
    same for all options, so the softmax does not depend on it.
    """

    reading: ClassVar[Reading] = "options"
    texts: ClassVar[tuple[int, ...]] = (1,)
    kinds: ClassVar[tuple[LabelKind, ...]] = ("choice",)

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, pooling: Pooling = "mean", dropout: Rate = 0.1
    ) -> None:
        super().__init__(task, labels, hidden, pooling, dropout)

    def forward(self, encoded: Encoded) -> Tensor:
        given_BM = encoded.given_options()
        outputs_S = self.project(self.features(encoded)).float()
        return outputs_S.view_as(given_BM).masked_fill(~given_BM, MISSING)

    def decode(self, outputs: Tensor) -> list[Prediction]:
        """Return each example's chosen option as its index; `Prediction.with_options` adds the texts."""
        return [replace(prediction, index=int(str(prediction.label))) for prediction in super().decode(outputs)]
