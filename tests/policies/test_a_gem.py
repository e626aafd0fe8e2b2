"""A-GEM's projection by hand."""

from typing import Any

import numpy as np


def test_what_points_against_the_reference_is_taken_away(update: Any) -> None:
    np.testing.assert_allclose(update("a_gem", np.array([[1.0, 0.0], [-1.0, 1.0]])), [0.5, 0.5])


def test_kept_when_nothing_conflicts_or_nothing_is_remembered(update: Any) -> None:
    assert (update("a_gem", np.array([[1.0, 0.0], [0.0, 1.0]])) == [1.0, 0.0]).all()
    assert (update("a_gem", np.array([[1.0, 2.0]])) == [1.0, 2.0]).all()
    assert (update("a_gem", np.array([[1.0, 2.0], [1.0, 2.0]]), own=2) == [2.0, 4.0]).all()


def test_random_gradients_end_beside_the_reference(update: Any) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        gradients = rng.normal(size=(3, 7))
        found = update("a_gem", gradients, own=2)
        own = gradients[:2].sum(0)
        assert gradients[2] @ found >= -1e-9
        if gradients[2] @ own >= 0:
            np.testing.assert_allclose(found, own)
