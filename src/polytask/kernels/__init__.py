"""Everything that exists for speed. Importing this package registers the fused forms of the definitions."""

from polytask.kernels import attention, cpu_update, dropout, grouped, weight_distance
from polytask.kernels.fused import attention as fused_attention
from polytask.kernels.fused import houlsby, layer, lora, norms, pal, stack

__all__ = [
    "attention",
    "cpu_update",
    "dropout",
    "fused_attention",
    "grouped",
    "houlsby",
    "layer",
    "lora",
    "norms",
    "pal",
    "stack",
    "weight_distance",
]
