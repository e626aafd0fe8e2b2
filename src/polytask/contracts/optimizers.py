"""Properties of optimizers, which get the learning rate and the weight decay of each group of parameters."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from polytask.contracts.claims import require

Method = Callable[..., Optimizer]
SHAPES: list[tuple[int, ...]] = [(7, 5), (11,), (3, 2, 2), ()]


def start(device: str = "cpu") -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in SHAPES]


def named_groups(params: list[Tensor]) -> list[dict[str, Any]]:
    """As in training/groups.py: names, two learning rates, two decays."""
    named = [(f"parameter.{i}", parameter) for i, parameter in enumerate(params)]
    return [
        {"params": named[:2], "lr": 1e-2, "base_lr": 1e-2, "weight_decay": 0.1},
        {"params": named[2:], "lr": 3e-3, "base_lr": 3e-3, "weight_decay": 0.0},
    ]


def gradients(steps: int) -> Iterator[list[Tensor | None]]:
    """Gradients of changing size; the second and the last parameter often have none, and not in the same steps."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        size = 10.0 ** (step % 5 - 3)
        grads: list[Tensor | None] = [size * torch.randn(shape, generator=generator) for shape in SHAPES]
        if step % 3 == 0:
            grads[1] = None
        if step % 7 < 4:
            grads[3] = None
        yield grads


def run(optimizer: Optimizer, params: list[Tensor], steps: list[list[Tensor | None]]) -> None:
    for grads in steps:
        for parameter, grad in zip(params, grads, strict=True):
            parameter.grad = None if grad is None else grad.to(parameter.device)
        optimizer.step()


def counts(optimizer: Optimizer, params: list[Tensor]) -> list[float]:
    """The steps of each parameter, where the optimizer counts them."""
    return [float(optimizer.state[p]["step"]) for p in params if "step" in optimizer.state[p]]


# --- properties -------------------------------------------------------------------------------------------------------
def without_a_gradient_nothing_moves(method: Method) -> None:
    """A parameter without a gradient is not updated, not decayed and not counted."""
    params = [torch.ones(3, 2, requires_grad=True), torch.ones(3, 2, requires_grad=True)]
    optimizer = method(params, lr=0.1, weight_decay=0.5)
    for _ in range(5):
        params[0].grad = torch.ones(3, 2)
        optimizer.step()
    require(torch.equal(params[1], torch.ones(3, 2)), "a parameter without a gradient is updated or decayed")
    require(params[1] not in optimizer.state, "a parameter without a gradient has a state")
    require(not torch.equal(params[0], torch.ones(3, 2)), "a parameter with a gradient is not updated")
    params[1].grad = torch.ones(3, 2)
    optimizer.step()
    before = [parameter.detach().clone() for parameter in params]
    params[0].grad = params[1].grad = None
    optimizer.step()  # no parameter has a gradient
    require(counts(optimizer, params) in ([6.0, 1.0], []), "steps without a gradient are counted")
    same = all(torch.equal(parameter, then) for parameter, then in zip(params, before, strict=True))
    require(same, "parameters move in a step without gradients")


def a_pause_changes_nothing(method: Method) -> None:
    """What is kept of a parameter does not change until its next gradient."""
    steps: list[list[Tensor | None]] = [[torch.full((2, 2), float(i % 3 - 1) + 0.1)] for i in range(12)]
    ends = []
    for pause in (0, 4):
        parameter = torch.ones(2, 2, requires_grad=True)
        optimizer = method([parameter], lr=0.1)
        nothing: list[list[Tensor | None]] = [[None]] * pause
        run(optimizer, [parameter], steps[:6] + nothing + steps[6:])
        ends.append(parameter.detach())
    require(torch.equal(*ends), "steps in which a parameter has no gradient change its later updates")


Round = Callable[[Optimizer, Optimizer], None]


def through_state_dict(before: Optimizer, after: Optimizer) -> None:
    after.load_state_dict(copy.deepcopy(before.state_dict()))


def a_saved_state_resumes_bit_identical(method: Method, through: Round = through_state_dict) -> None:
    """An optimizer that loads another's state continues bit-identically; its state has tensors only."""
    steps = list(gradients(20))
    whole = start()
    run(method(named_groups(whole)), whole, steps)
    first = start()
    before = method(named_groups(first))
    run(before, first, steps[:9])
    tensors = all(isinstance(value, Tensor) for state in before.state.values() for value in state.values())
    require(tensors, "the state of a parameter must have tensors only: checkpoints save nothing else")
    second = [parameter.detach().clone().requires_grad_() for parameter in first]
    after = method(named_groups(second))
    through(before, after)
    run(after, second, steps[9:])
    same = all(torch.equal(one, two) for one, two in zip(whole, second, strict=True))
    require(same, "a run that loads the saved state ends with other parameters than one that was not stopped")


def it_finds_the_bottom_of_a_bowl(method: Method) -> None:
    """Steep in one direction and flat in another, with noise in the gradient, at a learning rate that falls to 0."""
    left = min(distance_left(method, rate) for rate in (0.1, 1.0, 0.01))
    require(left < 0.1, f"400 steps on a quadratic function end {left:.2g} from its minimum, at the best rate")


def distance_left(method: Method, rate: float) -> float:
    steepness = torch.tensor([[0.1, 1.0], [3.0, 10.0]])
    bottom = torch.tensor([[1.0, -2.0], [0.5, 1.5]])
    generator = torch.Generator().manual_seed(0)
    place = torch.tensor([[-1.0, 1.0], [2.0, -1.0]], requires_grad=True)
    optimizer = method([place], lr=rate, weight_decay=0.0)
    for step in range(400):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / 400)
        place.grad = steepness * (place.detach() - bottom) + 0.01 * torch.randn(2, 2, generator=generator)
        optimizer.step()
    return float((place.detach() - bottom).abs().max().nan_to_num(torch.inf))


def decay_shrinks_weights(method: Method) -> None:
    """Weight decay makes weights smaller."""
    ends = []
    for decay in (0.0, 0.5):
        place = torch.full((2, 2), 3.0, requires_grad=True)
        optimizer = method([place], lr=0.01, weight_decay=decay)
        run(optimizer, [place], [[torch.full((2, 2), 0.01 * (-1) ** i)] for i in range(50)])
        ends.append(float(place.detach().norm()))
    require(ends[1] < ends[0] - 0.01, f"weights have the norm {ends[1]:.3f} with decay 0.5, {ends[0]:.3f} without")


def a_closure_computes_the_loss(method: Method) -> None:
    """`step(closure)` calls the closure, returns its loss and updates."""
    parameter = torch.tensor([[2.0]], requires_grad=True)
    optimizer = method([parameter], lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return float(loss.detach())

    loss: Any = optimizer.step(closure)
    require(loss == 4.0, f"step(closure) must return the closure's loss, found {loss}")
    require(float(parameter.detach()) < 2.0, "step(closure) does not update")


PROPERTIES = (
    without_a_gradient_nothing_moves,
    a_pause_changes_nothing,
    a_saved_state_resumes_bit_identical,
    it_finds_the_bottom_of_a_bowl,
    decay_shrinks_weights,
    a_closure_computes_the_loss,
)
