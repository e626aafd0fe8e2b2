"""The gaps that a planned study could confirm, and the number of seeds that usual gaps need."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polytask.evaluation.comparison.power import DISAGREEMENT, SEED_DEVIATION, Outlook, assumed
from polytask.evaluation.comparison.records import MEAN, Comparison
from polytask.studies.cells import Plan
from polytask.studies.results import finished_runs, verdict_of
from polytask.studies.sentences import in_points
from polytask.studies.study import Study

GAPS = (1, 2, 5)
"""In points."""


@dataclass(frozen=True)
class StudyOutlook:
    """The gaps that a planned study could confirm, and the noise they are based on."""

    seeds: int
    views: tuple[Outlook, ...]
    source: str
    """How the noise was measured or assumed, in words."""

    def lines(self) -> list[str]:
        """Returns the outlook as lines for the console."""
        lines = [f"Noise: {self.source}."]
        for view in self.views:
            gap = view.gap(self.seeds)
            where = "the mean of the tasks" if view.view == MEAN else f"{view.view} ({view.examples:,} dev examples)"
            could = "can confirm no gap" if gap is None or gap > 1 else f"confirm gaps from about {_points(gap)} points"
            noise = f"standard deviation of differences over seeds: {_points(view.seed_deviation)} points"
            lines.append(f"  {where}: {_seeds(self.seeds)} {could}; {self._needs(view)} ({noise})")
        lines.append("(Confirm: claim a true gap of that size with 80 % probability.)")
        return lines

    def _needs(self, view: Outlook) -> str:
        """Says what gaps of a few sizes need: a number of seeds, or more dev examples if no number would do."""
        seeds = {gap: view.seeds_for(gap / 100) for gap in GAPS}
        if not any(seeds.values()):
            return f"gaps of {', '.join(map(str, GAPS[:-1]))} and {GAPS[-1]} points need more dev examples"
        needs = [f"{in_points(gap)}: {f'{n} seeds' if n else 'more dev examples'}" for gap, n in seeds.items()]
        return f"needed for {', '.join(needs)}"


def outlook(study: Study, plan: Plan) -> StudyOutlook:
    """Uses the noise of the study's finished runs if two variants have two common seeds, else default noise."""
    runs = finished_runs(plan.cells)
    others = max(len(study.recipes) - 1, 1)
    known = [c for c in verdict_of(runs, study.reference).comparisons if c.seed_noise_known] if runs else []
    if known:
        views = tuple(dict.fromkeys(c.task for c in known))
        measured = tuple(_measured([c for c in known if c.task == view], others, len(views)) for view in views)
        return StudyOutlook(len(study.seeds), measured, f"measured in {len(runs)} finished runs of this study")
    examples = plan.dev_examples[study.reference]
    sizes = {task: examples[task] for task in study.tasks}
    source = (
        "assumed, because no two variants have two finished runs each: scores have a standard deviation of "
        f"{_points(SEED_DEVIATION)} point over seeds, and two variants predict different labels for "
        f"{100 * DISAGREEMENT:.0f} % of the dev examples"
    )
    averaged = list(sizes) if len(sizes) > 1 else []
    return StudyOutlook(len(study.seeds), tuple(assumed(sizes, averaged, MEAN, others)), source)


def _measured(comparisons: Sequence[Comparison], variants: int, views: int) -> Outlook:
    """Returns the outlook on a view with the root mean square of its comparisons' noise."""
    deviations = [c.seed_deviation for c in comparisons if c.seed_deviation is not None]
    deviation, error = (
        float(np.sqrt(np.mean(np.square(values)))) for values in (deviations, [c.example_error for c in comparisons])
    )
    return Outlook(comparisons[0].task, deviation, error, comparisons[0].examples, variants, views)


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _points(value: float) -> str:
    return f"{100 * value:.1f}"
