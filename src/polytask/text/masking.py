"""Masks tokens of a text for masked language modelling. Knows ids; knows no stream, no task and no model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]
IGNORED = -100
"""The label of a token that is not predicted."""
MASKED, REPLACED = 0.8, 0.1
"""The shares of the chosen tokens that become [MASK] and that become a random token; the rest stays unchanged."""


class MaskedText(NamedTuple):
    ids: Ids
    labels: Ids
    """The original ids of the chosen tokens; IGNORED elsewhere."""


@dataclass(frozen=True)
class Masker:
    """Chooses tokens of a text and masks them (Devlin et al. 2019, appendix A.1).

    Difference: special tokens, including the unknown token, are neither chosen nor used as replacements; BERT's own
    code excludes only [CLS] and [SEP], and draws replacements from the whole vocabulary.
    """

    mask_id: int
    vocabulary: int
    """The number of ids."""
    special_ids: tuple[int, ...]

    @cached_property
    def _ordinary_before_special(self) -> npt.NDArray[np.int64]:
        """For each special id, in order, how many smaller ids are not special."""
        return np.sort(np.array(self.special_ids, dtype=np.int64)) - np.arange(len(self.special_ids))

    def mask(self, ids: Ids, share: float, rng: np.random.Generator) -> MaskedText:
        """Choose `share` of the text's tokens, rounded, and at least one if possible; return them as labels."""
        candidates = np.flatnonzero(~np.isin(ids, self.special_ids))
        count = min(len(candidates), max(1, round(share * len(candidates))))
        chosen = rng.permutation(candidates)[:count]
        fate = rng.random(count)
        masked = ids.astype(np.int64)
        masked[chosen] = np.where(fate < MASKED, self.mask_id, self._random_ids(count, rng))
        unchanged = chosen[fate >= MASKED + REPLACED]
        masked[unchanged] = ids[unchanged]
        labels = np.full(len(ids), IGNORED, dtype=np.int64)
        labels[chosen] = ids[chosen]
        return MaskedText(masked, labels)

    def mask_many(
        self, ids_T: Ids, lengths_N: npt.NDArray[np.int64], share: float, rngs: Iterable[np.random.Generator]
    ) -> tuple[Ids, Ids]:
        """Mask texts that follow each other, each with its own generator; as `mask` does, with fewer operations.

        Returns the masked ids and the places of the chosen tokens, both over all texts.
        """
        candidates = np.flatnonzero(~np.isin(ids_T, self.special_ids))
        ends = np.searchsorted(candidates, lengths_N.cumsum()).tolist()
        chosen, fates, drawn = [], [], []
        for (start, end), rng in zip(pairwise([0, *ends]), rngs, strict=True):
            count = min(end - start, max(1, round(share * (end - start))))
            chosen.append(rng.permutation(candidates[start:end])[:count])
            fates.append(rng.random(count))
            drawn.append(rng.integers(self.vocabulary - len(self.special_ids), size=count))
        if not chosen:
            return ids_T.astype(np.int64), candidates
        places, fate = np.concatenate(chosen), np.concatenate(fates)
        masked = ids_T.astype(np.int64)
        values = np.where(fate < MASKED, self.mask_id, self._ordinary_ids(np.concatenate(drawn)))
        masked[places] = np.where(fate < MASKED + REPLACED, values, ids_T[places])
        return masked, np.sort(places)

    def _random_ids(self, count: int, rng: np.random.Generator) -> Ids:
        """Draw ids uniformly from all but the special ones."""
        return self._ordinary_ids(rng.integers(self.vocabulary - len(self.special_ids), size=count))

    def _ordinary_ids(self, numbers: Ids) -> Ids:
        """The ids with these numbers among those that are not special."""
        return numbers + self._ordinary_before_special.searchsorted(numbers, side="right")


def masked_tokens(texts: Sequence[MaskedText]) -> Ids:
    """[2, M]: the place and the original id of each chosen token, in the texts' sequences `[CLS] text [SEP]`."""
    edge = np.array([IGNORED])
    labels = np.concatenate([part for text in texts for part in (edge, text.labels, edge)])
    places = np.flatnonzero(labels != IGNORED)
    return np.stack([places, labels[places]])


def padded(masked_2M: npt.NDArray[np.generic], room: int) -> Ids:
    """The masked tokens, filled up to `room` of them with some that are ignored."""
    columns = np.repeat(np.array([[0], [IGNORED]]), room, 1)
    columns[:, : masked_2M.shape[1]] = masked_2M
    return columns
