"""torch's fused AdamW under the options that recipes use. Knows nothing else."""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from polytask.optim.base import check_options


class FusedAdamW(torch.optim.AdamW):
    """AdamW in one kernel for all parameters: the same numbers as `adamw` to rounding, and the faster of the two.

        theta = theta - lr wd theta - lr m^ / (sqrt(v^) + eps)

    Paper: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.

    Differences: torch's own code with fused=True and the default options of `adamw`; it has no efficient correction.
    """

    capturable: ClassVar[bool] = True
    """Its `step` can be captured in a CUDA graph: it counts on the device, takes learning rates that are tensors there,
    and obeys `found_inf` and `grad_scale`. Each class declares this for itself; a subclass does not inherit it."""
    plain_adamw: ClassVar[bool] = True
    """Its `step` is torch's AdamW, so training on CUDA may take the same step by another kernel. A subclass with a step
    of its own does not inherit this either."""

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
