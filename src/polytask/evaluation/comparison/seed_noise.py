"""Seed noise with the help of the whole study: what a comparison may borrow from the others. Knows variances only.

With few seeds a comparison's own variance over seeds has few degrees of freedom, and the correction for many
comparisons then asks for the far tail of a t distribution (t = 255 for two seeds and 20 comparisons). The other
comparisons of the study say how large such variances usually are. A comparison therefore has two ways to a claim, and
p is the smallest p at which one of them is open. With G variants compared in W views (tasks, and their mean) and
d = S - 1:

    own:     |difference| >= half width at 0.6 p, from its own variance s^2 and t_d
    shared:  |difference| >= half width at 0.5 p, from max(s^2, study's mean of s^2 in this view) and t_f
             |difference| >= half width at 0.5 max(p, min(G p, 5 % / W)), from the same variance and t_d

f = d + min(d0, 3 d, (G - 1) d), where d0 is the prior's degrees of freedom, estimated from the scatter of all log s^2
as in limma (Smyth 2004): the more the variances of the study differ, the less is borrowed. The last line makes it
robust. A variant whose runs scatter more than the others' can show a small s^2 by chance; the prior then understates
its noise, so the difference must also pass a test with t_d that needs no prior, corrected for the variant's own views
only. Taking the study's mean where s^2 is smaller does the same for a reference that scatters: all comparisons share
its runs, so all their variances are small at once.

The shares 0.6 and 0.5 keep the false claims of both ways together at most 5 %. In the studies of six variants and three
tasks of benchmarks/2026-11-16-verdict-simulation.md at most 3.5 % made a false claim; pooled variances made one in up
to 40 %, variances moderated as in limma in up to 28 %, also where outliers keep their own variance (the idea of the
robust prior of Phipson et al. 2016: with so few variances an unstable recipe is seldom an outlier). With fewer than
three variants to compare there is nothing to borrow, and the own way has the whole p.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from polytask.evaluation.comparison.statistics import Floats, Noise, p_where

LEVEL = 0.05
FEWEST = 3
"""Variants to compare, besides the reference, before anything is borrowed."""
OWN_SHARE, SHARED_SHARE = 0.6, 0.5
MOST_BORROWED = 3
"""Degrees of freedom that can be borrowed, in units of a comparison's own."""


@dataclass(frozen=True)
class SharedNoise:
    """The noise of one difference, with what the other comparisons of the study say about seed noise."""

    own: Noise
    usual: float
    """The mean, over the study's comparisons in this view, of the variance over seeds of one run's difference."""
    prior_degrees: float
    variants: int
    """Compared with the reference: G."""
    views: int

    def half_width(self, p: float) -> float:
        """The smallest difference that is claimed at p."""
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
        """As if so many runs had been made, each as noisy as these."""
        return replace(self, own=self.own.with_seeds(seeds))


AnyNoise = Noise | SharedNoise


def shared(noises: Sequence[Sequence[Noise]]) -> list[list[AnyNoise]]:
    """For each variant and view the noise of its difference, with what the study's other comparisons say.

    Comparisons with one seed or without common seeds stay as they are and tell the others nothing.
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
    """d0 of the scaled inverse chi-square prior, by the moments of log s^2 around each view's mean (Smyth 2004).

    Infinite where the variances scatter no more than samples of one variance do. Differences without any variance (two
    variants with the same predictions) say nothing about the others and are left out.
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
    """Newton's method on 1 / trigamma, which is convex and nearly linear (Smyth 2004, appendix)."""
    found = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, found))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, found))
        found += step
        if abs(step) < 1e-10 * found:
            break
    return found
