"""Parameters of single tasks in a stream of several."""

import torch
from torch import nn

from polytask.adapters.base import per_task, task_rows
from polytask.adapters.per_task import TaskLinear, TaskVector
from polytask.stream import Layout
from polytask.text.packing import Packer, Part


def test_each_tasks_rows_go_through_its_own_map(layout: Layout) -> None:
    linear = TaskLinear(("a", "b"), 3, 2, nn.init.normal_)
    x = torch.randn(sum(layout.lengths), 3)
    got = linear(x, layout)
    for k, rows in task_rows(layout):
        torch.testing.assert_close(got[rows], x[rows] @ linear.weights[k].T + linear.biases[k])
    assert [p.shape for p in linear.own(1)] == [(2, 3), (2,)]


def test_filler_rows_become_zeros_and_absent_tasks_are_passed_over() -> None:
    stream = Packer(("a", "b", "c"), 2, 3, 16).pack([Part("b", [(torch.arange(5, 8).numpy(),)])], token_budget=12)
    assert [k for k, _ in task_rows(stream.layout)] == [1]
    out = per_task(torch.ones(12, 4), stream.layout, lambda k, rows: rows * (k + 1))
    assert out[:5].eq(2).all()
    assert out[5:].eq(0).all()


def test_each_row_gets_the_vector_of_its_task(layout: Layout) -> None:
    vectors = TaskVector(("a", "b"), 3, nn.init.normal_)
    x = torch.randn(sum(layout.lengths), 3).bfloat16()
    got = vectors(x, layout)
    assert got.dtype == torch.bfloat16
    for k, rows in task_rows(layout):
        assert torch.equal(got[rows], vectors.vectors[k].bfloat16().expand_as(x[rows]))
