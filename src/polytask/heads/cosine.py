"""The cosine similarity of two separately encoded texts."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.heads.base import Head
from polytask.stream import Encoded, Pooling, Reading
from polytask.types import LabelKind, LabelSpace

ScoreMap = Literal["linear", "direct", "sigmoid"]
SCALE, SHIFT = 8.0, -6.0
"""Initial a and b of yes_no: the logit is 0 for cos = 0.75, a typical value between unrelated and equal texts."""


class CosineHead(Head):
    """cos(u, v) of two separately encoded texts, mapped to the task's range.

    Scores, by `map`: linear `(1 + cos) / 2`, which covers the whole range; direct `cos`, as Sentence-BERT trains it;
    sigmoid `sigmoid(cos)`, as one student system's `5 sigmoid(cos)`, which covers only [0.27, 0.73] of the range.
    yes_no: the logit `a cos + b` with learned a and b. Classes are not supported: one number cannot rank them.
    Paper: Reimers & Gurevych, "Sentence-BERT", 2019.
    """

    reading: ClassVar[Reading] = "separate"
    texts: ClassVar[tuple[int, ...]] = (2,)
    kinds: ClassVar[tuple[LabelKind, ...]] = ("yes_no", "score")
    needs_range: ClassVar[bool] = True
    pooling: Pooling

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, map: ScoreMap = "linear", pooling: Pooling = "mean"
    ) -> None:
        super().__init__(task, labels)
        self.map = map
        self.pooling = pooling
        if labels.kind == "yes_no":
            self.scale = nn.Parameter(torch.tensor(SCALE))
            self.shift = nn.Parameter(torch.tensor(SHIFT))

    def forward(self, encoded: Encoded) -> Tensor:
        u_BD, v_BD = encoded.pool(self.pooling).float().unflatten(0, (-1, 2)).unbind(1)
        cos_B = F.cosine_similarity(u_BD, v_BD, dim=-1)
        if self.labels.kind == "yes_no":
            return self.scale * cos_B + self.shift
        return map_cosine(cos_B, self.map)


def map_cosine(cos_B: Tensor, map: ScoreMap) -> Tensor:
    """Map cosines to scores on a scale from 0 to 1."""
    match map:
        case "linear":
            return (1 + cos_B) / 2
        case "direct":
            return cos_B
        case "sigmoid":
            return cos_B.sigmoid()
