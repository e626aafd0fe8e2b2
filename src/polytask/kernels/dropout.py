"""Dropout whose masks are cheap on a CPU.

torch draws one Bernoulli number at a time on one thread: 2.1 ms for the 362,000 numbers of a sublayer's step, and a
layer has two sublayers. Here 64 random bits are four numbers of 15 bits, and a mask is a few integer operations:
0.5 ms.
"""

import math

import torch
from torch import Tensor

from polytask.encoders.base import Dropout
from polytask.fused_forms import definition_of, fuses

BITS = 15  # of a number; the sixteenth is its sign
AS_INTEGERS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


@fuses(Dropout.forward)
def drop(module: Dropout, x: Tensor) -> Tensor:
    """The distribution of torch's dropout; the rate is rounded to a multiple of 2^-15."""
    by_bits = x.device.type == "cpu" and x.dtype in AS_INTEGERS
    if module.training and 0 < module.p < 1 and by_bits:
        return x * dropout_mask(x.shape, module.p, x.dtype)
    return definition_of(Dropout.forward)(module, x)


def dropout_mask(shape: tuple[int, ...], rate: float, dtype: torch.dtype) -> Tensor:
    """A factor for each element: 0 with probability `rate`, otherwise the constant that preserves the mean."""
    least = round(rate * 2**BITS)
    if least == 2**BITS:
        return torch.zeros(shape, dtype=dtype)
    count = math.prod(shape)
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[:count].bitwise_and_(2**BITS - 1)
    # Where a number is kept, least - 1 - number is negative: its sign bit is set, and the shift copies it to every bit.
    ones = numbers.neg_().add_(least - 1).bitwise_right_shift_(BITS).to(AS_INTEGERS[dtype])
    scale = torch.tensor(1 / (1 - least / 2**BITS), dtype=dtype)
    return ones.bitwise_and_(int(scale.view(AS_INTEGERS[dtype]))).view(dtype).view(shape)
