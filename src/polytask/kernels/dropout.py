"""Dropout whose masks are cheap on a CPU. Knows shapes and torch's generator, nothing of the model.

torch draws one Bernoulli number at a time there, on one thread: 2.1 ms for the 362,000 of a step's sublayer, of which
there are two in each layer. 64 random bits are four numbers of 15 bits, and a mask is then a few integer operations:
0.5 ms.
"""

import math

import torch
from torch import Tensor, nn

BITS = 15  # of a number; the sixteenth is its sign
AS_INTEGERS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


class Dropout(nn.Dropout):
    """torch's dropout in distribution; the share that is dropped is a multiple of 2^-15."""

    def forward(self, x: Tensor) -> Tensor:
        by_bits = x.device.type == "cpu" and x.dtype in AS_INTEGERS
        if self.training and 0 < self.p < 1 and by_bits:
            return x * kept(x.shape, self.p, x.dtype)
        return super().forward(x)


def kept(shape: tuple[int, ...], share: float, dtype: torch.dtype) -> Tensor:
    """What to multiply by: 0 for about `share` of the places, and for the others what keeps the mean."""
    least = round(share * 2**BITS)
    if least == 2**BITS:
        return torch.zeros(shape, dtype=dtype)
    count = math.prod(shape)
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[:count].bitwise_and_(2**BITS - 1)
    # least - 1 - number is below 0, so its sign bit is set and the shift fills every bit, where the number is kept.
    ones = numbers.neg_().add_(least - 1).bitwise_right_shift_(BITS).to(AS_INTEGERS[dtype])
    scale = torch.tensor(1 / (1 - least / 2**BITS), dtype=dtype)
    return ones.bitwise_and_(int(scale.view(AS_INTEGERS[dtype]))).view(dtype).view(shape)
