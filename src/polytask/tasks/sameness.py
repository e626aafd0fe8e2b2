"""Finds equal texts by a 64-bit hash of their token ids. Knows token stores, and no label.

Case, accents and spaces that the tokenizer drops make no difference, nor do tokens that it truncates. Two different
texts share a hash with probability 2**-64; a million texts have about 2**39 pairs.
"""

import numpy as np
import numpy.typing as npt

from polytask.text.store import TokenStore

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
PIECE = 2**18  # tokens hashed, or keys looked up, at once: memory stays constant, and they stay in the CPU's cache


def text_hashes(store: TokenStore) -> Hashes:
    """Returns the hash of each text: [N, width]; 0 for a text without tokens."""
    hashes = [_hash(tokens, offsets) for tokens, offsets in store.pieces(PIECE)]
    flat = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
    return flat.reshape(len(store), store.width)


def in_order(hashes_NW: Hashes) -> Hashes:
    """Returns the hash of each example [N]; the same texts in another order have another hash."""
    hashes_N = hashes_NW[:, 0]
    for column_N in hashes_NW.T[1:]:
        hashes_N = hashes_N * np.uint64(3) + column_N
    return hashes_N


def in_any_order(hashes_NW: Hashes) -> Hashes:
    """Returns the hash of each example [N]; a pair has the same hash in either order."""
    total: Hashes = hashes_NW.sum(axis=1, dtype=np.uint64)
    return total


def repeats(keys_N: Hashes) -> Mask:
    """Returns, for each key [N], whether an earlier one is equal."""
    again = np.zeros(len(keys_N), bool)
    shared = _shared(keys_N)
    order, first = _grouped(keys_N[shared])
    again[shared[order]] = ~first
    return again


def spreads(keys_N: Hashes, values_N: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Returns, for each key [N], the range (maximum - minimum) of the values of all equal keys."""
    spread = np.zeros(len(keys_N))
    shared = _shared(keys_N)
    if len(shared):
        order, first = _grouped(keys_N[shared])
        values, starts = values_N[shared].astype(np.float64)[order], np.flatnonzero(first)
        ranges = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
        spread[shared[order]] = ranges[np.cumsum(first) - 1]
    return spread


def first_places(keys_N: Hashes, wanted_M: Hashes) -> npt.NDArray[np.int64]:
    """Returns the first index of each wanted key among the keys [M]; -1 for one that is missing."""
    candidates = _where_among(keys_N, np.unique(wanted_M))
    known, first = np.unique(keys_N[candidates], return_index=True)
    indices = np.full(len(wanted_M), -1, np.int64)
    known_M = is_among(wanted_M, known)
    indices[known_M] = candidates[first[np.searchsorted(known, wanted_M[known_M])]]
    return indices


def is_among(wanted: Hashes, known_M: Hashes) -> Mask:
    """Returns, for each wanted key, whether it is among the known ones, which are sorted."""
    if not len(known_M):
        return np.zeros(wanted.shape, bool)
    at = np.minimum(np.searchsorted(known_M, wanted), len(known_M) - 1)
    among: Mask = known_M[at] == wanted
    return among


def _where_among(keys_N: Hashes, known_M: Hashes) -> npt.NDArray[np.int64]:
    """Returns the indices of the keys that are among the known ones, which are sorted."""
    indices = [
        np.flatnonzero(is_among(keys_N[start : start + PIECE], known_M)) + start
        for start in range(0, len(keys_N), PIECE)
    ]
    return np.concatenate(indices) if indices else np.zeros(0, np.int64)


def _shared(keys_N: Hashes) -> npt.NDArray[np.int64]:
    """Returns the indices of keys that occur more than once: mostly few, so that sorting only these is fast."""
    ordered = np.sort(keys_N)
    return _where_among(keys_N, np.unique(ordered[1:][ordered[1:] == ordered[:-1]]))


def _grouped(keys_N: Hashes) -> tuple[npt.NDArray[np.int64], Mask]:
    """Returns an order in which equal keys are adjacent, the earlier first, and where in it a new key starts."""
    order = np.argsort(keys_N, kind="stable")
    ordered = keys_N[order]
    first = np.ones(len(keys_N), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return order, first


def _hash(tokens: npt.NDArray[np.integer], offsets: npt.NDArray[np.int64]) -> Hashes:
    """Sums, for each text, the mixed (position, id) of its tokens modulo 2**64, and mixes the sum again."""
    positions = np.arange(len(tokens), dtype=np.uint64) - np.repeat(offsets[:-1], np.diff(offsets)).astype(np.uint64)
    mixed = _mix((positions + np.uint64(1)) << np.uint64(32) | tokens.astype(np.uint64))
    sums = np.zeros(len(tokens) + 1, np.uint64)
    np.cumsum(mixed, out=sums[1:])
    return _mix(sums[offsets[1:]] - sums[offsets[:-1]])


def _mix(values: Hashes) -> Hashes:
    """Applies the last part of SplitMix64 (Steele et al. 2014): every bit depends on every bit, and 0 stays 0."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
