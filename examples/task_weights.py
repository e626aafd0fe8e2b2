"""Two losses of very different size, weighted by uncertainty: the weights are learned with the model."""

import torch
from torch import nn

from polytask.policies import PolicyContext, Uncertainty

x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
y = {"large": 100 * x[:, :1], "small": x[:, 1:2] / 10}

if __name__ == "__main__":
    torch.manual_seed(0)
    trunk, heads = nn.Linear(4, 4), nn.ModuleDict({task: nn.Linear(4, 1) for task in y})
    weights = Uncertainty(PolicyContext(weights=dict.fromkeys(y, 1.0), kinds=dict.fromkeys(y, "score")))
    parameters = [*trunk.parameters(), *heads.parameters(), *weights.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    for step in range(401):
        losses = {task: nn.functional.mse_loss(heads[task](trunk(x)), y[task]) for task in y}
        optimizer.zero_grad()
        weights.weigh(losses).backward()
        optimizer.step()
        if step % 200 == 0:
            shown = [f"{task}: loss {loss.item():.4g}" for task, loss in losses.items()]
            learned = [f"{(-s).exp().item():.3g}" for s in weights.parameters()]
            print(f"step {step:3}", *shown, "weights", *learned)
