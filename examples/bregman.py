"""Bregman proximal point: the outputs stay close to those of a running average of the model."""

import torch
from torch import nn

from polytask.regularizers import bregman

generator = torch.Generator().manual_seed(0)
x = torch.randn(512, 20, generator=generator)
labels = (x[:, 0] + torch.randn(512, generator=generator) > 0).long()


def train(weight: float) -> float:
    """Returns the distance between the outputs of the model and those of its average, at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average, followers = bregman.running_average(model, rate=lambda step: 0.01 if step <= 20 else 0.001)
    for step in range(1, 201):
        batch = torch.randint(512, (16,))
        outputs = model(x[batch])
        penalty = bregman.penalty_of(outputs, average(x[batch]))
        loss = nn.functional.cross_entropy(outputs, labels[batch]) + weight * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        followers.move(step)
    return bregman.penalty_of(model(x), average(x)).item()


if __name__ == "__main__":
    for weight in (0.0, 1.0):
        print(f"weight {weight:g}: the outputs differ from those of the average by {train(weight):.3f}")
