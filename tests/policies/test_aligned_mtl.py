"""Aligned-MTL against TorchJD, and by its defining property."""

from typing import Any

import numpy as np
import torch
from torchjd.aggregation import AlignedMTLWeighting


def test_as_in_torchjd(step_update: Any, drawn: Any) -> None:
    for seed in range(10):
        gradients = drawn(seed)
        theirs = AlignedMTLWeighting()(torch.from_numpy(gradients @ gradients.T)).numpy() @ gradients
        np.testing.assert_allclose(step_update("aligned_mtl", gradients), len(gradients) * theirs, rtol=1e-6, atol=1e-8)


def test_orthogonal_gradients_get_the_shortest_ones_length(step_update: Any) -> None:
    gradients = np.diag([1.0, 2.0, 10.0])
    np.testing.assert_allclose(step_update("aligned_mtl", gradients), [1.0, 1.0, 1.0])
