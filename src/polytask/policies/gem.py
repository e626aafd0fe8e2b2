"""GEM: no step may increase the loss of a remembered task."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polytask.policies.base import Floats, GradientPolicy, Keep, MemoryPlan, PolicyContext
from polytask.policies.gradients import G, combine_gradients
from polytask.settings import Count, NonNegative


class Gem(GradientPolicy):
    """Gradient episodic memory: the gradient closest to the step's own that makes no remembered task worse.

    g is the step's gradient on shared parameters, g_k that of the memory of each task that is not in the step. If
    `<g, g_k> >= 0` for all k, g is kept. Else `g~ = g + sum_k v_k g_k`, where v solves the dual problem
    `min_v 1/2 v'GG'v + (Gg)'v, v >= margin` (by scipy's non-negative least squares on a Cholesky factor of GG'). A
    margin above 0 pushes the step towards the memories. The problem is solved for gradients of length 1 and the weights
    are scaled back, so that a memory with a small gradient is protected like any other. `ridge` multiplies the diagonal
    of GG' by `1 + ridge`; with 0, only linearly dependent gradients get a ridge, of 1e-9.

    In joint training every task that is not in the step is a memory; in a sequence of tasks, the earlier ones are.
    `size` examples of each task are kept and `batch` of them drawn for each step (left out: as many as the step has).
    Heads and adapters of remembered tasks do not change. Gradients are clipped afterwards.
    Paper: Lopez-Paz & Ranzato, "Gradient Episodic Memory for Continual Learning", 2017 (margin 0.5).
    Differences: the paper's memory is the last examples of each task (`keep: ring`), here by default a uniform sample
    of all of them; its g_k is computed on the whole memory, here on `batch` random examples of it (`batch` equal to
    `size` is the paper's form), so a constraint holds for the examples drawn, not for the whole memory; it solves the
    dual problem with a ridge of 1e-3; and it constrains all parameters, here only shared ones.
    """

    capturable = True

    def __init__(
        self,
        context: PolicyContext,
        *,
        size: Count = 256,
        keep: Keep = "reservoir",
        batch: Count | None = None,
        margin: NonNegative = 0.0,
        ridge: NonNegative = 0.0,
    ) -> None:
        super().__init__(context)
        self.margin, self.ridge = margin, ridge
        self.memory = MemoryPlan(size, keep, batch)

    def combine(self, gram_KK: Tensor, own: int) -> Tensor:
        gram = gram_KK.numpy()
        dots_M = gram[own:, :own].sum(1)
        weights = np.ones(len(gram))
        weights[own:] = 0.0
        if (dots_M < 0).any():
            weights[own:] = solve_dual(gram[own:, own:], dots_M, self.margin, self.ridge)
        return torch.from_numpy(weights)


def project(gradient: G, memories: Sequence[G], *, margin: float = 0.0, ridge: float = 0.0) -> G:
    """Return the closest gradient that makes no remembered task worse, given the gradient of each one's memory.

    A gradient is a tensor of any shape, or a list with one tensor (or None) per parameter.
    """
    return combine_gradients(Gem, [gradient], memories, margin=margin, ridge=ridge)


def solve_dual(gram_MM: Floats, dots_M: Floats, margin: float = 0.0, ridge: float = 0.0) -> Floats:
    """`argmin_v 1/2 v'Pv + q'v, v >= margin`, P the inner products of the memories' gradients, q those with g."""
    lengths_M = np.sqrt(np.diag(gram_MM))
    weights_M = np.full(len(lengths_M), margin)  # a memory without a gradient may have any weight
    nonzero = lengths_M > 0
    lengths = lengths_M[nonzero]
    # In terms of unit gradients with weights |g_k| v_k, so that the ridge has the same effect on each of them.
    units = gram_MM[np.ix_(nonzero, nonzero)] / np.outer(lengths, lengths) + ridge * np.eye(len(lengths))
    # With u = |g_k| (v - margin) this is `min_u |L'u + L^-1 (q + margin P |g|)|^2, u >= 0`.
    shifted = dots_M[nonzero] / lengths + margin * units @ lengths
    size = np.abs(shifted).max(initial=0.0)
    if size == 0:
        return weights_M
    try:
        factor = np.linalg.cholesky(units)
    except np.linalg.LinAlgError:  # dependent gradients, and rounding errors larger than the ridge
        return solve_dual(gram_MM, dots_M, margin, max(10 * ridge, 1e-9))
    from scipy.linalg import solve_triangular  # not for runs without this policy: it takes 0.3 s  # noqa: PLC0415
    from scipy.optimize import nnls  # noqa: PLC0415

    # The right-hand side is divided by its size, because the solver's tolerance is absolute.
    solution = nnls(factor.T, -solve_triangular(factor, shifted / size, lower=True), maxiter=100 * len(factor))[0]
    weights_M[nonzero] += size * solution / lengths
    return weights_M
