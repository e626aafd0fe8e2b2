"""Each text of a pair in its own sequence, a linear map on both vectors."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from polytask.heads.base import PooledHead
from polytask.stream import Encoded, Pooling
from polytask.types import LabelSpace, Rate

Form = Literal["concat", "difference", "product"]
PARTS: dict[Form, int] = {"concat": 2, "difference": 3, "product": 4}


class BiHead(PooledHead):
    """A linear layer on what two separately encoded texts u and v give.

    Forms: concat `[u; v]`, difference `[u; v; |u-v|]`, product `[u; v; |u-v|; u*v]`.
    Papers: Conneau et al., "InferSent", 2017 (product); Reimers & Gurevych, "Sentence-BERT", 2019 (difference).
    """

    apart: ClassVar[bool] = True
    texts: ClassVar[tuple[int, ...]] = (2,)

    def __init__(
        self,
        task: str,
        labels: LabelSpace,
        hidden: int,
        *,
        form: Form = "difference",
        pooling: Pooling = "mean",
        dropout: Rate = 0.1,
    ) -> None:
        super().__init__(task, labels, PARTS[form] * hidden, pooling, dropout)
        self.form = form

    def features(self, encoded: Encoded) -> Tensor:
        u_BD, v_BD = encoded.pool(self.pooling).unflatten(0, (-1, 2)).unbind(1)
        parts = [u_BD, v_BD, (u_BD - v_BD).abs(), u_BD * v_BD]
        return torch.cat(parts[: PARTS[self.form]], dim=-1)
