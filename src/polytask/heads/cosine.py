"""Each text of a pair in its own sequence, compared by the angle between them."""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.heads.base import Head
from polytask.stream import Encoded, Pooling
from polytask.types import LabelKind, LabelSpace, UserError

ScoreMap = Literal["linear", "direct", "sigmoid"]


class CosineHead(Head):
    """cos(u, v) of two separately encoded texts, mapped to the task's range.

    Scores, by `map`: linear `(1 + cos) / 2`, the whole range; direct `cos`, as Sentence-BERT trains it; sigmoid
    `sigmoid(cos)`, one student system's `5 sigmoid(cos)`, which can only give values in [0.27, 0.73] of the range.
    Yes or no: the logit `a cos + b`, a and b learned. Classes have no order an angle could follow, and are refused.
    Paper: Reimers & Gurevych, "Sentence-BERT", 2019.
    """

    apart: ClassVar[bool] = True
    texts: ClassVar[tuple[int, ...]] = (2,)
    kinds: ClassVar[tuple[LabelKind, ...]] = ("yes_no", "score")

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, map: ScoreMap = "linear", pooling: Pooling = "mean"
    ) -> None:
        super().__init__(task, labels)
        if labels.kind == "classes":
            raise UserError(
                f"tasks.{task}.head: cosine gives one number: it fits yes_no and score, not classes; use bi or cross"
            )
        self.map = map
        self.pooling = pooling
        if labels.kind == "yes_no":
            # At the start cos = 0.75, a usual value between unrelated and equal texts, is undecided.
            self.scale = nn.Parameter(torch.tensor(8.0))
            self.shift = nn.Parameter(torch.tensor(-6.0))

    def forward(self, encoded: Encoded) -> Tensor:
        u_BD, v_BD = encoded.pool(self.pooling).float().unflatten(0, (-1, 2)).unbind(1)
        cos_B = F.cosine_similarity(u_BD, v_BD, dim=-1)
        if self.labels.kind == "yes_no":
            return self.scale * cos_B + self.shift
        match self.map:
            case "linear":
                return (1 + cos_B) / 2
            case "direct":
                return cos_B
            case "sigmoid":
                return cos_B.sigmoid()
