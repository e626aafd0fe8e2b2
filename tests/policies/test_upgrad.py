"""UPGrad against TorchJD and against scipy's projections."""

from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torchjd.aggregation import UPGrad


def test_as_in_torchjd(step_update: Any) -> None:
    for seed in range(5):
        gradients = np.random.default_rng(seed).normal(size=(3, 6))
        theirs = 3 * UPGrad()(torch.from_numpy(gradients)).numpy()
        np.testing.assert_allclose(step_update("upgrad", gradients), theirs, atol=2e-2)  # their ridge is 1e-4


def test_the_mean_of_the_projections(step_update: Any) -> None:
    """The difference is the vector of the gradients' cone closest to -g_k (Moreau)."""
    for seed in range(5):
        gradients = np.random.default_rng(seed).normal(size=(4, 6)) * 10.0 ** np.array([[-5], [-2], [0], [2]])
        units = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
        expected = sum(g + nnls(units.T, -g)[0] @ units for g in gradients)
        np.testing.assert_allclose(step_update("upgrad", gradients), expected, atol=1e-9 * np.abs(gradients).max())
