"""Three tasks that share a layer: the update is made of their gradients by several policies.

A step conflicts with a task if the inner product of the update and the task's gradient is negative: the step then
increases that task's loss.
"""

import torch
from torch import Tensor, nn

from polytask.policies import CaGrad, GradientPolicy, Mgda, PcGrad, UpGrad, combine_gradients

STEPS = 200
x = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
targets = torch.stack([x[:, 0] - x[:, 1], x[:, 2] - 2 * x[:, 0], x[:, 1] + x[:, 2]])


def inner_product(one: list[Tensor], other: list[Tensor]) -> float:
    return sum((a * b).sum().item() for a, b in zip(one, other, strict=True))


def train(policy: type[GradientPolicy] | None) -> tuple[int, list[float]]:
    """Returns the number of steps that conflict with a task, and the losses at the end."""
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(8, 3), nn.Tanh())
    heads = nn.ModuleList(nn.Linear(3, 1) for _ in targets)
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.05)
    shared, conflicts, batches = list(trunk.parameters()), 0, torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        rows = torch.randint(512, (16,), generator=batches)
        hidden = trunk(x[rows])
        losses = [nn.functional.mse_loss(head(hidden)[:, 0], y[rows]) for head, y in zip(heads, targets, strict=True)]
        gradients = [list(torch.autograd.grad(loss, shared, retain_graph=True)) for loss in losses]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()  # the heads keep their own gradients
        update = [parameter.grad for parameter in shared if parameter.grad is not None]
        if policy is not None:
            update = combine_gradients(policy, gradients)
            for parameter, gradient in zip(shared, update, strict=True):
                parameter.grad = gradient
        conflicts += any(inner_product(update, gradient) < -1e-6 for gradient in gradients)
        optimizer.step()
    return conflicts, [nn.functional.mse_loss(h(trunk(x))[:, 0], y).item() for h, y in zip(heads, targets, strict=True)]


if __name__ == "__main__":
    policies: list[type[GradientPolicy] | None] = [None, PcGrad, CaGrad, Mgda, UpGrad]
    for policy in policies:
        conflicts, losses = train(policy)
        name = "sum" if policy is None else policy.__name__
        print(f"{name:7} {conflicts:3} of {STEPS} steps conflict; losses", *(f"{loss:.3f}" for loss in losses))
