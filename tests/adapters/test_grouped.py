"""Parameters of single tasks in a stream of several."""

import numpy as np
import pytest
import torch
from torch import nn

from polytask.adapters.grouped import TaskLinear, by_task, grouped_linear, looked_up, task_slices
from polytask.stream import Layout
from polytask.text.packing import Packer, Part


def test_each_tasks_rows_go_through_its_own_map(layout: Layout) -> None:
    linear = TaskLinear(("a", "b"), 3, 2, nn.init.normal_)
    x = torch.randn(sum(layout.lengths), 3)
    got = linear(x, layout)
    for k, rows in task_slices(layout):
        torch.testing.assert_close(got[rows], x[rows] @ linear.weights[k].T + linear.biases[k])
    assert [p.shape for p in linear.own(1)] == [(2, 3), (2,)]


def test_filler_rows_become_zeros_and_absent_tasks_are_passed_over() -> None:
    stream = Packer(("a", "b", "c"), 2, 3, 16).pack([Part("b", [(torch.arange(5, 8).numpy(),)])], token_budget=12)
    assert [k for k, _ in task_slices(stream.layout)] == [1]
    out = by_task(torch.ones(12, 4), stream.layout, lambda k, rows: rows * (k + 1))
    assert out[:5].eq(2).all()
    assert out[5:].eq(0).all()


@pytest.mark.parametrize(("features", "outputs"), [(16, 8), (12, 17)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_product_for_all_tasks_is_that_of_each(features: int, outputs: int, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    tasks = ("a", "b", "c", "d")
    ids = np.arange(5, 12)
    parts = [Part("a", [(ids,), (ids[:3],)]), Part("c", [(ids[:1],)]), Part("d", [(ids[:5],)])]
    layout = Packer(tasks, 2, 3, 16).pack(parts, token_budget=40).layout.to(torch.device(device))
    torch.manual_seed(0)
    linear = TaskLinear(tasks, features, outputs, nn.init.normal_).to(device)
    for bias in linear.biases:
        nn.init.normal_(bias)
    x = torch.randn(40, features, device=device, requires_grad=True)
    real = layout.token_ranges[3][1]
    towards = torch.randn(real, outputs, device=device)

    def both(y: torch.Tensor) -> list[torch.Tensor]:
        wanted = [x, *linear.parameters()]
        grads = torch.autograd.grad((y[:real].float() * towards).sum(), wanted, allow_unused=True)
        return [y[:real].float(), *(g for g in grads if g is not None)]

    groups = layout.groups
    here = [[values[k] for k in groups.tasks] for values in (linear.weights, linear.biases)]
    product = grouped_linear(x, here[0], here[1], groups)
    assert product.dtype == torch.bfloat16
    assert product.isfinite().all()  # filler too
    slices = by_task(x, layout, lambda k, rows: rows @ linear.weights[k].T + linear.biases[k])
    found, expected = both(product), both(slices)
    assert len(found) == len(expected) == 2 + 2 * 3  # task b took no part
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=0.1, rtol=2e-2)


def test_a_vector_is_looked_up_for_each_token() -> None:
    ids = np.arange(5, 8)
    layout = Packer(("a", "b", "c"), 2, 3, 16).pack([Part("a", [(ids,)]), Part("c", [(ids[:1],)])]).layout
    assert layout.groups.tasks == (0, 2)
    assert layout.groups.ends_G.tolist() == [5, 8]
    found = looked_up([torch.tensor([1.0]), torch.tensor([2.0])], layout.groups)
    assert found.flatten().tolist() == [1, 1, 1, 1, 1, 2, 2, 2]
