"""TorchJD's ways to put the tasks' gradients together, from the extra `gradients`.

Each takes the matrix of inner products and gives weights. They matter in steps that hold several tasks (sampler
`mixed`); a step of one task is left as it is.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polytask.policies.base import GradientPolicy, PolicyContext
from polytask.policies.gem import dual
from polytask.types import UserError


class Surgery(GradientPolicy):
    """One whose weights come from TorchJD."""

    averages: ClassVar[bool] = True
    """TorchJD's answer is near the mean of the gradients. Losses add up here, so it is multiplied by their number."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        try:
            from torchjd import aggregation  # noqa: PLC0415  (an optional extra)

            self.weighting = self.make(aggregation)
        except ImportError as error:
            raise UserError(f"recipe: policy: this one needs pip install 'polytask[gradients]' ({error})") from None

    def make(self, aggregation: Any) -> Any:
        """The weighting, made of TorchJD's module."""
        raise NotImplementedError

    def combine(self, gram_KK: Tensor, own: int) -> Tensor:
        if len(gram_KK) == 1 or not gram_KK.any():
            return torch.ones(len(gram_KK), dtype=gram_KK.dtype)
        weights_K: Tensor = self.weighting(gram_KK).detach()
        return weights_K * len(gram_KK) if self.averages else weights_K


class NonNegative:
    """TorchJD's projector on the dual cone by scipy instead of quadprog: `min_v v'Gv, v >= u` for each u."""

    def __call__(self, u: Tensor, gram_KK: Tensor) -> Tensor:
        gram = gram_KK.numpy()
        rows = [row + dual(gram, gram @ row, 0.0, 1e-6) for row in np.atleast_2d(u.numpy())]
        return torch.from_numpy(np.array(rows)).reshape(u.shape)


class PcGrad(Surgery):
    """Gradient surgery: each task's gradient loses what points against the others', one after another in random order.

    `g_i <- g_i - (<g_i, g_j> / |g_j|^2) g_j` wherever `<g_i, g_j> < 0`; their sum is the update.
    Paper: Yu et al., "Gradient Surgery for Multi-Task Learning", 2020. Per task, on shared parameters; by TorchJD.
    """

    averages = False

    def make(self, aggregation: Any) -> Any:
        return aggregation.PCGradWeighting()


class CaGrad(Surgery):
    """Conflict-averse gradient: the best for the worst-off task within `c` times the mean gradient's length around it.

    Paper: Liu et al., "Conflict-Averse Gradient Descent", 2021 (c from 0.2 to 0.8). By TorchJD, which uses cvxpy.
    """

    def __init__(self, context: PolicyContext, *, c: float = 0.5) -> None:
        if c < 0:
            raise UserError(f"recipe: policy.c: 0 or more is needed, found {c}")
        self.c = c
        super().__init__(context)

    def make(self, aggregation: Any) -> Any:
        return aggregation.CAGradWeighting(c=self.c)


class Mgda(Surgery):
    """Multiple-gradient descent: the shortest vector in the convex hull of the tasks' gradients.

    Paper: Sener & Koltun, "Multi-Task Learning as Multi-Objective Optimization", 2018. By TorchJD.
    """

    def make(self, aggregation: Any) -> Any:
        return aggregation.MGDAWeighting()


class UpGrad(Surgery):
    """Each task's gradient is projected to where no task gets worse; the mean of the projections.

    Paper: Quinton & Rey, "Jacobian Descent for Multi-Objective Optimization", 2024. By TorchJD, with scipy's solver.
    """

    def make(self, aggregation: Any) -> Any:
        return aggregation.UPGradWeighting(projector=NonNegative())


class DualProj(Surgery):
    """The mean gradient, projected to where no task gets worse.

    What `gem` does with every task of the step as a constraint. By TorchJD, with scipy's solver.
    """

    def make(self, aggregation: Any) -> Any:
        return aggregation.DualProjWeighting(projector=NonNegative())


class AlignedMtl(Surgery):
    """Gradients made orthogonal and of equal length, then averaged.

    Paper: Senushkin et al., "Independent Component Alignment for Multi-Task Learning", 2023. By TorchJD.
    """

    def make(self, aggregation: Any) -> Any:
        return aggregation.AlignedMTLWeighting()


class ImtlG(Surgery):
    """Impartial multi-task learning: the update has the same projection on every task's gradient direction.

    Paper: Liu et al., "Towards Impartial Multi-Task Learning", 2021. By TorchJD.
    """

    def make(self, aggregation: Any) -> Any:
        return aggregation.IMTLGWeighting()
