"""Two separately encoded texts that belong together, trained with in-batch negatives."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.heads.base import Head
from polytask.kinds.in_batch import false_negatives, ranking_losses
from polytask.settings import Positive
from polytask.stream import Encoded, Pooling, Reading
from polytask.types import LabelKind, LabelSpace

MAX_BLOCK = 2048
"""The largest number of pairs that are compared with each other: a split is divided into equal blocks of at most this
size."""


class MatchHead(Head):
    """Each first text ranks the second texts of the batch by their cosine, and should rank its own first.

    `-log( exp(cos(u_i, v_i)/temperature) / sum_j exp(cos(u_i, v_j)/temperature) )`, mean over the pairs i of the step,
    where u and v are the pooled texts. The sum has the candidates j of the step but those that are right answers too: a
    v_j with the text of u_i, of v_i, or of another partner of u_i in the step. `symmetric: true` takes the mean with
    the same loss from v to u. The prediction is cos(u, v). There are no parameters.

    Paper: Henderson et al., "Efficient Natural Language Response Suggestion for Smart Reply", 2017.
    Differences: cosines and temperature as in sentence-transformers' MultipleNegativesRankingLoss (scale = 1 /
    temperature), which leaves no candidate out.
    """

    reading: ClassVar[Reading] = "separate"
    texts: ClassVar[tuple[int, ...]] = (2,)
    kinds: ClassVar[tuple[LabelKind, ...]] = ("match",)
    compares_examples: ClassVar[bool] = True
    pooling: Pooling

    def __init__(
        self,
        task: str,
        labels: LabelSpace,
        hidden: int,
        *,
        temperature: Positive = 0.05,
        symmetric: bool = False,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__(task, labels)
        self.temperature = temperature
        self.symmetric = symmetric
        self.pooling = pooling

    def forward(self, encoded: Encoded) -> Tensor:
        """Return [B, 2, D]: the vectors of both texts of each pair, normalized to length 1."""
        unit_SD = F.normalize(encoded.pool(self.pooling).float(), dim=-1)
        pairs_B2D: Tensor = unit_SD.unflatten(0, (-1, 2))
        return pairs_B2D

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean over the pairs; `labels` are the numbers of their texts, [B, 2]."""
        blocks = -(-len(outputs) // MAX_BLOCK)
        parts = zip(outputs.float().tensor_split(blocks), labels.tensor_split(blocks), strict=True)
        return torch.cat([self._losses(vectors_B2D, texts_B2) for vectors_B2D, texts_B2 in parts]).mean()

    def _losses(self, vectors_B2D: Tensor, texts_B2: Tensor) -> Tensor:
        (u_BD, v_BD), (u_B, v_B) = vectors_B2D.unbind(1), texts_B2.unbind(1)
        # Not in half precision, which cannot distinguish a cosine of 0.99 from one of 0.995.
        with torch.autocast(u_BD.device.type, enabled=False):
            scores_BB = u_BD @ v_BD.T / self.temperature
        all_B = torch.ones_like(u_B, dtype=torch.bool)
        losses_B = ranking_losses(scores_BB, false_negatives(u_B, v_B, all_B))
        if self.symmetric:
            losses_B = (losses_B + ranking_losses(scores_BB.T, false_negatives(v_B, u_B, all_B))) / 2
        return losses_B
