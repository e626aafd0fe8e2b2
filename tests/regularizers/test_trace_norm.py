"""The trace norm of stacked weights: the sum of singular values, against torch's decomposition."""

import pytest
import torch

from polytask.regularizers.trace_norm import trace_norms


def weights(scale: float) -> list[list[torch.Tensor]]:
    """Two weights of three tasks, whose values differ by `scale`."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 4), (7,)]
    shared = [torch.randn(shape, generator=generator) for shape in shapes]
    return [
        [(w + scale * torch.randn(w.shape, generator=generator)).requires_grad_() for _ in range(3)] for w in shared
    ]


def by_decomposition(rows: list[list[torch.Tensor]]) -> torch.Tensor:
    stacked = [torch.stack([w.double().flatten() for w in tasks]) for tasks in rows]
    return torch.stack([torch.linalg.svdvals(matrix).sum() for matrix in stacked]).sum()


@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-4])
def test_value_and_gradient_are_those_of_singular_values(scale: float) -> None:
    rows = weights(scale)
    flat = [w for tasks in rows for w in tasks]
    found, wanted = trace_norms(rows), by_decomposition(rows)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)
    pairs = zip(torch.autograd.grad(found, flat), torch.autograd.grad(wanted, flat), strict=True)
    for gradient, expected in pairs:
        torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-3)


def test_equal_tasks_have_a_finite_gradient() -> None:
    weight = torch.randn(6)
    rows = [[weight.clone().requires_grad_() for _ in range(3)]]
    total = trace_norms(rows)
    torch.testing.assert_close(total, weight.norm() * 3**0.5, rtol=1e-4, atol=0)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(total, rows[0]))


def test_no_gradient_is_computed_for_frozen_weights() -> None:
    frozen, learned = torch.randn(4), torch.randn(4, requires_grad=True)
    trace_norms([[frozen, learned]]).backward()
    assert frozen.grad is None
    assert learned.grad is not None
