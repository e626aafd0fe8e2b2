"""AdamW: torch's fused implementation with the options that recipes use."""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from polytask.optim.base import check_options


class FusedAdamW(torch.optim.AdamW):
    """AdamW in one kernel for all parameters: equal to `adamw` up to rounding, and faster.

        theta = theta - lr wd theta - lr m^ / (sqrt(v^) + eps)

    Paper: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.

    Differences: this is torch's code with fused=True and the defaults of `adamw`; it has no efficient correction.
    """

    capturable: ClassVar[bool] = True
    """Whether `step` can be captured in a CUDA graph: it counts steps on the device, accepts learning rates that are
    tensors there, and obeys `found_inf` and `grad_scale`. Each class declares this for itself; a subclass does not
    inherit it."""
    plain_adamw: ClassVar[bool] = True
    """Whether `step` is torch's AdamW, so that training on CUDA may replace it by another kernel. A subclass does not
    inherit this either."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 5e-5,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        check_options("fused_adamw", betas, lr=lr, eps=eps, weight_decay=weight_decay)
        super().__init__(params, lr=lr, betas=(betas[0], betas[1]), eps=eps, weight_decay=weight_decay, fused=True)
