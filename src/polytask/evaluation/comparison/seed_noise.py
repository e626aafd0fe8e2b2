"""Estimates seed noise with the help of the study's other comparisons. Knows variances only.

With few seeds a comparison's own variance over seeds has few degrees of freedom, and the correction for many
comparisons then needs the far tail of a t distribution (t = 255 for two seeds and 20 comparisons). The other
comparisons of the study show how large such variances usually are. A comparison can therefore be claimed by one of two
rules, and p is the smallest p at which one of them holds. With G variants compared in W views (tasks, and their mean)
and d = S - 1:

    own:     |difference| >= half width at 0.6 p, from its own variance s^2 and t_d
    shared:  |difference| >= half width at 0.5 p, from max(s^2, study's mean of s^2 in this view) and t_f
             |difference| >= half width at 0.5 max(p, min(G p, 5 % / W)), from the same variance and t_d

f = d + min(d0, 3 d, (G - 1) d), where d0 is the prior's degrees of freedom, estimated from the variance of all log s^2
as in limma (Smyth 2004): the more the variances of the study differ, the less is borrowed. The last line makes the rule
robust. A variant whose runs vary more than the others' can have a small s^2 by chance; the prior then understates its
noise, so the difference must also pass a test with t_d that needs no prior, corrected for the variant's own views only.
Taking the study's mean where s^2 is smaller does the same for an unstable reference: all comparisons share its runs, so
all their variances are small at once.

The shares 0.6 and 0.5 keep the false claims of both rules together at most 5 %. In the studies of six variants and
three tasks of benchmarks/2026-11-16-verdict-simulation.md at most 3.5 % made a false claim; pooled variances made one
in up to 40 %, variances moderated as in limma in up to 28 %, also where outliers keep their own variance (the idea of
the robust prior of Phipson et al. 2016: with so few variances an unstable recipe is seldom an outlier). With fewer than
three variants to compare there is nothing to borrow, and the first rule has the whole p.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from polytask.evaluation.comparison.statistics import Floats, Noise, p_where

LEVEL = 0.05
FEWEST = 3
"""The fewest variants, besides the reference, with which variances are borrowed."""
OWN_SHARE, SHARED_SHARE = 0.6, 0.5
MOST_BORROWED = 3
"""The most degrees of freedom that can be borrowed, as a multiple of a comparison's own."""


@dataclass(frozen=True)
class SharedNoise:
    """The noise of one difference, estimated with the seed noise of the study's other comparisons."""

    own: Noise
    usual: float
    """The mean, over the study's comparisons in this view, of the variance over seeds of one run's difference."""
    prior_degrees: float
    variants: int
    """The number of variants compared with the reference (G)."""
    views: int

    def half_width(self, p: float) -> float:
        """Returns the smallest difference that is claimed at p."""
        return min(self.own.half_width(OWN_SHARE * p), self._shared_half_width(p))

    def _shared_half_width(self, p: float) -> float:
        ((variance, degrees),) = self.own.seeds
        variance = max(variance, self.usual / (degrees + 1))
        borrowed = min(self.prior_degrees, min(MOST_BORROWED, self.variants - 1) * degrees)
        moderated = replace(self.own, seeds=((variance, degrees + borrowed),))
        alone = replace(self.own, seeds=((variance, degrees),))
        for_views = max(p, min(self.variants * p, LEVEL / self.views))
        return max(moderated.half_width(SHARED_SHARE * p), alone.half_width(SHARED_SHARE * for_views))

    def p_value(self, difference: float) -> float:
        return p_where(self.half_width, difference)

    def with_seeds(self, seeds: int) -> "SharedNoise":
        """Returns the noise of so many runs, each as noisy as these."""
        return replace(self, own=self.own.with_seeds(seeds))


AnyNoise = Noise | SharedNoise


def shared(noises: Sequence[Sequence[Noise]]) -> list[list[AnyNoise]]:
    """Returns, for each variant and view, the noise of its difference with that of the study's other comparisons.

    Comparisons with one seed or without common seeds stay as they are and are not used for the others.
    """
    paired = [row for row in noises if len(row[0].seeds) == 1]
    if len(paired) < FEWEST:
        return [list(row) for row in noises]
    variances_GW = np.array([[one.seeds[0][0] * (one.seeds[0][1] + 1) for one in row] for row in paired])
    degrees_G = np.array([row[0].seeds[0][1] for row in paired])
    usual_W, prior = variances_GW.mean(0), prior_degrees(variances_GW, degrees_G)
    return [
        [SharedNoise(one, float(usual), prior, len(paired), len(row)) for one, usual in zip(row, usual_W, strict=True)]
        if len(row[0].seeds) == 1
        else list(row)
        for row in noises
    ]


def prior_degrees(variances_GW: Floats, degrees_G: Floats) -> float:
    """Estimates d0 of the scaled inverse chi-square prior from the moments of log s^2 in each view (Smyth 2004).

    It is infinite if the variances differ no more than samples of one variance do. Differences without any variance
    (two variants with the same predictions) are left out.
    """
    excess = []
    for variances_G in variances_GW.T:
        some = variances_G > 0
        if some.sum() > 1:
            half = degrees_G[some] / 2
            logs = np.log(variances_G[some]) - special.digamma(half) + np.log(half)
            excess.append(logs.var(ddof=1) - special.polygamma(1, half).mean())
    if not excess or np.mean(excess) <= 0:
        return float("inf")
    return 2 * trigamma_inverse(float(np.mean(excess)))


def trigamma_inverse(value: float) -> float:
    """Inverts trigamma with Newton's method on 1 / trigamma, which is convex and nearly linear (Smyth 2004)."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x
