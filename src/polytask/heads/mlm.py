"""Plain text with some of its tokens hidden: guess them."""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.heads.base import TextHead
from polytask.stream import Encoded
from polytask.types import LabelSpace, UserError


class MlmHead(TextHead):
    """Masked language model: the tokens that were hidden, guessed from what is left.

    `-log softmax(E LN(gelu(W h + b)) + c)[token]` at each hidden token, with E the encoder's own word vectors, to which
    the decoder is tied. Loss: the mean over all hidden tokens of the step; metric: perplexity, its exponential, where
    lower is better. `share` of a text's tokens is chosen, at least one; of these 80 % become [MASK], 10 % any other
    token, 10 % stay. Training hides other tokens in every pass, evaluation always the same.

    W, b, the norm and c start from the encoder's own where its files have them (`cls.predictions`, as bert-base-uncased
    does), else untrained; the norm's eps is the encoder's. No next-sentence loss; exact GELU, whatever the encoder's
    activation.
    Paper: Devlin et al., "BERT", 2019; before fine-tuning: Gururangan et al., "Don't Stop Pretraining", 2020.
    """

    pretrained: ClassVar[Mapping[str, str]] = {
        "dense.weight": "cls.predictions.transform.dense.weight",
        "dense.bias": "cls.predictions.transform.dense.bias",
        "norm.weight": "cls.predictions.transform.LayerNorm.weight",
        "norm.bias": "cls.predictions.transform.LayerNorm.bias",
        "bias": "cls.predictions.bias",
    }

    def __init__(self, task: str, labels: LabelSpace, hidden: int, *, share: float = 0.15) -> None:
        super().__init__(task, labels)
        if not 0 < share < 1:
            raise UserError(f"recipe: tasks.{task}.head.share: a number between 0 and 1 is needed, found {share}")
        self.masked = share
        self.dense = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)  # the encoder's: see set_norm_eps
        self.bias = nn.Parameter(torch.zeros(labels.vocabulary))
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def set_norm_eps(self, eps: float) -> None:
        self.norm.eps = eps

    def forward(self, encoded: Encoded) -> Tensor:
        assert encoded.labels is not None, "the text of this task was not masked"
        assert encoded.words_VD is not None
        first, last = encoded.layout.sequence_ranges[encoded.task_index]
        asked_M = (encoded.labels >= 0).nonzero().squeeze(-1)
        h_MD = self.norm(F.gelu(self.dense(encoded.hidden_TD[encoded.tokens][asked_M])))
        # An encoder's matrix may have more rows than its tokenizer has tokens.
        logits_MV = F.linear(h_MD, encoded.words_VD[: len(self.bias)], self.bias)
        nll_M = F.cross_entropy(logits_MV.float(), encoded.labels[asked_M], reduction="none")
        ends_S = encoded.layout.cu_seqlens_S1[first + 1 : last + 1].long() - encoded.tokens.start
        text_M = torch.bucketize(asked_M, ends_S, right=True)
        each_M2 = torch.stack((nll_M, torch.ones_like(nll_M)), dim=-1)
        return each_M2.new_zeros(last - first, 2).index_add(0, text_M, each_M2)

    def surprise(self, outputs: Tensor) -> Tensor:
        return outputs
