"""CAGrad: by its optimality conditions, against other solvers, and where TorchJD's thresholds give no update."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torchjd.aggregation import CAGradWeighting


def test_by_hand(step_update: Any) -> None:
    # The mean of (1, 0) and (0, 1), and c times its length towards (1, 1): all of it times the number of tasks.
    np.testing.assert_allclose(step_update("cagrad", np.eye(2), c=0.5), [1.5, 1.5])
    np.testing.assert_allclose(step_update("cagrad", np.eye(2), c=0.0), [1.0, 1.0])


@pytest.mark.parametrize("c", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_nothing_within_reach_is_better_for_the_task_that_gains_least(
    step_update: Any, drawn: Any, seed: int, uneven: bool, c: float
) -> None:
    """The best d has a direction g_w of the hull with `<g_w, d> = min_k <g_k, d>`, and is on the border."""
    gradients = drawn(seed, uneven=uneven)
    mean = gradients.mean(0)
    d = step_update("cagrad", gradients, c=c) / len(gradients)
    radius = c * np.linalg.norm(mean)
    assert np.linalg.norm(d - mean) == pytest.approx(radius, rel=1e-6)
    towards = (d - mean) / radius
    gains, lengths = gradients @ d, np.linalg.norm(gradients, axis=1)
    # `towards` is g_w / |g_w| for w on the tasks that improve least: no d' within the radius improves them more.
    least = gains.min()
    tight = (gains - least) / (lengths * np.linalg.norm(mean)) < 1e-7
    weights = np.linalg.lstsq((gradients[tight] / lengths[tight, None]).T, towards, rcond=None)[0]
    np.testing.assert_allclose(weights @ (gradients[tight] / lengths[tight, None]), towards, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_as_torchjd_and_scipy_solve_it(step_update: Any, drawn: Any, seed: int) -> None:
    gradients = drawn(seed, tasks=5)
    found = step_update("cagrad", gradients, c=0.4) / 5
    gram, mean = torch.from_numpy(gradients @ gradients.T), gradients.mean(0)
    theirs = CAGradWeighting(c=0.4, norm_eps=1e-9)(gram).numpy() @ gradients
    np.testing.assert_allclose(found, theirs, rtol=1e-3, atol=1e-3)
    best = minimize(
        lambda d: -d[-1],
        np.append(mean, (gradients @ mean).min()),
        constraints=[
            {"type": "ineq", "fun": lambda d: gradients @ d[:-1] - d[-1]},
            {"type": "ineq", "fun": lambda d: 0.4**2 * mean @ mean - (d[:-1] - mean) @ (d[:-1] - mean)},
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert (gradients @ found).min() == pytest.approx(-best.fun, rel=1e-4, abs=1e-5)


def test_tasks_that_nearly_cancel_still_move(step_update: Any) -> None:
    """The best combination is much shorter than the sum, which is no reason to stop."""
    gradients = np.array([[1.0, 1e-5], [-1.0, 1e-5]])
    np.testing.assert_allclose(step_update("cagrad", gradients), [0.0, 3e-5], rtol=1e-4, atol=1e-9)
    assert not CAGradWeighting(c=0.5)(torch.from_numpy(gradients @ gradients.T)).any()  # where TorchJD gives no update
    small = 1e-3 * np.array([[1.0, 0.2, 0.0], [-0.5, 1.0, 0.3]])
    assert np.linalg.norm(step_update("cagrad", small)) > np.linalg.norm(small.sum(0)) / 2


def test_the_mean_if_no_update_is_better(step_update: Any) -> None:
    """Gradients around 0 with a radius that includes 0, and a task without a gradient."""
    around = np.array([[1.0, 0.0], [-0.5, 1.0], [-0.4, -0.9]])
    np.testing.assert_allclose(step_update("cagrad", around, c=1.5), around.sum(0))
    empty = np.array([[1.0, 0.5], [0.0, 0.0]])
    np.testing.assert_allclose(step_update("cagrad", empty), empty.sum(0))
    opposite = np.array([[1.0, 0.0], [-1.0, 0.0]])
    np.testing.assert_allclose(step_update("cagrad", opposite), [0.0, 0.0], atol=1e-15)
