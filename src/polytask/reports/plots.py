"""The plots of a report. Knows numbers and names, not runs, tasks or files.

Every function returns one `<svg>` element; `figures.py` tells what a page can rely on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from polytask.reports.figures import (
    BLUE,
    DASHED,
    DEEP,
    DOTTED,
    GREEN,
    INK,
    ORANGE,
    PAGE,
    PURPLE,
    new_figure,
    render,
    shorten,
    style,
)

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Points = Sequence[tuple[int, float]]

MAX_POINTS = 600


def _thinned(points: Points) -> tuple[Floats, Floats]:
    """At most MAX_POINTS points: means of neighbouring ones. NaN and infinite values are dropped."""
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(x) <= MAX_POINTS:
        return x, y
    starts = np.linspace(0, len(x), MAX_POINTS + 1).astype(int)[:-1]
    sizes = np.diff([*starts, len(x)])
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes


def _smoothed(values: Floats) -> Floats:
    """The exponential moving average over about a twentieth of the curve, with bias correction."""
    keep = 1 - 1 / max(1.0, len(values) / 20)
    total, weight, means = 0.0, 0.0, []
    for value in values:
        total, weight = keep * total + value, keep * weight + 1
        means.append(total / weight)
    return np.array(means)


def _finish_curve(figure: Figure, axes: Axes, name: str, title: str, best: int | None = None) -> str:
    if best is not None:
        axes.axvline(best, color=INK, linewidth=0.9, linestyle=DASHED, label=f"best model (step {best:,})")
    axes.set(title=title, xlabel="step", xmargin=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if len(axes.get_legend_handles_labels()[0]) > 1:
        figure.legend(loc="outside lower left", ncols=2, handlelength=1.6, columnspacing=1.2)
    return render(figure, name, title)


def loss_curve(name: str, title: str, train: Points, dev: Points, best: int | None = None) -> str:
    """Training loss (faint: raw; strong: smoothed) and dev loss over the steps."""
    with style(name):
        figure, axes = new_figure()
        x, y = _thinned(train)
        axes.plot(x, y, color=BLUE, alpha=0.3, linewidth=0.8)
        axes.plot(x, _smoothed(y), color=BLUE, label="training, smoothed (faint: as it was)")
        if dev:
            axes.plot(*_thinned(dev), color=ORANGE, marker="o", markersize=4, label="dev")
        return _finish_curve(figure, axes, name, title, best)


def metric_curve(
    name: str,
    title: str,
    points: Sequence[tuple[int, float, float, float]],
    best: int | None = None,
    baseline: float | None = None,
) -> str:
    """(step, value, low, high) of a dev metric, the interval as a band."""
    with style(name):
        figure, axes = new_figure()
        steps, values, low, high = np.array(points, np.float64).T
        axes.plot(steps, values, color=GREEN, marker="o", markersize=4, label="dev")
        axes.fill_between(steps, low, high, color=GREEN, alpha=0.18, linewidth=0, label="95 % interval")
        if baseline is not None and low.min() - baseline < 1.5 * np.ptp(
            [low, high]
        ):  # a far one would flatten the curve
            axes.axhline(baseline, color=ORANGE, linewidth=1.4, linestyle=DOTTED, label="guessing")
        return _finish_curve(figure, axes, name, title, best)


def small_curve(name: str, title: str, points: Points) -> str:
    """One plain curve over the steps."""
    with style(name):
        figure, axes = new_figure(5.2, 2.1)
        axes.plot(*_thinned(points), color=PURPLE, linewidth=1.2)
        return _finish_curve(figure, axes, name, title)


def rate_curves(name: str, title: str, rates: Mapping[str, Points]) -> str:
    """One curve for each part that learns; parts with the same rates share a curve."""
    together: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for part, points in rates.items():
        together.setdefault(tuple(points), []).append(part)
    with style(name):
        figure, axes = new_figure(5.2, 2.4 if len(together) > 1 else 2.1)
        lines = (PURPLE, "-"), (BLUE, DASHED), (ORANGE, DOTTED), (GREEN, "-.")
        for (points, parts), (colour, line) in zip(together.items(), lines, strict=False):
            axes.plot(*_thinned(points), color=colour, linestyle=line, linewidth=1.4, label=", ".join(parts) or None)
        if len(together) == 1 and any(rates):
            title = f"{title}: {', '.join(rates)}"
        return _finish_curve(figure, axes, name, title)


TICKS = {"guessing": ORANGE, "step 0": INK}


def score_overview(
    name: str, title: str, rows: Sequence[tuple[str, Mapping[str, tuple[float, float, float]], Mapping[str, float]]]
) -> str:
    """For each (label, {split: (value, low, high)}, {reference: value}): dots with intervals, references as ticks."""
    with style(name):
        figure, axes = new_figure(5.6, 1.1 + 0.45 * len(rows))
        splits = sorted({split for _, scores, _ in rows for split in scores})
        for at, (split, colour, marker) in enumerate(zip(splits, (BLUE, GREEN, PURPLE), "osD", strict=False)):
            found = [(row, *scores[split]) for row, (_, scores, _) in enumerate(rows) if split in scores]
            row, value, low, high = np.array(found, np.float64).T
            row += 0.14 * (2 * at - len(splits) + 1)
            axes.hlines(row, low, high, color=colour, linewidth=2.2)
            axes.plot(value, row, marker, color=colour, markersize=6, label=f"{split} (95 % interval)")
        for reference, colour in TICKS.items():
            known = [(ticks[reference], row) for row, (_, _, ticks) in enumerate(rows) if reference in ticks]
            if known:
                axes.plot(*np.array(known).T, "|", color=colour, markersize=18, markeredgewidth=2, label=reference)
        axes.set_yticks(range(len(rows)), [shorten(label, 28) for label, _, _ in rows])
        axes.set(ylim=(len(rows) - 0.5, -0.5), title=title)
        axes.grid(False, axis="y")
        figure.legend(loc="outside lower left", ncols=3, handlelength=1.4, columnspacing=1.2)
        return render(figure, name, title)


def confusion_matrix(name: str, title: str, counts: Counts, names: Sequence[str], parts: str = "count share") -> str:
    """Rows: true class; columns: predicted. Colour is the share of the row; cells say `count`, `share` or both."""
    size = len(names)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    labels = [shorten(label, 24) for label in names]
    side = max(3.2, size * (0.6 if size <= 6 else 0.5 if size <= 12 else 0.34) + 0.09 * max(map(len, labels)) + 0.7)
    with style(name):
        figure, axes = new_figure(max(side, 0.082 * len(title)), side)  # a title is wider than two classes
        for row, column in zip(*np.nonzero(counts), strict=True):
            share = float(shares[row, column])
            place = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(place, 1, 1, color=DEEP, alpha=0.06 + 0.94 * share, linewidth=0))
            cell = {"count": f"{counts[row, column]}", "share": f"{100 * share:.0f}%"}
            text = "\n".join(cell[part] for part in parts.split())
            ink, points = "white" if share > 0.78 else INK, 9 if size <= 12 else 7.5
            axes.text(column, row, text, ha="center", va="center", fontsize=points, color=ink)
        turn: Any = {"rotation": 90 if size > 6 else 40, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(size), labels, **(turn if max(map(len, labels)) > 4 else {}))
        axes.set_yticks(range(size), labels)
        axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), aspect="equal", xlabel="predicted", ylabel="true")
        axes.grid(False)
        axes.set_xticks(np.arange(size - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(size - 1) + 0.5, minor=True)
        axes.grid(which="minor", linewidth=0.4)
        axes.tick_params(which="both", length=0)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        return render(figure, name, title)


def score_matrix(name: str, title: str, scores: Floats, learned: Sequence[str], tasks: Sequence[str]) -> str:
    """Rows: before the first stage and after each one; columns: tasks. Colour is the score, framed where learned."""
    rows = ["before", *(f"after {shorten(task, 18)}" for task in learned)]
    labels = [shorten(task, 18) for task in tasks]
    width = max(3.6, 0.085 * max(map(len, rows)) + len(tasks) * max(0.75, 0.085 * max(map(len, labels))) + 0.6)
    with style(name):
        figure, axes = new_figure(width, 1.1 + 0.42 * len(rows))
        for (row, column), score in np.ndenumerate(scores):
            strength = float(np.clip(np.nan_to_num(score), 0, 1))
            place = (column - 0.5, row - 0.5)
            # Never so strong that text on it could not be read, in light and dark mode.
            axes.add_patch(Rectangle(place, 1, 1, color=DEEP, alpha=0.04 + 0.56 * strength, linewidth=0))
            axes.text(column, row, f"{score:.3f}", ha="center", va="center", fontsize=10, color=INK)
        for row, task in enumerate(learned, 1):
            if task in tasks:
                place = (tasks.index(task) - 0.46, row - 0.46)
                axes.add_patch(Rectangle(place, 0.92, 0.92, fill=False, edgecolor=ORANGE, linewidth=2))
        axes.set_xlabel("framed: the task just learned", loc="left", fontsize=9)
        _label_matrix(axes, rows, labels)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        return render(figure, name, title)


def signed_matrix(
    name: str,
    title: str,
    cells: Sequence[Sequence[tuple[float, str] | None]],
    rows: Sequence[str],
    columns: Sequence[str],
) -> str:
    """Cells of (value, text): blue above 0, orange below, the stronger the further from it; None: no cell.

    A column that is empty in name stays empty, as a gap between the others.
    """
    largest = max((abs(cell[0]) for row in cells for cell in row if cell is not None), default=0.0)
    largest = max(largest, 0.2)  # values near 0 must look like 0
    widest = max((len(line) for row in cells for cell in row if cell for line in cell[1].split("\n")), default=4)
    tall = max((cell[1].count("\n") + 1 for row in cells for cell in row if cell), default=1)
    heads, labels = [shorten(column, 18) if column else "" for column in columns], [shorten(row, 30) for row in rows]
    side = max(0.4, 0.085 * widest)
    turned = max(map(len, heads), default=0) * 0.09 > side
    width = 0.3 + 0.085 * max(map(len, labels), default=0) + side * len(columns)
    height = 0.5 + (0.065 * max(map(len, heads), default=0) if turned else 0.25) + (0.14 + 0.16 * tall) * len(rows)
    with style(name):
        figure, axes = new_figure(max(width, 0.082 * len(title)), height)
        for row, column in np.ndindex(len(rows), len(columns)):
            cell = cells[row][column]
            if cell is not None:
                strength, colour = abs(cell[0]) / largest, DEEP if cell[0] >= 0 else ORANGE
                place = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(place, 1, 1, color=colour, alpha=0.04 + 0.76 * strength, linewidth=0))
                ink = "white" if strength > 0.8 and cell[0] >= 0 else INK
                axes.text(column, row, cell[1], ha="center", va="center", fontsize=9, color=ink, linespacing=1.3)
        turn: Any = {"rotation": 50, "ha": "left", "rotation_mode": "anchor"}
        _label_matrix(axes, labels, heads, **(turn if turned else {}))
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        return render(figure, name, title)


def _label_matrix(axes: Axes, rows: Sequence[str], columns: Sequence[str], **turn: Any) -> None:
    """Names the rows on the left and the columns above, and hides ticks, grid and frame."""
    axes.set_xticks(range(len(columns)), columns, **turn)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def cosine_curve(
    name: str, title: str, points: Points, mean: Sequence[tuple[float, float, float, float]], reach: float
) -> str:
    """(step, cosine) of each probe as dots, and a moving mean (step, mean, low, high) with its interval as a band.

    The page says which is which: there may be many of these.
    """
    with style(name):
        figure, axes = new_figure(5.2, 2.2)
        axes.axhline(0, color=INK, linewidth=0.9)
        axes.plot(*_thinned(points), "o", color=BLUE, alpha=0.5, markersize=4, markeredgewidth=0)
        if mean:
            steps, values, low, high = np.array(mean, np.float64).T
            axes.plot(steps, values, color=PURPLE)
            axes.fill_between(steps, low, high, color=PURPLE, alpha=0.22, linewidth=0)
        axes.set(ylim=(-reach, reach), ylabel="cosine")
        return _finish_curve(figure, axes, name, title)


def score_scatter(name: str, title: str, gold: Sequence[float], predicted: Sequence[float]) -> str:
    """True against predicted scores: dots, or six-sided bins where there are too many dots."""
    with style(name):
        figure, axes = new_figure(4.6, 4.2)
        if len(gold) <= MAX_POINTS:
            axes.plot(gold, predicted, "o", color=BLUE, alpha=0.45, markersize=4.5, markeredgewidth=0)
        else:
            bins = axes.hexbin(gold, predicted, gridsize=28, mincnt=1, linewidths=0)
            strength = np.log1p(np.asarray(bins.get_array(), np.float64))
            bins.set_array(None)
            bins.set_facecolor([(*to_rgb(BLUE), 0.12 + 0.85 * s / strength.max()) for s in strength])
        ends = [min(*gold, *predicted), max(*gold, *predicted)]
        axes.plot(ends, ends, color=INK, linewidth=0.9, linestyle=DASHED)
        axes.set(title=title, xlabel="true score (on the dashed line: no error)", ylabel="predicted score")
        return render(figure, name, title)


def bars(name: str, title: str, labels: Sequence[str], counts: Sequence[float]) -> str:
    """One bar for each label, with its count."""
    with style(name):
        figure, axes = new_figure(5.2, 0.9 + 0.26 * len(labels))
        drawn = axes.barh(range(len(labels)), counts, color=BLUE, alpha=0.75, height=0.7)
        axes.bar_label(drawn, [f"{count:,.0f}" for count in counts], padding=3, fontsize=9, color=INK)
        axes.set_yticks(range(len(labels)), [shorten(label, 26) for label in labels])
        axes.set(ylim=(len(labels) - 0.4, -0.6), xmargin=0.14, title=title)
        axes.grid(False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        return render(figure, name, title)


def histogram(name: str, title: str, edges: Sequence[float], counts: Sequence[float], xlabel: str) -> str:
    """Counts between edges (one edge more than counts)."""
    with style(name):
        figure, axes = new_figure(5.2, 2.3)
        axes.bar(
            edges[:-1], counts, np.diff(edges), align="edge", color=BLUE, alpha=0.75, edgecolor=PAGE, linewidth=0.8
        )
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(False, axis="x")
        axes.set(title=title, xlabel=xlabel, ylabel="rows")
        return render(figure, name, title)
