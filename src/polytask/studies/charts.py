"""The plots of a study as inline SVG, drawn with reports/svg.py. Knows names and numbers, not files.

Scores are fractions and are shown in points (hundredths). NaN and infinite values are left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polytask.reports.svg import (
    BLUE,
    DASHED,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PAGE,
    PURPLE,
    Axis,
    Box,
    Plot,
    Scale,
    label,
    marker,
    path,
    shorten,
)
from polytask.studies.table import is_finite

Floats = NDArray[np.float64]
Curve = Sequence[tuple[int, float]]

# The colours of a run's report come first. A variant also has a marker and a line style, not only a colour.
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#c4503f", "#8f8a1f", "#4aa3b8", "#8d6bd1", "#8a6a45", "#6f8f3a", "#7c8894")
MARKERS = "osD^vPX<>"
DASHES = (None, "5 2", "2 1.5")
CLAIMS = {
    "better": (GREEN, ">", 1.0),
    "worse": (ORANGE, "<", 1.0),
    "same": (BLUE, "s", 1.0),
    "undecided": (INK, "o", 0.6),
}
NAME, LINE = 20, 13.0  # characters of a variant's name, and its height in typographic points
INCH = 72.0
NAMES_WIDTH = 130.0
MAX_EVALUATIONS = 150


@dataclass(frozen=True)
class Look:
    """The style of a variant in every plot of a page."""

    colour: str
    marker: str
    dash: str | None


def looks(variants: Iterable[str], reference: str) -> dict[str, Look]:
    """Gives the reference the colour of the text, and every other variant its own colour."""
    others = [variant for variant in variants if variant != reference]
    styles = {reference: Look(INK, "o", None)}
    for i, variant in enumerate(others):
        dash = DASHES[i // len(COLOURS) % len(DASHES)]
        styles[variant] = Look(COLOURS[i % len(COLOURS)], MARKERS[(i + 1) % len(MARKERS)], dash)
    return styles


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Returns the names on the Pareto front of {name: (cost, score)}, the cheapest first."""

    def beaten(cost: float, score: float) -> bool:
        return any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points.values())

    return sorted((name for name, point in points.items() if not beaten(*point)), key=lambda name: points[name])


def forest(name: str, title: str, comparisons: Sequence[Mapping[str, Any]]) -> str:
    """Draws differences to the reference with intervals, coloured by claim; a band shows undetectable differences."""
    rows = [c for c in comparisons if _finite(c["difference"], c["low"], c["high"])]
    plot = Plot(title, 5.4 * INCH, (0.95 + 0.3 * len(rows)) * INCH)
    for row, c in enumerate(rows):
        if _finite(c.get("detectable")):
            size = 100 * c["detectable"]
            plot.rectangle(-size, size, row - 0.33, row + 0.33, GRID, 0.45)
    plot.moment(0, INK, 1)
    for row, c in enumerate(rows):
        colour, shape, opacity = CLAIMS[c["claim"]]
        plot.line([100 * c["low"], 100 * c["high"]], [row, row], colour, 2.2, opacity=opacity)
        plot.markers([100 * c["difference"]], [row], colour, shape, 7)
    edge = _forest_edge(rows)
    plot.x = Axis("points", limits=(-edge, edge))
    names = [(float(row), shorten(c["variant"], 24)) for row, c in enumerate(rows)]
    plot.y = Axis(limits=(len(rows) - 0.5, -0.5), names=names, grid=False)
    return plot.render(name)


def tradeoff(
    name: str,
    title: str,
    xlabel: str,
    points: Mapping[str, tuple[float, float, float, float]],
    styles: Mapping[str, Look],
    greater_is_better: bool = True,
) -> str:
    """Draws {variant: (cost, score, low, high)}. Full markers and the stepped line are the Pareto front."""
    known = {variant: point for variant, point in points.items() if _finite(*point)}
    sign = 1 if greater_is_better else -1
    front = pareto({variant: (cost, sign * score) for variant, (cost, score, *_) in known.items()})
    plot = Plot(title, 5.4 * INCH, _height(len(known)), right=NAMES_WIDTH)
    plot.x, plot.y = _cost_axis(xlabel, [point[0] for point in known.values()]), Axis("points")
    for variant, (cost, _, low, high) in known.items():
        plot.line([cost, cost], [100 * low, 100 * high], styles[variant].colour, 1.2, opacity=0.55)
    corners = [(known[v][0], 100 * known[v][1]) for v in front]
    steps = [corner for (_, y), (x, after) in pairwise(corners) for corner in ((x, y), (x, after))]
    if steps:
        steps = corners[:1] + steps
        plot.line([x for x, _ in steps], [y for _, y in steps], INK, 0.9, DASHED, 0.7)
    for variant, (cost, score, *_) in known.items():
        look = styles[variant]
        plot.markers([cost], [100 * score], look.colour, look.marker, 7, face=look.colour if variant in front else PAGE)
    _names(plot, {variant: point[:2] for variant, point in known.items()}, styles)
    return plot.render(name)


def overlay(name: str, title: str, curves: Mapping[str, Sequence[Curve]], styles: Mapping[str, Look]) -> str:
    """Draws each variant's curves: every seed faint, and the mean over the steps that all seeds have bold."""
    plot = Plot(title, 5.4 * INCH, max(3.1 * INCH, _height(len(curves))), right=NAMES_WIDTH)
    plot.x, plot.y = Axis("step", most_ticks=5, integer=True), Axis("points")
    ends = dict[str, tuple[float, float]]()
    for variant, seeds in curves.items():
        look, known = styles[variant], [_known(curve) for curve in seeds]
        known = [curve for curve in known if curve]
        for curve in known if len(known) > 1 else []:
            plot.line(*_xy(curve), look.colour, 0.8, opacity=0.4)
        mean = _mean(known)
        if mean:
            plot.line(*_xy(mean), look.colour, 2, look.dash)
            step, value = next(reversed(mean.items()))
            plot.markers([step], [100 * value], look.colour, look.marker, 5)
            ends[variant] = (step, value)
    _names(plot, ends, styles)
    return plot.render(name)


# --- the parts of a plot ----------------------------------------------------------------------------------------------


def _finite(*values: Any) -> bool:
    return all(map(is_finite, values))


def _height(names: int) -> float:
    """Returns the plot's height, with room for the names on the right."""
    return max(2.9 * INCH, INCH + names * LINE)


def _forest_edge(rows: Sequence[Mapping[str, Any]]) -> float:
    """Returns an axis limit that contains the intervals, and the bands if the intervals stay readable."""
    interval = max((abs(100 * c[end]) for c in rows for end in ("low", "high")), default=0.0)
    band = max((100 * c["detectable"] for c in rows if _finite(c.get("detectable"))), default=0.0)
    return max(1.08 * interval, min(1.08 * band, 1.6 * interval)) or 1.0


def _cost_axis(name: str, costs: Sequence[float]) -> Axis:
    """Uses a logarithmic scale if the costs differ widely, and short numbers: 22M instead of 22000000."""
    if costs and min(costs) > 0 and max(costs) > 15 * min(costs):
        return Axis(name, log=True, format=_short)
    return Axis(name, limits=(0, 1.1 * max(costs, default=1.0) or 1.0), most_ticks=5, format=_short)


def _short(value: float) -> str:
    unit, letter = next(
        (unit, letter) for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0, "")) if value >= unit
    )
    return f"{value / (unit or 1):g}{letter}"


def _names(plot: Plot, points: Mapping[str, tuple[float, float]], styles: Mapping[str, Look]) -> None:
    """Writes every variant's name to the right of the plot, near its point's height, with a thin line to the point."""
    low, high = plot.y.range()

    def draw(box: Box, x: Scale, y: Scale) -> str:
        _, top, right, bottom = box
        heights = _spread([(100 * value - low) / (high - low) for _, value in points.values()], LINE / (bottom - top))
        parts = []
        for (variant, (step, value)), height in zip(points.items(), heights, strict=True):
            look, at = styles[variant], bottom - height * (bottom - top)
            parts.append(path([(x(step) + 4, y(100 * value)), (right + 5, at)], look.colour, 0.6, opacity=0.35))
            parts.append(marker(right + 11, at, look.marker, 5, look.colour))
            parts.append(label(right + 18, at, shorten(variant, NAME), 9))
        return "".join(parts)

    plot.outside.append(draw)


def _spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Moves heights in [0, 1] so that they keep their order and have at least this gap (if there is room)."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    gap = min(gap, 1 / max(1, len(wanted) - 1))
    heights = list(wanted)
    for rank, i in enumerate(order):
        heights[i] = max(wanted[i], heights[order[rank - 1]] + gap if rank else 0.0)
    for rank, i in reversed(list(enumerate(order))):
        heights[i] = min(heights[i], heights[order[rank + 1]] - gap if rank + 1 < len(order) else 1.0)
    return heights


def _known(curve: Curve) -> dict[int, float]:
    """Returns the finite values as {step: value}, in the order of the steps."""
    return dict(sorted((step, value) for step, value in curve if _finite(step, value)))


def _mean(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    common = [step for step in curves[0] if all(step in curve for curve in curves)] if curves else []
    return {step: float(np.mean([curve[step] for curve in curves])) for step in common}


def _xy(curve: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """Returns steps and points to draw; of very many evaluations only every n-th, counted back from the last."""
    steps, values = np.array(list(curve.items()), np.float64).T
    every = -(-len(steps) // MAX_EVALUATIONS)
    return steps[::-every][::-1].tolist(), (100 * values[::-every][::-1]).tolist()
