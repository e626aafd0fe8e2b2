"""GEM's projection: feasible, closest, unchanged without conflict, for any order and size."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear, minimize

from polytask.policies import POLICIES
from polytask.policies.base import PolicyContext
from polytask.policies.gem import solve_dual


def random_gradients(seed: int, memories: int, numbers: int, size: float = 1.0) -> Any:
    return size * np.random.default_rng(seed).normal(size=(memories + 1, numbers))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("memories", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_no_memory_gets_worse(update: Any, seed: int, memories: int, size: float) -> None:
    gradients = random_gradients(seed, memories, 8, size)
    found = update("gem", gradients)
    scale = np.linalg.norm(gradients[1:], axis=1) * np.linalg.norm(gradients[0])
    assert (gradients[1:] @ found >= -1e-6 * scale).all()


@pytest.mark.parametrize("seed", range(8))
def test_the_nearest_such_gradient(update: Any, seed: int) -> None:
    gradients = random_gradients(seed, 3, 6)
    found = update("gem", gradients, ridge=1e-12)
    constraint = {"type": "ineq", "fun": lambda x: gradients[1:] @ x, "jac": lambda x: gradients[1:]}
    start = gradients[0]
    best = minimize(
        lambda x: 0.5 * np.sum((x - start) ** 2),
        np.zeros(6),
        jac=lambda x: x - start,
        constraints=[constraint],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert best.success
    np.testing.assert_allclose(found, best.x, atol=1e-5)


def test_a_memory_with_a_small_gradient_is_protected() -> None:
    """Three gradients by their inner products; the third weight is `-<g, g_3> / |g_3|^2`."""
    gram = torch.tensor([[1.0, -0.5, -0.5e-4], [-0.5, 1.0, 0.0], [-0.5e-4, 0.0, 1e-8]], dtype=torch.float64)
    context = PolicyContext({"a": 1.0, "b": 1.0, "c": 1.0}, dict.fromkeys("abc", "classes"), 10)
    weights = POLICIES["gem"](context).combine(gram, 1)
    assert weights.tolist() == pytest.approx([1.0, 0.5, 5000.0], abs=1e-3)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(st.sampled_from([1e-3, 1.0, 1e3]), min_size=2, max_size=5),
    st.sampled_from([0.0, 0.9, 0.999]),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_lengths_a_thousand_apart(seed: int, lengths: list[float], agreement: float, own: float) -> None:
    """No constraint is violated by more than 1e-6 of |g_k| |g~|, and g~ is that of scipy's bounded least squares.

    `agreement`: how much of each memory's gradient they have in common. g opposes it, so |g~| is far below |g|.
    """
    rng = np.random.default_rng(seed)
    common = rng.normal(size=12)
    units = agreement * common + (1 - agreement) * rng.normal(size=(len(lengths), 12))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    g = own * (0.01 * rng.normal(size=12) - common)
    rows = np.vstack([g, np.array(lengths)[:, None] * units])
    context = PolicyContext(dict.fromkeys("abcdef", 1.0), dict.fromkeys("abcdef", "classes"), 10)
    found = POLICIES["gem"](context).combine(torch.from_numpy(rows @ rows.T), 1).numpy() @ rows
    assert (units @ found).min() >= -1e-6 * np.linalg.norm(found) - 1e-13 * np.linalg.norm(g)
    size = np.linalg.norm(g)
    solution = lsq_linear(units.T, -g / size, bounds=(0, np.inf), method="bvls", tol=1e-15)
    np.testing.assert_allclose(found, g + size * (solution.x @ units), atol=1e-7 * size)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(st.floats(-6, 3), min_size=1, max_size=6),
    st.sampled_from([0.0, 1e-5, 0.5]),
    st.floats(-6, 3),
)
def test_the_optimality_conditions(seed: int, exponents: list[float], margin: float, own: float) -> None:
    """Of `min_v 1/2 v'Pv + q'v, v >= margin`: the slope `Pv + q` is 0 where v is above the margin, and never below 0.

    In shares of |g_k| times the longest vector involved, for gradients of lengths 1e-6 to 1e3.
    """
    sizes = 10.0 ** np.array([own, *exponents])
    gradients = random_gradients(seed, len(exponents), 9)
    gradients *= (sizes / np.linalg.norm(gradients, axis=1))[:, None]
    memories, lengths = gradients[1:], sizes[1:]
    v = solve_dual(memories @ memories.T, memories @ gradients[0], margin, 1e-12)
    longest = max((v * lengths).max(), sizes[0])
    slope = memories @ (gradients[0] + v @ memories) / (lengths * longest)
    assert (v >= margin).all()
    assert slope.min() > -1e-8
    assert np.abs(slope * (v - margin) * lengths / longest).max() < 1e-8


def test_a_hand_worked_case(update: Any) -> None:
    # g = (1, 0) against one memory (-1, 1): the conflicting component is removed, (1, 0) + 1/2 (-1, 1).
    np.testing.assert_allclose(update("gem", np.array([[1.0, 0.0], [-1.0, 1.0]]), ridge=0.0), [0.5, 0.5])


def test_kept_when_nothing_conflicts(update: Any) -> None:
    gradients = np.array([[1.0, 2.0, 0.0], [1.0, 0.0, 5.0], [0.0, 1.0, -7.0]])
    assert (update("gem", gradients) == gradients[0]).all()
    assert (update("gem", gradients, margin=0.5) == gradients[0]).all()


def test_a_step_of_several_tasks_is_their_sum(update: Any) -> None:
    gradients = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]])
    np.testing.assert_allclose(update("gem", gradients, own=2), [1.0, 1.0])
    gradients = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 1.0]])
    np.testing.assert_allclose(update("gem", gradients, own=2, ridge=0.0), [1.0, 1.0])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.permutations(range(4)))
def test_the_order_of_the_memories_does_not_matter(seed: int, order: list[int]) -> None:
    gradients = random_gradients(seed, 4, 9)
    memories, own = gradients[1:], gradients[0]
    straight = solve_dual(memories @ memories.T, memories @ own, 0.0, 1e-9)
    turned = memories[order]
    np.testing.assert_allclose(solve_dual(turned @ turned.T, turned @ own, 0.0, 1e-9), straight[order], atol=1e-6)


def test_a_margin_pushes_towards_the_memories(update: Any) -> None:
    gradients = random_gradients(3, 2, 6)
    gradients[1] = -gradients[0] + 0.1 * gradients[1]  # a conflict
    plain, pushed = (update("gem", gradients, margin=margin) for margin in (0.0, 0.5))
    assert (gradients[1:] @ pushed).sum() > (gradients[1:] @ plain).sum()


def test_dependent_memories_with_rounding_errors() -> None:
    """A matrix of inner products in float32 need not be positive definite."""
    row = np.random.default_rng(0).normal(size=6)
    gram = np.outer(np.ones(3), np.ones(3)) * (row @ row)
    gram[0, 1] = gram[1, 0] = gram[0, 1] * (1 + 3e-7)
    assert np.linalg.eigvalsh(gram)[0] < 0
    found = solve_dual(gram, np.full(3, -(row @ row)), 0.0, 0.0)
    assert found.sum() == pytest.approx(1.0, abs=1e-3)


def test_equal_and_empty_memories(update: Any) -> None:
    """Dependent gradients have a singular matrix; memories without a gradient are no constraint."""
    gradients = np.array([[1.0, 0.0], [-1.0, 1.0], [-1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(update("gem", gradients), [0.5, 0.5], atol=1e-5)
    assert (update("gem", np.array([[1.0, 0.0], [0.0, 0.0]])) == [1.0, 0.0]).all()
