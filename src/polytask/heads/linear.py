"""A linear layer on one text."""

from typing import ClassVar

from polytask.heads.base import PooledHead
from polytask.settings import Rate
from polytask.stream import Pooling
from polytask.types import LabelSpace


class LinearHead(PooledHead):
    """A linear layer on the pooled text: `W drop(pool(h)) + b`.

    Paper: Devlin et al., "BERT", 2019, section 4.1, which uses the pooler.
    """

    texts: ClassVar[tuple[int, ...]] = (1,)

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, pooling: Pooling = "mean", dropout: Rate = 0.1
    ) -> None:
        super().__init__(task, labels, hidden, pooling, dropout)
