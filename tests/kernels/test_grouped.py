"""Operations for many tasks at once compute what the operations for each task do."""

import numpy as np
import pytest
import torch
from torch import nn

from polytask.adapters.base import per_task
from polytask.adapters.per_task import TaskLinear
from polytask.build import make_adapter
from polytask.encoders.bert import Bert, BertShape
from polytask.kernels.grouped import grouped_linear, vector_rows
from polytask.settings import MethodChoice
from polytask.text.packing import Packer, Part


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
    here = [torch.stack([values[k] for k in groups.tasks]) for values in (linear.weights, linear.biases)]
    product = grouped_linear(x, here[0], here[1], groups)
    assert product.dtype == torch.bfloat16
    assert product.isfinite().all()  # filler too
    slices = per_task(x, layout, lambda k, rows: rows @ linear.weights[k].T + linear.biases[k])
    found, expected = both(product), both(slices)
    assert len(found) == len(expected) == 2 + 2 * 3  # task b took no part
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=0.1, rtol=2e-2)


def test_a_vector_is_looked_up_for_each_token() -> None:
    ids = np.arange(5, 8)
    layout = Packer(("a", "b", "c"), 2, 3, 16).pack([Part("a", [(ids,)]), Part("c", [(ids[:1],)])]).layout
    assert layout.groups.tasks == (0, 2)
    assert layout.groups.ends_G.tolist() == [5, 8]
    found = vector_rows([torch.tensor([1.0]), torch.tensor([2.0])], layout)
    assert found.flatten().tolist() == [1, 1, 1, 1, 1, 2, 2, 2]


def test_what_is_stacked_once_in_a_pass_is_stacked_anew_in_the_next() -> None:
    """PAL's projections are shared by all layers; their gradients are those of every task by itself."""
    tasks = ("a", "b", "c", "d")
    shape = BertShape(layers=2, hidden=16, heads=2, ffn=16, vocabulary=20, positions=64, dropout=0, attention_dropout=0)
    torch.manual_seed(0)
    encoder, adapter = Bert(shape), make_adapter(MethodChoice("pal", {"size": 8, "heads": 2}), tasks, shape)
    for parameter in adapter.parameters():
        nn.init.normal_(parameter)
    ids = np.arange(5, 8)
    packer = Packer(tasks, 2, 3, 8)
    together = packer.pack([Part(task, [(ids,)]) for task in tasks], static_shape=True)
    apart = [packer.pack([Part(task, [(ids,)])]) for task in tasks]
    assert together.layout.equal_tasks == (0, 1, 2, 3)
    starts = [first for first, _ in together.layout.token_ranges]
    for _ in range(2):
        firsts_KD = encoder.encode(together, adapter)[starts]
        assert not hasattr(together.layout, "pass_cache")
        expected_KD = torch.stack([encoder.encode(stream, adapter)[0] for stream in apart])
        torch.testing.assert_close(firsts_KD, expected_KD, atol=1e-5, rtol=1e-5)
        weights = list(adapter.parameters())
        for one, two in zip(
            torch.autograd.grad(firsts_KD.square().sum(), weights),
            torch.autograd.grad(expected_KD.square().sum(), weights),
            strict=True,
        ):
            torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
        with torch.no_grad():
            for parameter in weights:
                parameter *= 0.5
