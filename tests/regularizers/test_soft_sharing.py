"""Soft sharing: the formulas' values, and gradients only for the tasks of the stream."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.regularizers.base import RegularizerContext
from polytask.regularizers.soft_sharing import SoftSharing, mean_distance, trace_norms
from polytask.types import UserError

Rows = list[list[Tensor]]


def random_rows(seed: int = 0, spread: float = 1.0) -> Rows:
    """Three tasks' weights of two shapes: a common part plus one per task."""
    torch.manual_seed(seed)
    common = [torch.randn(4, 3, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    return [[(w + spread * torch.randn_like(w)).requires_grad_() for _ in range(3)] for w in common]


def nuclear(rows: Rows) -> Tensor:
    matrices = [torch.stack([w.flatten() for w in tasks]) for tasks in rows]
    return torch.stack([torch.linalg.matrix_norm(m, ord="nuc") for m in matrices]).sum()


def pairwise(rows: Rows) -> Tensor:
    pairs = [(0, 1), (0, 2), (1, 2)]
    return torch.stack([(tasks[i] - tasks[j]).square().sum() for tasks in rows for i, j in pairs]).sum() / 3


def compared(ours: Callable[[Rows], Tensor], theirs: Callable[[Rows], Tensor], rows: Rows) -> None:
    flat = [w for tasks in rows for w in tasks]
    torch.testing.assert_close(ours(rows), theirs(rows))
    for found, expected in zip(
        torch.autograd.grad(ours(rows), flat), torch.autograd.grad(theirs(rows), flat), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_worked_out_by_hand() -> None:
    """|(3, 4) - 0|^2 = 25, |(3, 4) - (0, 4)|^2 = 9, |0 - (0, 4)|^2 = 16; a rank-one matrix has one singular value."""
    rows = [[torch.tensor([3.0, 4.0]), torch.zeros(2), torch.tensor([0.0, 4.0])]]
    assert mean_distance(rows).item() == pytest.approx(50 / 3)
    assert trace_norms([[torch.tensor([3.0, 4.0]), torch.tensor([6.0, 8.0])]]).item() == pytest.approx(
        125**0.5, rel=1e-5
    )
    assert trace_norms([[torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])]]).item() == pytest.approx(7)


@pytest.mark.parametrize("seed", range(3))
def test_as_written_out_pair_by_pair_and_by_torch(seed: int) -> None:
    compared(mean_distance, pairwise, random_rows(seed))
    compared(trace_norms, nuclear, random_rows(seed))


def test_tasks_whose_encoders_hardly_differ() -> None:
    """The usual case. A float32 Gram matrix would lose the differences, a millionth of it, in rounding."""
    rows = [[w.detach().float().requires_grad_() for w in tasks] for tasks in random_rows(spread=1e-3)]
    exact = [[w.detach().double().requires_grad_() for w in tasks] for tasks in rows]
    trace_norms(rows).backward()
    nuclear(exact).backward()
    for ours, theirs in zip(rows, exact, strict=True):
        for w, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(w.grad.double(), expected.grad, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("form", [mean_distance, trace_norms])
def test_finite_differences(form: Callable[[Rows], Tensor]) -> None:
    rows = random_rows()
    flat = [w for tasks in rows for w in tasks]
    assert torch.autograd.gradcheck(lambda *ws: form([list(ws[:3]), list(ws[3:])]), flat)


def test_the_trace_norm_is_safe_where_it_has_a_corner() -> None:
    """Equal tasks (own encoders at their start), zeros, and more tasks than numbers."""
    equal = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    rows = [[equal.clone().requires_grad_() for _ in range(4)], [torch.zeros(3).requires_grad_() for _ in range(4)]]
    value = trace_norms(rows)
    assert value.item() == pytest.approx(2 * equal.norm().item(), rel=1e-5)
    value.backward()
    for w in rows[0]:  # u v': each of the four carries half of the common direction
        torch.testing.assert_close(w.grad, equal / equal.norm() / 2, atol=1e-4, rtol=1e-4)
    assert all(not w.grad.any() for w in rows[1])
    crowded = [[torch.tensor([float(i)], requires_grad=True) for i in range(3)]]
    trace_norms(crowded).backward()
    assert all(w.grad.isfinite().all() for w in crowded[0])


@pytest.mark.parametrize("form", ["l2", "trace"])
@pytest.mark.parametrize("bf16", [False, True])
def test_only_the_streams_tasks_move(
    tiny_model: Any, tiny_stream: Any, make_context: Any, form: Any, bf16: bool
) -> None:
    model = tiny_model("own_encoder")
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    regularizer = SoftSharing(make_context(model), form=form, weight=0.5)
    found = {}
    for tasks in (["topic", "same", "alike"], ["topic"], ["topic", "alike"]):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            value = regularizer.penalty(model, model.run(tiny_stream(tasks)))
        value.backward()
        rows = [list(ws) for ws in zip(*(model.adapter.task_parameters(t) for t in model.tasks), strict=True)]
        expected = 0.5 * (pairwise(rows) if form == "l2" else nuclear(rows)).item()
        assert value.item() == pytest.approx(expected, rel=1e-5)
        for task in model.tasks:
            own = model.adapter.task_parameters(task)
            assert all((p.grad is not None) == (task in tasks) for p in own)
        found[len(tasks)] = [p.grad for p in model.adapter.task_parameters("topic")]
        assert all(p.grad is None for p in model.encoder.parameters())
    for alone, together in zip(found[1], found[3], strict=True):
        torch.testing.assert_close(alone, together)  # a task's gradient does not depend on the other tasks


def test_training_brings_encoders_together(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model("own_encoder")
    with torch.no_grad():
        for parameter in model.adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    regularizer = SoftSharing(make_context(model), weight=1.0)
    forward = model.run(tiny_stream())
    optimizer = torch.optim.SGD(model.adapter.parameters(), lr=0.1)
    values = []
    for _ in range(5):
        optimizer.zero_grad()
        values.append(regularizer.penalty(model, forward))
        values[-1].backward()
        optimizer.step()
    # The pull on W_i is 4/(K-1) (W_i - mean), so each step leaves 1 - 0.1 * 2 of the distance to the mean.
    assert values[1].item() == pytest.approx(0.64 * values[0].item(), rel=1e-4)
    assert values[-1].item() == pytest.approx(0.64**4 * values[0].item(), rel=1e-3)


def test_nothing_to_share(tiny_model: Any, make_context: Any) -> None:
    with pytest.raises(
        UserError, match="recipe: adapter: soft_sharing requires an adapter with per-task parameters; own_encoder"
    ):
        SoftSharing(make_context(tiny_model("none")))
    alone = tiny_model("own_encoder")
    alone.tasks = ("topic",)
    with pytest.raises(UserError, match="at least two trained tasks"):
        SoftSharing(RegularizerContext(alone, {"topic": 1.0}, 10))
