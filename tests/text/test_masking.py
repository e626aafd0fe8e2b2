"""Which tokens are masked, how often and by what, against the expected shares."""

import numpy as np
import pytest

from polytask.text.masking import IGNORED, Masker
from polytask.text.packing import Packer, Part

MASK, VOCABULARY, SPECIAL = 4, 50, (0, 1, 2, 3, 4, 17)
MASKER = Masker(MASK, VOCABULARY, SPECIAL)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("length", "share", "asked"), [(1, 0.15, 1), (3, 0.15, 1), (20, 0.15, 3), (100, 0.15, 15), (20, 0.99, 20)]
)
def test_so_many_are_asked_for(length: int, share: float, asked: int) -> None:
    ids = np.full(length, 20)
    text = MASKER.mask(ids, share, rng())
    assert (text.labels == 20).sum() == asked
    assert (text.labels == IGNORED).sum() == length - asked
    assert (ids == 20).all()  # the text itself is unchanged


def test_shares_of_masks_other_tokens_and_kept_ones() -> None:
    ids = rng(1).choice(np.setdiff1d(np.arange(VOCABULARY), SPECIAL), 200_000)
    text = MASKER.mask(ids, 0.15, rng())
    asked = text.labels != IGNORED
    assert asked.sum() == 30_000
    np.testing.assert_array_equal(text.labels[asked], ids[asked])
    np.testing.assert_array_equal(text.ids[~asked], ids[~asked])
    hidden = text.ids[asked] == MASK
    same = text.ids[asked] == ids[asked]
    # 44 tokens are no special ones, and a token may be drawn in its own place. Four deviations: 0.01.
    assert hidden.mean() == pytest.approx(0.8, abs=0.01)
    assert same.mean() == pytest.approx(0.1 + 0.1 / 44, abs=0.01)
    other = text.ids[asked][~hidden & ~same]
    counts = np.bincount(other, minlength=VOCABULARY)
    assert not counts[list(SPECIAL)].any()
    assert set(np.flatnonzero(counts)) == set(range(VOCABULARY)) - set(SPECIAL)
    assert counts[counts > 0].std() / counts[counts > 0].mean() < 0.25  # about 68 each, uniformly


def test_each_place_has_the_same_chance() -> None:
    chosen = sum((MASKER.mask(np.full(20, 30), 0.15, rng(n)).labels != IGNORED).astype(int) for n in range(4000))
    np.testing.assert_allclose(chosen / 4000, 0.15, atol=0.025)


def test_special_tokens_are_never_asked_for_and_nothing_is_fine() -> None:
    ids = np.array([1, 30, 1, 1, 1])
    assert MASKER.mask(ids, 0.15, rng()).labels.tolist() == [IGNORED, 30, *[IGNORED] * 3]
    for nothing in (np.array([1, 1]), np.array([], dtype=np.int32)):
        text = MASKER.mask(nothing, 0.15, rng())
        assert text.ids.tolist() == nothing.tolist()
        assert (text.labels == IGNORED).all()


def test_the_same_draws_hide_the_same() -> None:
    ids = rng(3).integers(20, 50, 60)
    one, same, other = (MASKER.mask(ids, 0.15, rng(seed)) for seed in (7, 7, 8))
    assert one.ids.tolist() == same.ids.tolist()
    assert one.labels.tolist() == same.labels.tolist()
    assert one.labels.tolist() != other.labels.tolist()


def test_labels_lie_where_their_tokens_lie_in_the_stream() -> None:
    packer = Packer(("other", "t"), cls_id=2, sep_id=3, max_length=8, masker=MASKER)
    texts = [np.arange(20, 20 + length) for length in (2, 9, 6)]  # the second is truncated by three tokens
    masked = [packer.mask(text, 0.5, rng(n)) for n, text in enumerate(texts)]
    parts = [Part.masked("t", masked, 0.5), Part("other", [(np.array([30, 31]),)])]
    stream = packer.pack(parts, token_budget=40)
    places, ids = stream.labels["t"].numpy()
    whole = packer.pack([Part("t", [(text,) for text in texts])])
    np.testing.assert_array_equal(ids, whole.token_ids_T.numpy()[places])
    assert not set(places) & {0, 3, 4, 11, 12, 19}  # [CLS] and [SEP] of each text
    assert len(places) == 1 + 3 + 3


def test_in_a_stream_of_static_shape_the_number_of_labels_depends_on_the_number_of_tokens() -> None:
    packer = Packer(("t",), cls_id=2, sep_id=3, max_length=32, masker=MASKER)
    shapes = set()
    for seed in range(20):
        lengths = rng(seed).permutation(np.arange(5, 21))
        masked = [packer.mask(np.full(length, 30), 0.15, rng(n)) for n, length in enumerate(lengths)]
        part = Part.masked("t", masked, 0.15)
        stream = packer.pack([part], static_shape=True)
        labels = stream.labels["t"]
        shapes.add(labels.shape)
        assert part.labels is not None
        chosen = labels[1] != IGNORED
        assert labels[:, chosen].tolist() == part.labels.tolist()
        assert labels.shape[1] < 2 * part.labels.shape[1]
    assert len(shapes) == 1


def test_more_masked_tokens_than_usual_are_all_kept() -> None:
    packer = Packer(("t",), cls_id=2, sep_id=3, max_length=32, masker=MASKER)
    masked = [packer.mask(np.array([30]), 0.01, rng(n)) for n in range(300)]  # at least one of every text
    stream = packer.pack([Part.masked("t", masked, 0.01)], static_shape=True)
    assert int((stream.labels["t"][1] != IGNORED).sum()) == 300
