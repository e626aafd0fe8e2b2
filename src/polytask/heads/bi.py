"""A linear layer on two separately encoded texts."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from polytask.heads.base import PooledHead
from polytask.settings import Rate
from polytask.stream import Encoded, Pooling, Reading
from polytask.types import LabelSpace

Form = Literal["concat", "difference", "product"]
NUM_PARTS: dict[Form, int] = {"concat": 2, "difference": 3, "product": 4}


class BiHead(PooledHead):
    """A linear layer on a combination of the vectors u and v of two separately encoded texts.

    Forms: concat `[u; v]`, difference `[u; v; |u-v|]`, product `[u; v; |u-v|; u*v]`.
    Papers: Conneau et al., "InferSent", 2017 (product); Reimers & Gurevych, "Sentence-BERT", 2019 (difference).
    """

    reading: ClassVar[Reading] = "separate"
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
        super().__init__(task, labels, NUM_PARTS[form] * hidden, pooling, dropout)
        self.form = form

    def features(self, encoded: Encoded) -> Tensor:
        u_BD, v_BD = encoded.pool(self.pooling).unflatten(0, (-1, 2)).unbind(1)
        parts = [u_BD, v_BD, (u_BD - v_BD).abs(), u_BD * v_BD]
        return torch.cat(parts[: NUM_PARTS[self.form]], dim=-1)
