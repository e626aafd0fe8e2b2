"""Hashes of texts agree with a comparison of their token ids."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.tasks import sameness
from polytask.tasks.sameness import first_places, in_any_order, in_order, is_among, repeats, spreads, text_hashes
from polytask.text.store import StoreWriter, TokenStore

Examples = Sequence[tuple[tuple[int, ...], ...]]


def store_of(folder: Path, examples: Examples, width: int) -> TokenStore:
    with StoreWriter(folder, width=width, vocabulary=30_000, label_type="int") as writer:
        arrays = [tuple(np.array(text, np.int32) for text in example) for example in examples]
        writer.append(arrays, [0] * len(arrays), list(range(len(arrays))))
        writer.close({})
    return TokenStore.open(folder)


text = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(st.tuples(text, text), min_size=1, max_size=20), piece=st.sampled_from([1, 3, 2**21]))
def test_hashes_are_equal_where_texts_are(
    tmp_path_factory: pytest.TempPathFactory, pairs: Examples, piece: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sameness, "PIECE", piece)  # however the texts are cut into pieces
        hashes = text_hashes(store_of(tmp_path_factory.mktemp("store") / "s", pairs, 2))
    for found, wanted in [
        (in_order(hashes), pairs),
        (in_any_order(hashes), [tuple(sorted(pair)) for pair in pairs]),
        (hashes.ravel(), [text for pair in pairs for text in pair]),
    ]:
        same = found[:, None] == found[None, :]
        assert same.tolist() == [[one == other for other in wanted] for one in wanted]


def test_places_lengths_and_large_ids_count(tmp_path: Path) -> None:
    texts = [(1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (1,), (29_999, 2), (), (0,), (0, 0)]
    hashes = text_hashes(store_of(tmp_path / "s", [(text,) for text in texts], 1))
    assert len(np.unique(hashes)) == len(texts)
    assert hashes[6] == 0


def test_a_million_texts_that_differ_in_one_token_do_not_collide(tmp_path: Path) -> None:
    ids = np.arange(1_000_000)
    # As token ids of four-token texts: two digits of base 1000, so that neighbours differ in one place only.
    flat = np.stack([np.full_like(ids, 7), ids // 1000, ids % 1000, np.full_like(ids, 7)], axis=1).ravel()
    hashes = sameness._hash(flat, np.arange(0, 4 * len(ids) + 1, 4))
    assert len(np.unique(hashes)) == len(ids)


keys = st.lists(st.integers(0, 5), min_size=1, max_size=30)


@given(keys)
def test_repeats(values: list[int]) -> None:
    found = repeats(np.array(values, np.uint64))
    assert found.tolist() == [value in values[:i] for i, value in enumerate(values)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3)), min_size=1, max_size=30))
def test_spreads(rows: list[tuple[int, int]]) -> None:
    found = spreads(np.array([key for key, _ in rows], np.uint64), np.array([value for _, value in rows]))
    groups = [[value for other, value in rows if other == key] for key, _ in rows]
    assert found.tolist() == [max(group) - min(group) for group in groups]


@given(keys, keys)
def test_first_places(values: list[int], wanted: list[int]) -> None:
    found = first_places(np.array(values, np.uint64), np.array(wanted, np.uint64))
    assert found.tolist() == [values.index(value) if value in values else -1 for value in wanted]
    known = np.unique(np.array(values, np.uint64))
    assert is_among(np.array(wanted, np.uint64), known).tolist() == [value in values for value in wanted]


def test_nothing_is_among_nothing() -> None:
    none, some = np.zeros(0, np.uint64), np.array([1, 2], np.uint64)
    assert first_places(none, some).tolist() == [-1, -1]
    assert is_among(some, none).tolist() == [False, False]
