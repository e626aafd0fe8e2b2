"""Polytask's optimizers in a plain PyTorch loop, with one of torch's learning rate schedules."""

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from polytask.optim import Adamax, AdamW, Lamb, Lion, QHAdam

STEPS = 200
x = torch.linspace(-3, 3, 256)[:, None]
y = x.sin() + 0.1 * x.square()


def train(method: type[torch.optim.Optimizer], lr: float) -> tuple[float, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = method(model.parameters(), lr=lr)
    schedule = OneCycleLR(optimizer, max_lr=lr, total_steps=STEPS)
    losses = []
    for _ in range(STEPS):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


if __name__ == "__main__":
    for method, lr in [(AdamW, 1e-2), (Adamax, 1e-2), (QHAdam, 1e-2), (Lion, 1e-3), (Lamb, 5e-2)]:
        first, last = train(method, lr)
        print(f"{method.__name__:7} loss {first:.3f} -> {last:.5f}")
