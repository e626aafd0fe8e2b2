"""A linear layer on two or more texts, encoded as one sequence."""

from typing import ClassVar

from polytask.heads.base import PooledHead
from polytask.settings import MOST_TEXTS, Rate
from polytask.stream import Pooling
from polytask.types import LabelSpace


class CrossHead(PooledHead):
    """A linear layer on the pooled sequence `[CLS] a [SEP] b [SEP]`, in which attention compares the texts.

    More than two texts are `[CLS] a [SEP] b [SEP] c [SEP]`, all but the first in segment 1.

    Paper: Devlin et al., "BERT", 2019, section 4.1, which uses the pooler.
    """

    texts: ClassVar[tuple[int, ...]] = tuple(range(2, MOST_TEXTS + 1))

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, pooling: Pooling = "mean", dropout: Rate = 0.1
    ) -> None:
        super().__init__(task, labels, hidden, pooling, dropout)
