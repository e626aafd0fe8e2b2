"""Adapters by name: task-specific parts inside the encoder."""

from collections.abc import Callable

from polytask.adapters.base import Adapter, AdapterContext, LayerAdapter
from polytask.adapters.bitfit import BitFit
from polytask.adapters.conditional_norm import ConditionalNorm
from polytask.adapters.houlsby import Houlsby
from polytask.adapters.ia3 import Ia3
from polytask.adapters.lhuc import Lhuc
from polytask.adapters.lora import Lora
from polytask.adapters.low_rank import LowRank
from polytask.adapters.none import NoAdapter
from polytask.adapters.own_encoder import OwnEncoder
from polytask.adapters.pal import Pal
from polytask.adapters.prefix import Prefix
from polytask.adapters.shared import Shared
from polytask.adapters.stack import Stack

ADAPTERS: dict[str, Callable[..., Adapter]] = {
    "bitfit": BitFit,
    "conditional_norm": ConditionalNorm,
    "houlsby": Houlsby,
    "ia3": Ia3,
    "lhuc": Lhuc,
    "lora": Lora,
    "low_rank": LowRank,
    "none": NoAdapter,
    "own_encoder": OwnEncoder,
    "pal": Pal,
    "prefix": Prefix,
    "shared": Shared,
    "stack": Stack,
}

__all__ = [
    "ADAPTERS",
    "Adapter",
    "AdapterContext",
    "BitFit",
    "ConditionalNorm",
    "Houlsby",
    "Ia3",
    "LayerAdapter",
    "Lhuc",
    "Lora",
    "LowRank",
    "NoAdapter",
    "OwnEncoder",
    "Pal",
    "Prefix",
    "Shared",
    "Stack",
]
