"""Contrastive learning on plain text (unsupervised SimCSE)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.heads.base import TextHead
from polytask.settings import Positive
from polytask.stream import Encoded, Pooling, Reading
from polytask.types import LabelSpace

MAX_BLOCK = 1024
"""The largest number of texts that are compared with each other: a split is divided into equal blocks of at most this
size."""


class SimcseHead(TextHead):
    """Unsupervised SimCSE: each text is encoded twice, and dropout makes its vectors u and v differ.

    `-log( exp(cos(u_i, v_i)/temperature) / sum_j exp(cos(u_i, v_j)/temperature) )`, j over the texts of the step; mean
    over the texts. Metric: perplexity, the exponential of the loss (lower is better).
    Evaluation has no dropout, so u = v, and the metric measures how far the texts are from each other.

    Paper: Gao, Yao & Chen, "SimCSE", 2021: temperature 0.05.
    Differences: the paper pools the first token and adds a layer that is used only in training; here `pooling` is the
    mean by default, and there is no extra layer. If the encoder has no dropout, or is frozen, only the other texts
    of the step provide a training signal.
    """

    reading: ClassVar[Reading] = "separate"
    copies: ClassVar[int] = 2
    compares_examples: ClassVar[bool] = True
    pooling: Pooling

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, temperature: Positive = 0.05, pooling: Pooling = "mean"
    ) -> None:
        super().__init__(task, labels)
        self.temperature = temperature
        self.pooling = pooling

    def forward(self, encoded: Encoded) -> Tensor:
        """Return [B, 2, D]: both vectors of each text, normalized to length 1."""
        unit_SD = F.normalize(encoded.pool(self.pooling).float(), dim=-1)
        pairs_B2D: Tensor = unit_SD.unflatten(0, (-1, 2))
        return pairs_B2D

    def surprise(self, outputs: Tensor) -> Tensor:
        parts = [self._nce(block_B2D) for block_B2D in outputs.tensor_split(-(-len(outputs) // MAX_BLOCK))]
        return torch.stack((torch.cat(parts), outputs.new_ones(len(outputs))), dim=-1)

    def uninformed_outputs(self, labels: Tensor) -> Tensor:
        """Return the same vector for all texts, which makes them equally probable."""
        return torch.ones(len(labels), 2, 1)

    def _nce(self, vectors_B2D: Tensor) -> Tensor:
        u_BD, v_BD = vectors_B2D.unbind(1)
        # Not in half precision, which cannot distinguish a cosine of 0.99 from one of 0.995.
        with torch.autocast(u_BD.device.type, enabled=False):
            cos_BB = u_BD @ v_BD.T
        return F.cross_entropy(cos_BB / self.temperature, torch.arange(len(u_BD), device=u_BD.device), reduction="none")
