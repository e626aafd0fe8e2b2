"""PCGrad by hand, and against TorchJD in the same random order."""

from typing import Any

import numpy as np
import torch
from torchjd.aggregation import PCGradWeighting


def test_by_hand(step_update: Any) -> None:
    # Two tasks: no order to draw. (1, 0) loses its part along (-1, 1) and becomes (.5, .5); (-1, 1) becomes (0, 1).
    np.testing.assert_allclose(step_update("pcgrad", np.array([[1.0, 0.0], [-1.0, 1.0]])), [0.5, 1.5])
    agreeing = np.array([[1.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(step_update("pcgrad", agreeing), agreeing.sum(0))


def test_as_in_torchjd(step_update: Any, drawn: Any) -> None:
    for seed in range(10):
        gradients = drawn(seed)
        torch.manual_seed(seed)
        theirs = PCGradWeighting()(torch.from_numpy(gradients @ gradients.T)).numpy() @ gradients
        torch.manual_seed(seed)
        np.testing.assert_allclose(step_update("pcgrad", gradients), theirs, rtol=1e-9, atol=1e-12)
