"""Two tasks one after another: GEM projects the gradient so that the first task, of which a few examples are kept,
does not get worse."""

import torch
from torch import Tensor, nn

from polytask.policies import a_gem, gem

generator = torch.Generator().manual_seed(0)
x = torch.randn(2, 400, 10, generator=generator)
labels = torch.stack([(x[0, :, 0] > 0), (x[1, :, 0] + 2 * x[1, :, 1] < 0)]).long()


def gradient_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(nn.functional.cross_entropy(model(inputs), targets), list(model.parameters()))


def train(method: str) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for task in range(2):
        for _ in range(150):
            gradient = gradient_of(model, x[task], labels[task])
            if task == 1 and method != "none":
                memory = gradient_of(model, x[0, :50], labels[0, :50])
                gradient = gem.project(gradient, [memory]) if method == "gem" else a_gem.project(gradient, memory)
            for parameter, own in zip(model.parameters(), gradient, strict=True):
                parameter.grad = own
            optimizer.step()
    return [(model(inputs).argmax(-1) == own).float().mean().item() for inputs, own in zip(x, labels, strict=True)]


if __name__ == "__main__":
    for method in ("none", "gem", "a_gem"):
        first, second = train(method)
        print(f"{method:6} accuracy of the first task {first:.2f}, of the second {second:.2f}")
