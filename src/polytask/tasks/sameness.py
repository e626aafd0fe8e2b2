"""Which examples say the same to a model: a 64-bit hash of every text's token ids. Knows token stores, and no label.

Case, accents and spaces that the tokenizer drops make no difference, nor does what it cuts off. Two different texts
share a hash once in 2**64; a million texts have about 2**39 pairs.
"""

import numpy as np
import numpy.typing as npt

from polytask.text.store import TokenStore

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
PIECE = 2**18  # tokens hashed, or keys looked up, at once: memory stays flat, and they stay in the cache


def text_hashes(store: TokenStore) -> Hashes:
    """[N, width]: one for each text; 0 for a text without tokens."""
    found = [_sums(tokens, offsets) for tokens, offsets in store.pieces(PIECE)]
    flat = np.concatenate(found) if found else np.zeros(0, np.uint64)
    return flat.reshape(len(store), store.width)


def in_order(hashes_NW: Hashes) -> Hashes:
    """[N]: one for each example; a pair's texts in the other order make another one."""
    return hashes_NW[:, 0] if hashes_NW.shape[1] == 1 else hashes_NW[:, 0] * np.uint64(3) + hashes_NW[:, 1]


def in_any_order(hashes_NW: Hashes) -> Hashes:
    """[N]: one for each example, the same for a pair's texts in either order."""
    total: Hashes = hashes_NW.sum(axis=1, dtype=np.uint64)
    return total


def repeats(keys_N: Hashes) -> Mask:
    """[N]: whether the same stands earlier."""
    again = np.zeros(len(keys_N), bool)
    shared = _shared(keys_N)
    order, first = _grouped(keys_N[shared])
    again[shared[order]] = ~first
    return again


def spreads(keys_N: Hashes, values_N: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """[N]: how far apart the values are of those that say the same as this one."""
    spread = np.zeros(len(keys_N))
    shared = _shared(keys_N)
    if len(shared):
        order, first = _grouped(keys_N[shared])
        values, starts = values_N[shared].astype(np.float64)[order], np.flatnonzero(first)
        apart = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
        spread[shared[order]] = apart[np.cumsum(first) - 1]
    return spread


def first_places(keys_N: Hashes, wanted_M: Hashes) -> npt.NDArray[np.int64]:
    """[M]: where each wanted one stands first among the keys; -1 for one that is not there."""
    there = _where_among(keys_N, np.unique(wanted_M))
    known, place = np.unique(keys_N[there], return_index=True)
    found = np.full(len(wanted_M), -1, np.int64)
    known_M = is_among(wanted_M, known)
    found[known_M] = there[place[np.searchsorted(known, wanted_M[known_M])]]
    return found


def is_among(wanted: Hashes, known_M: Hashes) -> Mask:
    """Which of the wanted ones are known; the known ones are in order."""
    if not len(known_M):
        return np.zeros(wanted.shape, bool)
    at = np.minimum(np.searchsorted(known_M, wanted), len(known_M) - 1)
    there: Mask = known_M[at] == wanted
    return there


def _where_among(keys_N: Hashes, known_M: Hashes) -> npt.NDArray[np.int64]:
    """The places of the keys that are among the known ones, which are in order."""
    found = [
        np.flatnonzero(is_among(keys_N[start : start + PIECE], known_M)) + start
        for start in range(0, len(keys_N), PIECE)
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _shared(keys_N: Hashes) -> npt.NDArray[np.int64]:
    """The places of keys that stand there more than once: few, mostly, and sorting these alone takes little."""
    ordered = np.sort(keys_N)
    return _where_among(keys_N, np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))


def _grouped(keys_N: Hashes) -> tuple[npt.NDArray[np.int64], Mask]:
    """An order with equal keys side by side, the earlier one first; and in it, whether a new key starts."""
    order = np.argsort(keys_N, kind="stable")
    ordered = keys_N[order]
    first = np.ones(len(keys_N), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return order, first


def _sums(tokens: npt.NDArray[np.integer], offsets: npt.NDArray[np.int64]) -> Hashes:
    """For each text the sum of the mixed (place, id) of its tokens, mixed again; sums wrap around at 2**64."""
    places = np.arange(len(tokens), dtype=np.uint64) - np.repeat(offsets[:-1], np.diff(offsets)).astype(np.uint64)
    mixed = _mixed((places + np.uint64(1)) << np.uint64(32) | tokens.astype(np.uint64))
    sums = np.zeros(len(tokens) + 1, np.uint64)
    np.cumsum(mixed, out=sums[1:])
    return _mixed(sums[offsets[1:]] - sums[offsets[:-1]])


def _mixed(values: Hashes) -> Hashes:
    """The last part of SplitMix64 (Steele et al. 2014): every bit depends on every bit, and 0 stays 0."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
