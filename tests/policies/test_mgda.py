"""MGDA: the shortest vector of the convex hull, by its optimality conditions and against other solvers."""

from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
from torchjd.aggregation import MGDAWeighting

from polytask.policies.mgda import shortest_combination


def test_two_gradients_by_hand(step_update: Any) -> None:
    # The shortest of w (1, 0) + (1 - w) (-1, 1) is at w = 3/5: (.2, .4).
    np.testing.assert_allclose(step_update("mgda", np.array([[1.0, 0.0], [-1.0, 1.0]])), [0.4, 0.8])
    # A short gradient that agrees with the others is itself the shortest.
    np.testing.assert_allclose(step_update("mgda", np.array([[0.1, 0.0], [1.0, 1.0]])), [0.2, 0.0], atol=1e-15)


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_the_optimality_conditions(drawn: Any, seed: int, uneven: bool) -> None:
    """d is the shortest if and only if `<g_k, d> >= |d|^2` for all k."""
    gradients = drawn(seed, uneven=uneven)
    weights = shortest_combination(gradients @ gradients.T)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1.0)
    d, lengths = weights @ gradients, np.linalg.norm(gradients, axis=1)
    assert ((gradients @ d - d @ d) / (lengths * lengths.min()) > -1e-12).all()


def test_sixty_four_tasks_and_dependent_gradients(drawn: Any) -> None:
    for gradients in (drawn(0, tasks=64), drawn(1, tasks=64, uneven=True), np.repeat(drawn(2, tasks=4), 5, axis=0)):
        d = shortest_combination(gradients @ gradients.T) @ gradients
        lengths = np.linalg.norm(gradients, axis=1)
        assert ((gradients @ d - d @ d) / (lengths * lengths.min()) > -1e-12).all()


@pytest.mark.parametrize("seed", range(5))
def test_as_cvxpy_solves_it(drawn: Any, seed: int) -> None:
    gradients = drawn(seed, tasks=8)
    w = cvxpy.Variable(8)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm(gradients.T @ w)), [w >= 0, cvxpy.sum(w) == 1])
    best = problem.solve(solver=cvxpy.CLARABEL)
    assert np.linalg.norm(shortest_combination(gradients @ gradients.T) @ gradients) == pytest.approx(
        best, rel=1e-6, abs=1e-6
    )


@pytest.mark.parametrize("seed", range(10))
def test_never_longer_than_after_frank_wolfe_steps(drawn: Any, seed: int) -> None:
    """With two or three tasks TorchJD's are the same."""
    for tasks in (2, 3, 8, 16):
        gradients = drawn(seed, tasks=tasks)
        gram = gradients @ gradients.T
        theirs = MGDAWeighting(epsilon=1e-9, max_iters=2000 if tasks < 4 else 100)(torch.from_numpy(gram)).numpy()
        found, reached = (np.linalg.norm(weights @ gradients) for weights in (shortest_combination(gram), theirs))
        assert found <= reached * (1 + 1e-12) + 1e-7
        if tasks < 4:
            assert reached == pytest.approx(found, rel=0.02, abs=0.02)


def test_a_task_without_a_gradient_stops_the_step(step_update: Any) -> None:
    assert (step_update("mgda", np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])) == 0).all()
