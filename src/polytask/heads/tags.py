"""A linear layer on the first token of each word."""

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from polytask.heads.base import Head
from polytask.kinds.tokens import Tokens
from polytask.settings import Bounds, Rate
from polytask.stream import Encoded
from polytask.types import LabelKind, LabelSpace, Prediction


class TagsHead(Head):
    """A tag for each word: `W drop(h) + b` with h the state of the word's first token.

    Loss: the mean cross-entropy over all words of the step that have a label. The other tokens of a word have no label
    and no output. A text that is longer than `max_length` is read in windows that start `stride` tokens after each
    other (0: half a window), and each word has its output in the window where it is farthest from a cut.

    Paper: Devlin et al., "BERT", 2019, section 5.3, which also has no conditional random field on top.
    """

    texts: ClassVar[tuple[int, ...]] = (1,)
    kinds: ClassVar[tuple[LabelKind, ...]] = ("tokens",)

    def __init__(
        self,
        task: str,
        labels: LabelSpace,
        hidden: int,
        *,
        dropout: Rate = 0.1,
        stride: Annotated[int, Bounds(0, 10**6)] = 0,
    ) -> None:
        super().__init__(task, labels)
        self.stride = stride
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, self.num_outputs)
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def forward(self, encoded: Encoded) -> Tensor:
        """Return [B, W, C + 1] (see kinds/tokens.py); without words, every token is one: [T, 1, C + 1]."""
        scores_TC = self.output(self.dropout(encoded.hidden_TD[encoded.tokens]))
        if encoded.words is None:
            layout = encoded.layout
            is_real_T = layout.is_real_T[encoded.tokens] if layout.static_shape else torch.ones_like(scores_TC[:, 0])
            return torch.cat([scores_TC, is_real_T[:, None].to(scores_TC.dtype)], -1)[:, None]
        places_BW = encoded.words
        is_word_BW1 = (places_BW >= 0)[..., None].to(scores_TC.dtype)
        scores_BWC = scores_TC[places_BW.clamp(min=0)] * is_word_BW1
        return torch.cat([scores_BWC, is_word_BW1], -1)

    def decode(self, outputs: Tensor) -> list[Prediction]:
        """Return the tags of each text's words, with the probability of each of them."""
        kind = self.kind
        assert isinstance(kind, Tokens)
        tags = kind.decode(outputs.float(), self.labels)
        probabilities = kind.tag_probabilities(outputs.float())
        return [
            Prediction(self.task, label, word_probabilities=shares)
            for (label, _), shares in zip(tags, probabilities, strict=True)
        ]
