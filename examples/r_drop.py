"""R-Drop: two passes with different dropout should have the same outputs."""

import torch
from torch import nn

from polytask.regularizers import r_drop

generator = torch.Generator().manual_seed(0)
x = torch.randn(64, 20, generator=generator)
labels = (x[:, 0] + 0.5 * torch.randn(64, generator=generator) > 0).long()


def train(weight: float) -> tuple[float, float]:
    """Returns the loss and the distance between two passes, mean over the last steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = []
    for _ in range(150):
        first, second = model(x), model(x)
        penalty = r_drop.penalty_of(first, second)
        loss = nn.functional.cross_entropy(first, labels) + nn.functional.cross_entropy(second, labels)
        optimizer.zero_grad()
        (loss / 2 + weight * penalty).backward()
        optimizer.step()
        rows.append((loss.item() / 2, penalty.item()))
    losses, penalties = zip(*rows[-50:], strict=True)
    return sum(losses) / 50, sum(penalties) / 50


if __name__ == "__main__":
    for weight in (0.0, 1.0):
        loss, penalty = train(weight)
        print(f"weight {weight:g}: loss {loss:.3f}, distance between two passes {penalty:.4f}")
