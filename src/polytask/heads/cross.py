"""Both texts of a pair in one sequence, one linear map."""

from typing import ClassVar

from polytask.heads.base import PooledHead
from polytask.stream import Pooling
from polytask.types import LabelSpace, Rate


class CrossHead(PooledHead):
    """A linear layer on the pooled sequence `[CLS] a [SEP] b [SEP]`, so that attention compares the texts word by word.

    Paper: Devlin et al., "BERT", 2019, section 4.1, which pools by the pooler.
    """

    texts: ClassVar[tuple[int, ...]] = (2,)

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, pooling: Pooling = "mean", dropout: Rate = 0.1
    ) -> None:
        super().__init__(task, labels, hidden, pooling, dropout)
