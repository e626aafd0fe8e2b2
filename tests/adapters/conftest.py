"""A small encoder's context, a stream of two tasks, and adapters away from their silent start."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from polytask.adapters.base import Adapter, AdapterContext
from polytask.encoders.attention import attend
from polytask.stream import Layout
from polytask.text.packing import Packer, Part


@pytest.fixture
def context() -> AdapterContext:
    return AdapterContext(("a", "b"), layers=2, hidden=8, heads=2, ffn=16, dropout=0.1, attend=attend)


@pytest.fixture
def layout() -> Layout:
    """One sequence of task a, two of task b."""
    parts = [Part("a", [(np.arange(5, 9),)]), Part("b", [(np.arange(5, 7),), (np.arange(5, 11),)])]
    return Packer(("a", "b"), 2, 3, 16).pack(parts).layout


@pytest.fixture
def shaken() -> Callable[[Adapter], Adapter]:
    def random(adapter: Adapter) -> Adapter:
        torch.manual_seed(3)
        for parameter in adapter.parameters():
            nn.init.normal_(parameter, std=0.5)
        return adapter

    return random
