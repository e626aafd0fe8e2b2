"""Aligned-MTL: gradients made orthogonal and of equal length."""

import numpy as np

from polytask.policies.base import Floats, StepPolicy


class AlignedMtl(StepPolicy):
    """Aligned-MTL: the gradients are made orthogonal and of equal length, then averaged.

    With the eigenvalues l_1 >= ... >= l_R > 0 of the Gram matrix and its eigenvectors V, the weights are
    `sqrt(l_R) V diag(l)^-1/2 V' (1/K, ..., 1/K)'`: all components get the length of the shortest one.
    Paper: Senushkin et al., "Independent Component Alignment for Multi-Task Learning", 2023.
    """

    capturable = True

    def solve(self, gram_KK: Floats) -> Floats:
        values_K, vectors_KK = np.linalg.eigh(gram_KK)
        kept_K = values_K > values_K.max() * len(values_K) * np.finfo(np.float64).eps
        values_R, vectors_KR = values_K[kept_K], vectors_KK[:, kept_K]
        weights_K: Floats = vectors_KR @ (np.sqrt(values_R.min() / values_R) * vectors_KR.mean(0))
        return weights_K
