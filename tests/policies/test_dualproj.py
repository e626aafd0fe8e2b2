"""DualProj against TorchJD and against scipy's projection."""

from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torchjd.aggregation import DualProj


def test_as_in_torchjd(step_update: Any) -> None:
    for seed in range(5):
        gradients = np.random.default_rng(seed).normal(size=(3, 6))
        theirs = 3 * DualProj()(torch.from_numpy(gradients)).numpy()
        np.testing.assert_allclose(step_update("dualproj", gradients), theirs, atol=2e-2)  # their ridge is 1e-4


def test_the_projection_of_the_sum(step_update: Any) -> None:
    """The difference is the vector of the gradients' cone closest to minus the mean (Moreau)."""
    for seed in range(5):
        gradients = np.random.default_rng(seed).normal(size=(4, 6)) * 10.0 ** np.array([[-5], [-2], [0], [2]])
        units = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
        whole = gradients.sum(0)
        expected = whole + nnls(units.T, -whole)[0] @ units
        np.testing.assert_allclose(step_update("dualproj", gradients), expected, atol=1e-9 * np.abs(gradients).max())
