"""A pair read as one sequence and as two separate texts."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.heads.base import PooledHead
from polytask.heads.cosine import SCALE, SHIFT, ScoreMap, map_cosine
from polytask.settings import Rate
from polytask.stream import Encoded, Pooling, Reading
from polytask.types import LabelSpace

WITH_CLASSES = ("classes", "multilabel")


class JointHead(PooledHead):
    """An ensemble of a cross-encoder and a bi-encoder that share one encoder and are trained together.

    p is the pooled sequence `[CLS] a [SEP] b [SEP]`; u and v are the pooled texts a and b, each encoded separately.
    Scores: `(1 - g) (W drop(p) + c) + g m(cos(u, v))`, where g is the sigmoid of a learned number that starts at 0.
    The function m, by `map`: linear `(1 + cos) / 2`, direct `cos`, sigmoid `sigmoid(cos)`. If scores are standardized,
    the cross-encoder's is `mean + deviation (W drop(p) + c)`.
    yes_no: the logit `W drop(p) + c + s cos(u, v) + t` with learned s and t, which start at 8 and -6.
    Classes and multilabel: `W drop([p; |u-v|; u*v]) + c`.

    Papers, for the idea of the two readings: Thakur et al., "Augmented SBERT", 2021; Liu et al., "Trans-Encoder", 2022.
    Differences: there, one encoder is trained with the outputs of the other; here both readings are trained on the
    labels, and the output combines them. Cost: about twice the tokens of cross.
    """

    reading: ClassVar[Reading] = "both"
    texts: ClassVar[tuple[int, ...]] = (2,)
    needs_range: ClassVar[bool] = True

    def __init__(
        self,
        task: str,
        labels: LabelSpace,
        hidden: int,
        *,
        pooling: Pooling = "mean",
        dropout: Rate = 0.1,
        map: ScoreMap = "direct",
    ) -> None:
        super().__init__(task, labels, 3 * hidden if labels.kind in WITH_CLASSES else hidden, pooling, dropout)
        self.map = map
        if labels.kind == "score":
            self.gate = nn.Parameter(torch.tensor(0.0))
        if labels.kind == "yes_no":
            self.scale = nn.Parameter(torch.tensor(SCALE))
            self.shift = nn.Parameter(torch.tensor(SHIFT))

    def forward(self, encoded: Encoded) -> Tensor:
        p_BD, u_BD, v_BD = encoded.pool(self.pooling).unflatten(0, (-1, 3)).unbind(1)
        if self.labels.kind in WITH_CLASSES:
            return self.project(torch.cat([p_BD, (u_BD - v_BD).abs(), u_BD * v_BD], dim=-1))
        cross_B = self.project(p_BD).float()
        cos_B = F.cosine_similarity(u_BD.float(), v_BD.float(), dim=-1)
        if self.labels.kind == "yes_no":
            return cross_B + self.scale * cos_B + self.shift
        gate = self.gate.sigmoid()
        return (1 - gate) * cross_B + gate * map_cosine(cos_B, self.map)
