"""A linear layer on both texts of a pair, encoded as one sequence."""

from typing import ClassVar

from polytask.heads.base import PooledHead
from polytask.settings import Rate
from polytask.stream import Pooling
from polytask.types import LabelSpace


class CrossHead(PooledHead):
    """A linear layer on the pooled sequence `[CLS] a [SEP] b [SEP]`, in which attention compares the texts.

    Paper: Devlin et al., "BERT", 2019, section 4.1, which uses the pooler.
    """

    texts: ClassVar[tuple[int, ...]] = (2,)

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, pooling: Pooling = "mean", dropout: Rate = 0.1
    ) -> None:
        super().__init__(task, labels, hidden, pooling, dropout)
