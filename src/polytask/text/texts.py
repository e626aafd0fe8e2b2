"""The token ids of some examples in one array, so that many texts are packed with few operations. Knows ids only."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from polytask.text.masking import Ids
from polytask.types import SharedExamples, TokenizedExamples


@dataclass(frozen=True)
class Texts:
    """N examples of W texts each, as slices of an array of ids. Iterating yields the tuple of texts of each example."""

    ids: Ids
    """May contain other texts too, such as those of a whole store."""
    starts_NW: npt.NDArray[np.int64]
    """Where each text starts in `ids`."""
    lengths_NW: npt.NDArray[np.int64]
    """The number of tokens of each text."""
    tags: Ids | None = None
    """The tag of each token of `ids`; None if there are no tags."""
    words: Ids | None = None
    """A number for each token of `ids`: not 0 if it is the first token of a word that has an output (`tags` heads)."""
    owned_N2: npt.NDArray[np.int64] | None = None
    """Of windows (`windows.cut_windows`), the part of each text whose words have their output here: the first token,
    counted from the start of the text, and the one after the last."""

    @classmethod
    def of(cls, texts: "Sequence[tuple[Ids, ...]] | Texts") -> "Texts":
        """Concatenate the texts of some examples."""
        if isinstance(texts, Texts):
            return texts
        lengths_NW = _lengths(texts)
        ends = lengths_NW.cumsum().reshape(lengths_NW.shape)
        flat = [text for example in texts for text in example]
        return cls(np.concatenate(flat) if flat else np.zeros(0, dtype=np.int64), ends - lengths_NW, lengths_NW)

    def take(self, indices: npt.NDArray[np.integer]) -> "Texts":
        """Some of the examples, in this order."""
        owned_N2 = None if self.owned_N2 is None else self.owned_N2[indices]
        return Texts(self.ids, self.starts_NW[indices], self.lengths_NW[indices], self.tags, self.words, owned_N2)

    def repeated(self, copies: int) -> "Texts":
        """Each example with its texts repeated `copies` times."""
        if copies == 1:
            return self
        starts_NW, lengths_NW = (np.tile(numbers_NW, (1, copies)) for numbers_NW in (self.starts_NW, self.lengths_NW))
        return Texts(self.ids, starts_NW, lengths_NW, self.tags)

    def separate(self) -> "Texts":
        """Each text as an example of its own."""
        return replace(self, starts_NW=self.starts_NW.reshape(-1, 1), lengths_NW=self.lengths_NW.reshape(-1, 1))

    def truncated(self, max_length: int, cut_start: bool = False) -> "Texts":
        """Truncate each text, without copying anything."""
        lengths_NW = np.minimum(self.lengths_NW, max_length)
        starts_NW = self.starts_NW + (self.lengths_NW - lengths_NW if cut_start else 0)
        return replace(self, starts_NW=starts_NW, lengths_NW=lengths_NW)

    def widened(self, width: int) -> "Texts":
        """The same examples with empty texts behind their own, up to `width` texts each."""
        missing = ((0, 0), (0, width - self.lengths_NW.shape[1]))
        return replace(self, starts_NW=np.pad(self.starts_NW, missing), lengths_NW=np.pad(self.lengths_NW, missing))

    def with_each_option(self) -> "Texts":
        """Examples of a text and M options as M pairs each: the text and one of the options.

        A missing option, which has no tokens, is a pair of two empty texts.
        """
        numbers = []
        for numbers_NW in (self.starts_NW, self.lengths_NW):
            text_NM, option_NM = np.broadcast_to(numbers_NW[:, :1], numbers_NW[:, 1:].shape), numbers_NW[:, 1:]
            numbers.append(np.stack([text_NM, option_NM], axis=-1).reshape(-1, 2))
        starts_P2, lengths_P2 = numbers
        return Texts(self.ids, starts_P2, np.where(lengths_P2[:, 1:] > 0, lengths_P2, 0), self.tags)

    def concatenated(self, max_length: int, cut_start: bool = False) -> "Texts":
        """Truncate each text, and copy them all into an array without anything else."""
        lengths_NW = np.minimum(self.lengths_NW, max_length)
        first_NW = self.starts_NW + (self.lengths_NW - lengths_NW if cut_start else 0)
        ends_NW = lengths_NW.cumsum().reshape(lengths_NW.shape)
        starts_NW = ends_NW - lengths_NW
        sources = (first_NW - starts_NW).ravel().repeat(lengths_NW.ravel())
        sources += np.arange(len(sources))
        tags, words = (None if numbers is None else numbers[sources] for numbers in (self.tags, self.words))
        return Texts(self.ids[sources], starts_NW, lengths_NW, tags, words)

    @classmethod
    def joined(cls, parts: "Sequence[Texts]") -> "Texts":
        """The examples of all parts, one after another, in one array; with tags and words if all parts have them."""
        parts = [part.concatenated(sys.maxsize) for part in parts]
        firsts = [0, *accumulate(len(part.ids) for part in parts)]
        tags, words = (
            np.concatenate(known) if len(known := [one for one in numbers if one is not None]) == len(parts) else None
            for numbers in ([part.tags for part in parts], [part.words for part in parts])
        )
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.starts_NW + first for part, first in zip(parts, firsts, strict=False)]),
            np.concatenate([part.lengths_NW for part in parts]),
            tags,
            words,
        )

    def __len__(self) -> int:
        return len(self.lengths_NW)

    def __iter__(self) -> Iterator[tuple[Ids, ...]]:
        for starts, lengths in zip(self.starts_NW.tolist(), self.lengths_NW.tolist(), strict=True):
            yield tuple(self.ids[start : start + length] for start, length in zip(starts, lengths, strict=True))


def texts_of(examples: TokenizedExamples | SharedExamples, indices: npt.NDArray[np.integer]) -> Texts:
    """The texts of some examples, with their tags; at once if the examples are stored in one array."""
    gather = getattr(examples, "gather", None)
    texts: Texts = Texts.of([examples.tokens(i) for i in indices.tolist()]) if gather is None else gather(indices)
    return texts


def _lengths(texts: Sequence[tuple[Ids, ...]]) -> npt.NDArray[np.int64]:
    """The number of tokens of each text: [N, W]."""
    flat = [len(text) for example in texts for text in example]
    width = len(texts[0]) if texts else 1
    assert len(flat) == width * len(texts), "examples of one task must have the same number of texts"
    return np.array(flat, dtype=np.int64).reshape(-1, width)
