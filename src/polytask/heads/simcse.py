"""Plain text: each text's two dropout views near each other, other texts far away."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.heads.base import TextHead
from polytask.stream import Encoded, Pooling
from polytask.types import LabelSpace, UserError

LARGEST = 1024
"""Texts that are compared with each other at most: a whole split is taken in equal blocks of no more than this."""


class SimcseHead(TextHead):
    """Unsupervised SimCSE: each text goes through the encoder twice, and dropout makes its vectors u and v differ.

    `-log( exp(cos(u_i, v_i)/temperature) / sum_j exp(cos(u_i, v_j)/temperature) )`, j over the texts of the step; mean
    over the texts. Metric: perplexity, the exponential of that: among how many texts a text is lost; lower is better.
    Evaluation has no dropout, so that both copies agree, and the number says how far apart the texts lie.

    Paper: Gao, Yao & Chen, "SimCSE", 2021: temperature 0.05, the first token with an extra layer that is there in
    training alone; here `pooling` is the mean by default, and there is no extra layer. Where the encoder has no
    dropout, or is frozen, only the other texts teach anything.
    """

    apart: ClassVar[bool] = True
    copies: ClassVar[int] = 2

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, temperature: float = 0.05, pooling: Pooling = "mean"
    ) -> None:
        super().__init__(task, labels)
        if temperature <= 0:
            raise UserError(f"recipe: tasks.{task}.head.temperature: a number above 0 is needed, found {temperature}")
        self.temperature = temperature
        self.pooling = pooling

    def forward(self, encoded: Encoded) -> Tensor:
        """[B, 2, D]: both vectors of each text, of length 1."""
        unit_SD = F.normalize(encoded.pool(self.pooling).float(), dim=-1)
        pairs_B2D: Tensor = unit_SD.unflatten(0, (-1, 2))
        return pairs_B2D

    def surprise(self, outputs: Tensor) -> Tensor:
        parts = [self._nce(block_B2D) for block_B2D in outputs.tensor_split(-(-len(outputs) // LARGEST))]
        return torch.stack((torch.cat(parts), outputs.new_ones(len(outputs))), dim=-1)

    def _nce(self, vectors_B2D: Tensor) -> Tensor:
        u_BD, v_BD = vectors_B2D.unbind(1)
        # Never in half precision, which cannot tell a cosine of 0.99 from one of 0.995.
        with torch.autocast(u_BD.device.type, enabled=False):
            cos_BB = u_BD @ v_BD.T
        return F.cross_entropy(cos_BB / self.temperature, torch.arange(len(u_BD), device=u_BD.device), reduction="none")
