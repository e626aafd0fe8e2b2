"""The plots of a study as inline SVG, in the style of reports/figures.py. Knows names and numbers, not files.

Scores are fractions and are styles in points (hundredths). NaN and infinite values are left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from polytask.reports.figures import (
    BLUE,
    DASHED,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PAGE,
    PURPLE,
    new_figure,
    render,
    shorten,
    style,
)
from polytask.studies.table import is_finite

Floats = NDArray[np.float64]
Curve = Sequence[tuple[int, float]]

# The colours of a run's report come first. A variant also has a marker and a line style, not only a colour.
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#c4503f", "#8f8a1f", "#4aa3b8", "#8d6bd1", "#8a6a45", "#6f8f3a", "#7c8894")
MARKERS = "osD^vPX<>"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.5)))
CLAIMS = {
    "better": (GREEN, ">", 1.0),
    "worse": (ORANGE, "<", 1.0),
    "same": (BLUE, "s", 1.0),
    "undecided": (INK, "o", 0.6),
}
NAME, LINE = 20, 13.0  # characters of a variant's name, and its height in typographic points
MAX_EVALUATIONS = 150


@dataclass(frozen=True)
class Look:
    """The style of a variant in every plot of a page."""

    colour: str
    marker: str
    dash: Any


def looks(variants: Iterable[str], reference: str) -> dict[str, Look]:
    """Gives the reference the colour of the text, and every other variant its own colour."""
    others = [variant for variant in variants if variant != reference]
    styles = {reference: Look(INK, "o", "-")}
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
    with style(name):
        figure, axes = new_figure(5.4, 0.95 + 0.3 * len(rows))
        for row, c in enumerate(rows):
            colour, marker, alpha = CLAIMS[c["claim"]]
            if _finite(c.get("detectable")):
                size = 100 * c["detectable"]
                axes.barh(row, 2 * size, left=-size, height=0.66, color=GRID, alpha=0.45, linewidth=0)
            axes.hlines(row, 100 * c["low"], 100 * c["high"], color=colour, linewidth=2.2, alpha=alpha)
            axes.plot(100 * c["difference"], row, marker, color=colour, markersize=6.5, markeredgewidth=0)
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(range(len(rows)), [shorten(c["variant"], 24) for c in rows])
        edge = _forest_edge(rows)
        axes.set(xlim=(-edge, edge), ylim=(len(rows) - 0.5, -0.5), xlabel="points")
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        return _titled(figure, name, title)


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
    with style(name):
        figure, axes = new_figure(5.4, _height(len(known)))
        for variant, (cost, score, low, high) in known.items():
            look = styles[variant]
            axes.vlines(cost, 100 * low, 100 * high, color=look.colour, linewidth=1.2, alpha=0.55)
            face = look.colour if variant in front else PAGE
            shape: Any = {"marker": look.marker, "color": look.colour, "markerfacecolor": face, "markersize": 7}
            axes.plot(cost, 100 * score, linestyle="none", zorder=3, **shape)
        if len(front) > 1:
            x, y = np.array([known[variant][:2] for variant in front], np.float64).T
            axes.step(x, 100 * y, where="post", color=INK, linewidth=0.9, linestyle=DASHED, alpha=0.7)
        _cost_axis(axes, [point[0] for point in known.values()])
        axes.set(xlabel=xlabel, ylabel="points")
        _names(figure, axes, {variant: point[:2] for variant, point in known.items()}, styles)
        return _titled(figure, name, title)


def overlay(name: str, title: str, curves: Mapping[str, Sequence[Curve]], styles: Mapping[str, Look]) -> str:
    """Draws each variant's curves: every seed faint, and the mean over the steps that all seeds have bold."""
    with style(name):
        figure, axes = new_figure(5.4, max(3.1, _height(len(curves))))
        ends = dict[str, tuple[float, float]]()
        for variant, seeds in curves.items():
            look, known = styles[variant], [_known(curve) for curve in seeds]
            known = [curve for curve in known if curve]
            for curve in known if len(known) > 1 else []:
                axes.plot(*_xy(curve), color=look.colour, linewidth=0.8, alpha=0.4)
            mean = _mean(known)
            if mean:
                line: Any = {"markevery": [-1], "marker": look.marker, "markersize": 5, "linestyle": look.dash}
                axes.plot(*_xy(mean), color=look.colour, linewidth=2, **line)
                step, value = next(reversed(mean.items()))
                ends[variant] = (step, value)
        axes.set(xlabel="step", ylabel="points")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        _names(figure, axes, ends, styles)
        return _titled(figure, name, title)


# --- the parts of a plot ----------------------------------------------------------------------------------------------


def _titled(figure: Figure, name: str, title: str) -> str:
    """Puts the title over the whole figure, because long names on the right make the plot itself narrow."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return render(figure, name, title)


def _finite(*values: Any) -> bool:
    return all(map(is_finite, values))


def _height(names: int) -> float:
    """Returns the figure's height in inches, with room for the names on the right."""
    return max(2.9, 1.0 + names * LINE / 72)


def _forest_edge(rows: Sequence[Mapping[str, Any]]) -> float:
    """Returns an axis limit that contains the intervals, and the bands if the intervals stay readable."""
    interval = max((abs(100 * c[end]) for c in rows for end in ("low", "high")), default=0.0)
    band = max((100 * c["detectable"] for c in rows if _finite(c.get("detectable"))), default=0.0)
    return max(1.08 * interval, min(1.08 * band, 1.6 * interval)) or 1.0


def _cost_axis(axes: Axes, costs: Sequence[float]) -> None:
    """Uses a logarithmic scale if the costs differ widely, and short numbers: 22M instead of 22000000."""
    if costs and min(costs) > 0 and max(costs) > 15 * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(left=0, right=1.1 * max(costs, default=1.0) or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))


def _short(value: float, _: int | None = None) -> str:
    unit, letter = next(
        (unit, letter) for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0, "")) if value >= unit
    )
    return f"{value / (unit or 1):g}{letter}"


def _names(figure: Figure, axes: Axes, points: Mapping[str, tuple[float, float]], styles: Mapping[str, Look]) -> None:
    """Writes every variant's name to the right of the plot, near its point's height, with a thin line to the point."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    inner_height = float(figure.get_size_inches()[1]) * 72 - 68  # about the height of the axes
    heights = _spread([(100 * y - low) / (high - low) for _, y in points.values()], LINE / inner_height)
    for (variant, (x, y)), height in zip(points.items(), heights, strict=True):
        look = styles[variant]
        mark: Any = {"marker": look.marker, "color": look.colour, "markersize": 5, "transform": axes.transAxes}
        axes.plot(1.045, height, clip_on=False, **mark)
        line = {"arrowstyle": "-", "color": look.colour, "linewidth": 0.6, "alpha": 0.35}
        axes.annotate(
            shorten(variant, NAME),
            (x, 100 * y),
            (1.075, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={**line, "shrinkA": 12, "shrinkB": 4, "relpos": (0, 0.5)},
            annotation_clip=False,
        )


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


def _xy(curve: Mapping[int, float]) -> tuple[Floats, Floats]:
    """Returns steps and points to draw; of very many evaluations only every n-th, counted back from the last."""
    steps, values = np.array(list(curve.items()), np.float64).T
    every = -(-len(steps) // MAX_EVALUATIONS)
    return steps[::-every][::-1], 100 * values[::-every][::-1]
