"""IMTL-G against TorchJD, and by its defining property."""

from typing import Any

import numpy as np
import torch
from torchjd.aggregation import IMTLGWeighting


def test_as_in_torchjd(step_update: Any, drawn: Any) -> None:
    for seed in range(10):
        gradients = drawn(seed)
        theirs = IMTLGWeighting()(torch.from_numpy(gradients @ gradients.T)).numpy() @ gradients
        np.testing.assert_allclose(step_update("imtl_g", gradients), len(gradients) * theirs, rtol=1e-6, atol=1e-8)


def test_the_same_projection_on_every_gradient(step_update: Any) -> None:
    for seed in range(5):
        gradients = np.random.default_rng(seed).normal(size=(4, 9))
        found = gradients @ step_update("imtl_g", gradients) / np.linalg.norm(gradients, axis=1)
        np.testing.assert_allclose(found, found[0])


def test_the_mean_where_there_are_no_such_weights(step_update: Any) -> None:
    """Three gradients that cancel completely, like their mean."""
    around = np.array([[1.0, 0.0], [-0.5, np.sqrt(0.75)], [-0.5, -np.sqrt(0.75)]])
    np.testing.assert_allclose(step_update("imtl_g", around), [0.0, 0.0], atol=1e-12)
