"""Contexts in which a module has another mode: eval mode, or no gradients of its parameters."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put the module in eval mode inside the context; afterwards every submodule has the mode it had before."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def without_gradients(module: nn.Module) -> Iterator[None]:
    """Inside the context, passes compute no gradients of the module's parameters; those of its input remain."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
