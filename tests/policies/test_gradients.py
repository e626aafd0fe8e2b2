"""Policies on lists of gradients: the forms that a gradient can have, and the update of the authors' formulas."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchjd import aggregation

from polytask.policies import POLICIES, a_gem, gem
from polytask.policies.base import GradientPolicy, PolicyContext, StepPolicy
from polytask.policies.gradients import combine_gradients
from polytask.policies.pcgrad import PcGrad
from polytask.types import UserError

OF_GRADIENTS: dict[str, Any] = {n: p for n, p in POLICIES.items() if issubclass(p, GradientPolicy)}  # type: ignore[arg-type]
OF_STEPS: dict[str, Any] = {n: p for n, p in OF_GRADIENTS.items() if issubclass(p, StepPolicy)}
SHAPES = [(3, 4), (5,), ()]


def drawn_lists(tasks: int = 3, seed: int = 0) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES] for _ in range(tasks)]


def flat(gradient: Any) -> Tensor:
    return torch.cat([part.flatten() for part in gradient])


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_lists_and_flat_tensors_give_the_policys_update(name: str) -> None:
    gradients = drawn_lists()
    own = 3 if name in OF_STEPS else 2
    torch.manual_seed(1)
    found = combine_gradients(OF_GRADIENTS[name], gradients[:own], gradients[own:])
    assert [part.shape for part in found] == [torch.Size(shape) for shape in SHAPES]
    rows = torch.stack([flat(gradient) for gradient in gradients])
    torch.manual_seed(1)
    weights = OF_GRADIENTS[name](PolicyContext()).combine(rows @ rows.T, own)
    torch.testing.assert_close(flat(found), weights @ rows)
    torch.manual_seed(1)
    of_flat = combine_gradients(OF_GRADIENTS[name], list(rows[:own]), list(rows[own:]))
    torch.testing.assert_close(of_flat, flat(found))


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("aligned_mtl", "AlignedMTL"),
        ("dualproj", "DualProj"),
        ("imtl_g", "IMTLG"),
        ("mgda", "MGDA"),
        ("pcgrad", "PCGrad"),
        ("upgrad", "UPGrad"),
    ],
)
def test_as_in_torchjd(name: str, theirs: str) -> None:
    """Theirs are means, except PCGrad's; MGDA is solved in steps there, DualProj and UPGrad with a ridge."""
    aggregator = getattr(aggregation, theirs)(**({"epsilon": 1e-9, "max_iters": 5000} if name == "mgda" else {}))
    for seed in range(5):
        rows = torch.stack([flat(gradient) for gradient in drawn_lists(seed=seed)])
        torch.manual_seed(seed)
        expected = aggregator(rows) * (1 if name == "pcgrad" else len(rows))
        torch.manual_seed(seed)
        found = combine_gradients(OF_STEPS[name], list(rows))
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


def test_a_parameter_without_a_gradient() -> None:
    """None is zero for the tasks that have it, and None in the update if no task has a gradient."""
    gradients = [[torch.tensor([1.0, 0.0]), None, None], [torch.tensor([-1.0, 1.0]), torch.tensor([2.0]), None]]
    zeros = [[torch.tensor([1.0, 0.0]), torch.zeros(1)], [torch.tensor([-1.0, 1.0]), torch.tensor([2.0])]]
    found, expected = combine_gradients(PcGrad, gradients), combine_gradients(PcGrad, zeros)
    assert found[2] is None
    torch.testing.assert_close(found[:2], expected)
    assert combine_gradients(PcGrad, [[None], [None]]) == [None]


def test_large_parameters_are_multiplied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = [flat(gradient).float() for gradient in drawn_lists()]
    expected = combine_gradients(OF_STEPS["upgrad"], gradients)
    monkeypatch.setattr("polytask.policies.gradients.COLUMNS", 4)
    torch.testing.assert_close(combine_gradients(OF_STEPS["upgrad"], gradients), expected)


def test_gem_and_a_gem_project_a_gradient() -> None:
    gradient, memory = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])
    torch.testing.assert_close(gem.project(gradient, [memory, torch.tensor([0.0, 1.0])]), torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(a_gem.project(gradient, memory), torch.tensor([0.5, 0.5]))
    assert torch.equal(gem.project(gradient, []), gradient)
    assert torch.equal(a_gem.project(gradient, torch.tensor([1.0, 3.0])), gradient)
    assert (gem.project([gradient], [[memory]], margin=1.0)[0] @ memory) > 0


def test_options_objects_and_the_order_of_pcgrad() -> None:
    rows = [flat(gradient) for gradient in drawn_lists(4, seed=3)]
    cagrad = OF_STEPS["cagrad"]
    torch.testing.assert_close(combine_gradients(cagrad, rows, c=0.0), torch.stack(rows).sum(0))
    policy = PcGrad(PolicyContext())
    updates = []
    for seed in (0, 0, 1, 2, 3):
        policy.generator = torch.Generator().manual_seed(seed)
        updates.append(combine_gradients(policy, rows))
    assert torch.equal(updates[0], updates[1])
    assert len({tuple(update.tolist()) for update in updates}) > 1


def test_gradients_that_cannot_be_combined() -> None:
    one = torch.ones(2)
    with pytest.raises(UserError, match="indices 1"):
        combine_gradients(PcGrad, [one, torch.tensor([np.nan, 0.0])])
    with pytest.raises(UserError, match="found 1, 2"):
        combine_gradients(PcGrad, [[one], [one, one]])
    with pytest.raises(UserError, match="found no gradients"):
        combine_gradients(PcGrad, [])
    with pytest.raises(UserError, match="PcGrad has no memories"):
        combine_gradients(PcGrad, [one], [one])
    with pytest.raises(UserError, match="WeightedSum weights losses"):
        combine_gradients(POLICIES["sum"], [one])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="AGem needs one gradient"):
        combine_gradients(OF_GRADIENTS["a_gem"], [one], [one, one])
    with pytest.raises(UserError, match=r"parameter 1 must have one shape, found \(2,\), \(3,\)"):
        combine_gradients(PcGrad, [[one, one], [one, torch.ones(3)]])
    with pytest.raises(UserError, match=r"must have one shape, found \(2,\), \(\), \(\)"):
        gem.project(one, one)  # a memory in place of the list of memories
    with pytest.raises(UserError, match=r"must be a class of polytask.policies, such as PcGrad, .* found 'pcgrad'"):
        combine_gradients("pcgrad", [one])  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    gradients = [[part.float() for part in gradient] for gradient in drawn_lists()]
    found = combine_gradients(OF_STEPS["upgrad"], [[part.cuda() for part in gradient] for gradient in gradients])
    assert all(part.is_cuda for part in found)
    torch.testing.assert_close([part.cpu() for part in found], combine_gradients(OF_STEPS["upgrad"], gradients))
