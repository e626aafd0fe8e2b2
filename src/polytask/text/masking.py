"""Hides tokens of a text, for a model that learns to guess them. Knows ids; knows no stream, no task and no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]
NOT_ASKED = -100
"""The label of a token that is not to be guessed."""
HIDDEN, REPLACED = 0.8, 0.1
"""Of the chosen tokens: the share that becomes [MASK], and the share that becomes another token; the rest stays."""


class MaskedText(NamedTuple):
    ids: Ids
    labels: Ids
    """What the chosen tokens were; NOT_ASKED elsewhere."""


@dataclass(frozen=True)
class Masker:
    """Chooses tokens of a text and hides them (Devlin et al. 2019, appendix A.1).

    Special tokens, the unknown one among them, are neither chosen nor put in a token's place; BERT's own code leaves
    out [CLS] and [SEP] alone, and draws from the whole vocabulary.
    """

    mask_id: int
    vocabulary: int
    """How many ids there are."""
    special_ids: tuple[int, ...]

    def mask(self, ids: Ids, share: float, rng: np.random.Generator) -> MaskedText:
        """`share` of the text's tokens, rounded, and at least one where there is any, are to be guessed."""
        candidates = np.flatnonzero(~np.isin(ids, self.special_ids))
        count = min(len(candidates), max(1, round(share * len(candidates))))
        chosen = rng.permutation(candidates)[:count]
        what = rng.random(count)
        masked = ids.astype(np.int64)
        masked[chosen] = np.where(what < HIDDEN, self.mask_id, self._others(count, rng))
        kept = chosen[what >= HIDDEN + REPLACED]
        masked[kept] = ids[kept]
        labels = np.full(len(ids), NOT_ASKED, dtype=np.int64)
        labels[chosen] = ids[chosen]
        return MaskedText(masked, labels)

    def _others(self, count: int, rng: np.random.Generator) -> Ids:
        """Any ids but the special ones, all with the same chance."""
        drawn = rng.integers(self.vocabulary - len(self.special_ids), size=count)
        for special in sorted(self.special_ids):
            drawn += drawn >= special
        return drawn


def token_labels(texts: Sequence[MaskedText]) -> Ids:
    """The labels of these texts' sequences, one after another: `[CLS]` and `[SEP]` around each are not asked for."""
    edge = np.array([NOT_ASKED])
    return np.concatenate([part for text in texts for part in (edge, text.labels, edge)])
