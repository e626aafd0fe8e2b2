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


class JointHead(PooledHead):
    """An ensemble of a cross head and a cosine head, trained together, whose readings of a pair share one encoder.

    With p the pooled sequence `[CLS] a [SEP] b [SEP]`, u and v the pooled texts a and b, each encoded on its own:

    score: `(1 - g) (W drop(p) + b) + g m(cos(u, v))`; g is the sigmoid of a learned number that starts at 0, and m is
    the `map` of the cosine head: direct `cos`, linear `(1 + cos) / 2`, sigmoid `sigmoid(cos)`. If the task's scores
    are standardized, the linear layer's score is `mean + deviation (W drop(p) + b)`.
    yes_no: the logit `W drop(p) + b + s cos(u, v) + t` with learned s and t.
    classes: `W drop([p; |u-v|; u*v]) + b`.

    Papers: cross-encoders and bi-encoders that learn from each other are in Thakur et al., "Augmented SBERT", 2021, and
    Liu et al., "Trans-Encoder", 2022. Differences: these train one with the outputs of the other; here both are trained
    on the labels, and their sum is the output. Cost: about twice the tokens of cross.
    """

    reading: ClassVar[Reading] = "both"
    texts: ClassVar[tuple[int, ...]] = (2,)

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
        super().__init__(task, labels, 3 * hidden if labels.kind == "classes" else hidden, pooling, dropout)
        self.map = map
        if labels.kind == "score":
            self.gate = nn.Parameter(torch.tensor(0.0))
        if labels.kind == "yes_no":
            self.scale = nn.Parameter(torch.tensor(SCALE))
            self.shift = nn.Parameter(torch.tensor(SHIFT))

    def forward(self, encoded: Encoded) -> Tensor:
        p_BD, u_BD, v_BD = encoded.pool(self.pooling).unflatten(0, (-1, 3)).unbind(1)
        if self.labels.kind == "classes":
            return self.project(torch.cat([p_BD, (u_BD - v_BD).abs(), u_BD * v_BD], dim=-1))
        cross_B = self.project(p_BD).float()
        cos_B = F.cosine_similarity(u_BD.float(), v_BD.float(), dim=-1)
        if self.labels.kind == "yes_no":
            return cross_B + self.scale * cos_B + self.shift
        gate = self.gate.sigmoid()
        return (1 - gate) * cross_B + gate * map_cosine(cos_B, self.map)
