"""Masked language modelling on plain text."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polytask.heads.base import TextHead
from polytask.settings import Bounds
from polytask.stream import Encoded
from polytask.types import LabelSpace


def _names(dense: str, norm: str, bias: str) -> dict[str, str]:
    """The parameters of the head -> their names in the files of an encoder."""
    own = {"dense": dense, "norm": norm}
    names = {f"{ours}.{end}": f"{theirs}.{end}" for ours, theirs in own.items() for end in ("weight", "bias")}
    return {**names, "bias": bias}


class MlmHead(TextHead):
    """Masked language model: predicts the tokens that were masked.

    `-log softmax(E LN(gelu(W h + b)) + c)[token]` at each masked token, with E the encoder's own word embeddings (tied
    decoder). Loss: the mean over all masked tokens of the step; metric: perplexity, its exponential (lower is better).
    `share` of a text's tokens is chosen, at least one; of these 80 % become [MASK], 10 % a random token, 10 % stay.
    Training masks other tokens in every epoch, evaluation always the same ones.

    W, b, the norm and c are loaded from the encoder's files if they include them (as those of bert-base-uncased and
    roberta-base do), else they are initialized randomly; the norm's eps is the encoder's.
    Paper: Devlin et al., "BERT", 2019; before fine-tuning: Gururangan et al., "Don't Stop Pretraining", 2020.
    Differences: no next-sentence loss; always the exact GELU, whatever the encoder's activation.
    """

    pretrained: ClassVar[tuple[Mapping[str, str], ...]] = (
        _names("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        _names("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),  # RoBERTa, XLM-R, MPNet
        _names("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),  # DistilBERT
        # ModernBERT's map and norm have no bias; ours start at zero.
        {"dense.weight": "head.dense.weight", "norm.weight": "head.norm.weight", "bias": "decoder.bias"},
    )

    def __init__(
        self, task: str, labels: LabelSpace, hidden: int, *, share: Annotated[float, Bounds(0, 1, "()")] = 0.15
    ) -> None:
        super().__init__(task, labels)
        self.mask_share = share
        self.dense = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(labels.vocabulary))
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def set_norm_eps(self, eps: float) -> None:
        self.norm.eps = eps

    def forward(self, encoded: Encoded) -> Tensor:
        """Return [B, 2]: for each text the sum of -log p of its masked tokens, and their number."""
        assert encoded.labels is not None, "the text of this task was not masked"
        assert encoded.words_VD is not None
        first, last = encoded.layout.sequence_ranges[encoded.task_index]
        masked_M, ids_M = encoded.labels
        h_MD = self.norm(F.gelu(self.dense(encoded.hidden_TD[encoded.tokens][masked_M])))
        # The encoder's embedding matrix may have more rows than the tokenizer has tokens.
        logits_MV = F.linear(h_MD, encoded.words_VD[: len(self.bias)], self.bias)
        nll_M = F.cross_entropy(logits_MV.float(), ids_M, reduction="none")  # 0 for rows that are ignored
        ends_S = encoded.layout.cu_seqlens_S1[first + 1 : last + 1].long() - encoded.tokens.start
        text_M = torch.bucketize(masked_M, ends_S, right=True)
        nll_and_one_M2 = torch.stack((nll_M, (ids_M >= 0).to(nll_M)), dim=-1)
        # Unlike index_add, this adds in a fixed order on every device.
        return nll_and_one_M2.new_zeros(last - first, 2).index_put((text_M,), nll_and_one_M2, accumulate=True)

    def surprise(self, outputs: Tensor) -> Tensor:
        return outputs

    def uninformed_outputs(self, labels: Tensor) -> Tensor:
        """Return the outputs for one masked token per text, if all tokens of the vocabulary are equally probable."""
        return torch.tensor([[math.log(len(self.bias)), 1.0]]).expand(len(labels), 2)
