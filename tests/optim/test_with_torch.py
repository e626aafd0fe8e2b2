"""Every optimizer in a plain PyTorch loop: torch's schedulers, GradScaler, closures and added groups of parameters."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from polytask.optim import OPTIMIZERS, AdamW

X = torch.linspace(-1, 1, 32)[:, None]
Y = torch.cat([X.sin(), X.square()], dim=1)
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 5)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.02, total_steps=40),  # it changes betas too
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.99)], milestones=[5]
    ),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))


def loss_of(model: nn.Module) -> Tensor:
    return nn.functional.mse_loss(model(X), Y)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_a_scheduler(name: str, scheduler: str) -> None:
    """The loss falls, and a run continued from the saved states is bit-identical."""
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters(), lr=0.01)
    schedule = SCHEDULERS[scheduler](optimizer)
    start, rates, saved = loss_of(model).item(), [], None
    for step in range(20):
        if step == 10:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), schedule.state_dict()))
        optimizer.zero_grad()
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert loss_of(model).item() < start
    assert len(set(rates)) > 3
    assert saved is not None
    again = network()
    resumed = OPTIMIZERS[name](again.parameters(), lr=0.01)
    schedule = SCHEDULERS[scheduler](resumed)
    for part, state in zip((again, resumed, schedule), saved, strict=True):
        part.load_state_dict(state)
    for _ in range(10):
        resumed.zero_grad()
        loss_of(again).backward()
        nn.utils.clip_grad_norm_(again.parameters(), 1.0)
        resumed.step()
        schedule.step()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_a_grad_scaler(name: str) -> None:
    """Scaled gradients give the same update, and a step with an infinite gradient is skipped."""
    plain, scaled = network(), network()
    steps, scaler = [OPTIMIZERS[name](m.parameters(), lr=0.01) for m in (plain, scaled)], torch.amp.GradScaler("cpu")
    loss_of(plain).backward()
    steps[0].step()
    scaler.scale(loss_of(scaled)).backward()
    scaler.step(steps[1])
    scaler.update()
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    before = copy.deepcopy(scaled.state_dict())
    scaler.scale(loss_of(scaled) * torch.inf).backward()
    scaler.step(steps[1])
    assert all(torch.equal(tensor, before[key]) for key, tensor in scaled.state_dict().items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_a_closure_and_another_group(name: str) -> None:
    model = network()
    optimizer = OPTIMIZERS[name](model[0].parameters(), lr=0.01)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.0, "weight_decay": 0.0})
    frozen = copy.deepcopy(model[2].state_dict())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    first = optimizer.step(closure)  # type: ignore[arg-type]
    assert first is not None
    assert first.item() > loss_of(model).item()
    assert all(torch.equal(tensor, frozen[key]) for key, tensor in model[2].state_dict().items())


def test_adamw_takes_the_place_of_torchs() -> None:
    """The same arguments, and the state of a run with torch's own can be continued."""
    theirs, ours = network(), network()
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    first = torch.optim.AdamW(theirs.parameters(), **options)
    loss_of(theirs).backward()
    first.step()
    ours.load_state_dict(theirs.state_dict())
    second = AdamW(ours.parameters(), **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # torch does not copy tensors
    for model, optimizer in ((theirs, first), (ours, second)):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(one, other)
