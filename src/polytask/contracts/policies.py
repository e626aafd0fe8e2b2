"""Properties of policies, with three tasks."""

from collections.abc import Callable

import torch

from polytask.contracts.claims import require, require_close, require_finite
from polytask.policies.base import Policy, PolicyContext
from polytask.types import StepReport

Method = Callable[[PolicyContext], Policy]
CONTEXT = PolicyContext(dict.fromkeys("abc", 1.0), {"a": "classes", "b": "yes_no", "c": "score"}, 10)


def one_loss_whatever_the_order(method: Method) -> None:
    """`weigh` returns one scalar that does not depend on the order of the tasks, with a finite gradient."""
    losses = {task: torch.tensor(value, requires_grad=True) for task, value in [("a", 0.5), ("b", 2.0), ("c", 0.1)]}
    total = method(CONTEXT).weigh(losses)
    require(total.shape == (), f"weigh must return a scalar, found the shape {tuple(total.shape)}")
    turned = method(CONTEXT).weigh(dict(reversed(losses.items())))
    require_close(total, turned, "weigh depends on the order of the tasks", atol=1e-6, rtol=1e-5)
    total.backward()
    for task, loss in losses.items():
        require(loss.grad is not None and torch.isfinite(loss.grad), f"the loss of task {task} has no finite gradient")


def weights_multiply_the_losses(method: Method) -> None:
    """The weights of the recipe multiply the tasks' losses from the start."""
    heavy = PolicyContext({"a": 1.0, "b": 4.0, "c": 0.5}, CONTEXT.kinds, 10)
    slopes = []
    for context in (CONTEXT, heavy):
        losses = [torch.tensor(1.0, requires_grad=True) for _ in "abc"]
        total = method(context).weigh(dict(zip("abc", losses, strict=True)))
        slopes.append(torch.stack(torch.autograd.grad(total, losses)))
    wanted = torch.tensor([1.0, 4.0, 0.5])
    message = "weigh does not multiply the losses by context.weights"
    require_close(slopes[1] / slopes[0], wanted, message, atol=1e-6, rtol=1e-5)


def state_round_trip(method: Method) -> None:
    """A policy that loads another's state_dict weighs losses in the same way."""
    policy = method(CONTEXT)
    for step in range(1, 36):
        policy.observe(StepReport(step, 50, step // 10 + 1, {"a": 1 / step, "c": 0.3}, {}, 0.1, 1.0, 8, 80, 0.1))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.uniform_()
    other = method(CONTEXT)
    other.load_state_dict(policy.state_dict())
    losses = {"a": torch.tensor(0.5), "c": torch.tensor(3.0)}
    message = "after load_state_dict the losses are weighed differently: keep what changes in parameters or buffers"
    require(torch.equal(policy.weigh(losses), other.weigh(losses)), message)


def gradients_get_finite_weights(method: Method) -> None:
    """Gradients that agree, conflict, differ in size or are zero get finite weights, for any number of memories."""
    torch.manual_seed(0)
    rows = torch.randn(3, 6, dtype=torch.float64)
    sizes = torch.tensor([[1e-6], [1.0], [1e3]], dtype=torch.float64)
    for own in (1, 2, 3) if method(CONTEXT).needs_task_gradients else ():
        policy = method(CONTEXT)
        for gradients in (rows, rows.abs(), rows * sizes, rows * (sizes > 1), -rows.abs() * sizes.flip(0), 0 * rows):
            weights = policy.combine(gradients @ gradients.T, own)
            require(weights.shape == (3,), f"combine must return 3 weights, found the shape {tuple(weights.shape)}")
            require(weights.dtype == torch.float64, f"weights must be float64, found {weights.dtype}")
            require_finite(weights, "the weights of gradients")


def one_task_keeps_its_gradient(method: Method) -> None:
    """The gradient of a step with one task is used as it is."""
    policy = method(CONTEXT)
    if policy.needs_task_gradients:
        weights = policy.combine(torch.full((1, 1), 4.0, dtype=torch.float64), 1)
        message = "the only gradient of a step must have the weight 1"
        require_close(weights, torch.ones(1, dtype=torch.float64), message, atol=1e-6)


PROPERTIES = (
    one_loss_whatever_the_order,
    weights_multiply_the_losses,
    state_round_trip,
    gradients_get_finite_weights,
    one_task_keeps_its_gradient,
)
