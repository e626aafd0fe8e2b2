"""The plots of a report as inline SVG text. Knows numbers and names, not runs, tasks or files.

Every function returns one `<svg>` that is safe to put into a page: it has no ids that clash with another plot's (the
`name` argument is their prefix), loads nothing, escapes all text, and is the same for the same numbers.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from polytask.reports.svg import (
    BLUE,
    DASHED,
    DEEP,
    DOTTED,
    GREEN,
    INK,
    LEGEND,
    ORANGE,
    PAGE,
    PURPLE,
    TEXT,
    Axis,
    Plot,
    shorten,
    text_width,
)

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Points = Sequence[tuple[int, float]]

MAX_POINTS = 600
INCH = 72.0


def _thinned(points: Points) -> tuple[list[float], list[float]]:
    """At most MAX_POINTS points: means of neighbouring ones. NaN and infinite values are dropped."""
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if len(x) > MAX_POINTS:
        starts = np.linspace(0, len(x), MAX_POINTS + 1).astype(int)[:-1]
        sizes = np.diff([*starts, len(x)])
        x, y = np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes
    return x.tolist(), y.tolist()


def _smoothed(values: Sequence[float]) -> list[float]:
    """The exponential moving average over about a twentieth of the curve, with bias correction."""
    keep = 1 - 1 / max(1.0, len(values) / 20)
    total, weight, means = 0.0, 0.0, []
    for value in values:
        total, weight = keep * total + value, keep * weight + 1
        means.append(total / weight)
    return means


def _curve_plot(title: str, height: float = 2.9) -> Plot:
    return Plot(title, height=height * INCH, x=Axis("step", margin=0.02, integer=True))


def _mark_best(plot: Plot, best: int | None) -> None:
    if best is not None:
        plot.moment(best, INK, dash=DASHED, name=f"best model (step {best:,})")


def loss_curve(
    name: str, title: str, train: Points, dev: Points, best: int | None = None, training_rows: Points = ()
) -> str:
    """Training loss (faint: raw; strong: smoothed) and dev loss over the steps.

    `training_rows` are losses that evaluations measured on training rows, without dropout.
    """
    plot = _curve_plot(title)
    x, y = _thinned(train)
    plot.line(x, y, BLUE, 0.8, opacity=0.3)
    plot.line(x, _smoothed(y), BLUE, name="training, smoothed (faint: as it was)")
    if dev:
        plot.line(*_thinned(dev), ORANGE, mark=4, name="dev")
    if training_rows:
        plot.line(*_thinned(training_rows), ORANGE, dash=DASHED, name="evaluated training rows")
    _mark_best(plot, best)
    return plot.render(name)


def metric_curve(
    name: str,
    title: str,
    points: Sequence[tuple[int, float, float, float]],
    best: int | None = None,
    baseline: float | None = None,
    training_rows: Points = (),
) -> str:
    """(step, value, low, high) of a dev metric, the interval as a band; (step, value) of the same on training rows."""
    plot = _curve_plot(title)
    steps, values, low, high = np.array(points, np.float64).T.tolist()
    plot.line(steps, values, GREEN, mark=4, name="dev")
    if training_rows:
        plot.line(*_thinned(training_rows), GREEN, dash=DASHED, name="evaluated training rows")
    plot.band(steps, low, high, GREEN, 0.18, "95 % interval")
    # A baseline far away would flatten the curve.
    if baseline is not None and min(low) - baseline < 1.5 * (max(high) - min(low)):
        plot.level(baseline, ORANGE, 1.4, DOTTED, "guessing")
    _mark_best(plot, best)
    return plot.render(name)


def small_curve(name: str, title: str, points: Points) -> str:
    """One plain curve over the steps."""
    plot = _curve_plot(title, 2.1)
    plot.line(*_thinned(points), PURPLE, 1.2)
    return plot.render(name)


def rate_curves(name: str, title: str, rates: Mapping[str, Points]) -> str:
    """One curve for each part that learns; parts with the same rates share a curve."""
    together: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for part, points in rates.items():
        together.setdefault(tuple(points), []).append(part)
    if len(together) == 1 and any(rates):
        title = f"{title}: {', '.join(rates)}"
    plot = _curve_plot(title, 2.4 if len(together) > 1 else 2.1)
    lines = (PURPLE, None), (BLUE, DASHED), (ORANGE, DOTTED), (GREEN, "6 2 1.5 2")
    for (points, parts), (colour, dash) in zip(together.items(), lines, strict=False):
        plot.line(*_thinned(points), colour, 1.4, dash, name=", ".join(parts))
    return plot.render(name)


TICKS = {"guessing": ORANGE, "step 0": INK}


def score_overview(
    name: str, title: str, rows: Sequence[tuple[str, Mapping[str, tuple[float, float, float]], Mapping[str, float]]]
) -> str:
    """For each (label, {split: (value, low, high)}, {reference: value}): dots with intervals, references as ticks."""
    plot = Plot(title, 5.6 * INCH, (1.1 + 0.45 * len(rows)) * INCH)
    splits = sorted({split for _, scores, _ in rows for split in scores})
    for at, (split, colour, shape) in enumerate(zip(splits, (BLUE, GREEN, PURPLE), "osD", strict=False)):
        found = [(row, *scores[split]) for row, (_, scores, _) in enumerate(rows) if split in scores]
        heights = [row + 0.14 * (2 * at - len(splits) + 1) for row, *_ in found]
        for height, (_, _, low, high) in zip(heights, found, strict=True):
            plot.line([low, high], [height, height], colour, 2.2)
        plot.markers([value for _, value, _, _ in found], heights, colour, shape, name=f"{split} (95 % interval)")
    for reference, colour in TICKS.items():
        known = [(ticks[reference], float(row)) for row, (_, _, ticks) in enumerate(rows) if reference in ticks]
        if known:
            plot.markers([value for value, _ in known], [row for _, row in known], colour, "|", 18, name=reference)
    names = [(float(row), shorten(label, 28)) for row, (label, _, _) in enumerate(rows)]
    plot.y = Axis(limits=(len(rows) - 0.5, -0.5), names=names, grid=False)
    return plot.render(name)


def _cells(rows: int, columns: int) -> tuple[Axis, Axis]:
    """The axes of a matrix, the first row at the top."""
    return Axis(limits=(-0.5, columns - 0.5), grid=False), Axis(limits=(rows - 0.5, -0.5), grid=False)


def _shade(plot: Plot, row: int, column: int, colour: str, opacity: float) -> None:
    plot.rectangle(column - 0.5, column + 0.5, row - 0.5, row + 0.5, colour, opacity)


def _named(labels: Sequence[str]) -> list[tuple[float, str]]:
    return [(float(at), label) for at, label in enumerate(labels)]


def confusion_matrix(
    name: str,
    title: str,
    counts: Counts,
    names: Sequence[str],
    parts: str = "count share",
    totals: Counts | None = None,
) -> str:
    """Rows: true class; columns: predicted. Colour is the share of the row; cells say `count`, `share` or both.

    `totals` are the numbers of examples of each true class, if a class can be counted several times.
    """
    size = len(names)
    shares = counts / np.maximum(counts.sum(1, keepdims=True) if totals is None else totals[:, None], 1)
    labels = [shorten(label, 24) for label in names]
    x, y = _cells(size, size)
    x.names, y.names, x.label, y.label = _named(labels), _named(labels), "predicted", "true"
    x.turn = 0 if max(map(len, labels)) <= 4 else -90 if size > 6 else -40
    side = INCH * max(2.0, size * (0.6 if size <= 6 else 0.5 if size <= 12 else 0.34))
    widest = max(text_width(label) for label in labels)
    across, below = widest + 32, (widest * math.sin(math.radians(-x.turn)) if x.turn else 0) + 66
    # A title is wider than two classes.
    plot = Plot(title, max(side + across, text_width(title, 12)), side + below, x, y, square=True)
    for row, column in zip(*np.nonzero(counts), strict=True):
        share = float(shares[row, column])
        _shade(plot, row, column, DEEP, 0.06 + 0.94 * share)
        cell = {"count": f"{counts[row, column]}", "share": f"{100 * share:.0f}%"}
        text = "\n".join(cell[part] for part in parts.split())
        plot.text(column, row, text, 9 if size <= 12 else 7.5, "white" if share > 0.78 else INK)
    for border in range(1, size):
        plot.line([border - 0.5] * 2, [-0.5, size - 0.5], "var(--grid)", 0.4)
        plot.line([-0.5, size - 0.5], [border - 0.5] * 2, "var(--grid)", 0.4)
    return plot.render(name)


def score_matrix(name: str, title: str, scores: Floats, learned: Sequence[str], tasks: Sequence[str]) -> str:
    """Rows: before the first stage and after each one; columns: tasks. Colour is the score, framed where learned."""
    rows = ["before", *(f"after {shorten(task, 18)}" for task in learned)]
    labels = [shorten(task, 18) for task in tasks]
    x, y = _cells(len(rows), len(tasks))
    x.names, y.names, x.label = _named(labels), _named(rows), "framed: the task just learned"
    column_width = max(54.0, max(map(text_width, labels)) + 8)
    width = max(3.6 * INCH, max(map(text_width, rows)) + len(tasks) * column_width + 20)
    plot = Plot(title, width, (1.1 + 0.42 * len(rows)) * INCH, x, y, frame=False, top=True)
    for (row, column), score in np.ndenumerate(scores):
        # Never so strong that text on it could not be read, in light and dark mode.
        _shade(plot, row, column, DEEP, 0.04 + 0.56 * float(np.clip(np.nan_to_num(score), 0, 1)))
        plot.text(column, row, f"{score:.3f}", TEXT)
    for row, task in enumerate(learned, 1):
        if task in tasks:
            at, edge = tasks.index(task), f' stroke="{ORANGE}" stroke-width="2"'
            plot.rectangle(at - 0.46, at + 0.46, row - 0.44, row + 0.44, "none", edge=edge)
    return plot.render(name)


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
    found = [cell for row in cells for cell in row if cell is not None]
    largest = max((abs(value) for value, _ in found), default=0.0)
    largest = max(largest, 0.2)  # values near 0 must look like 0
    lines = [line for _, text in found for line in text.split("\n")]
    tall = max((text.count("\n") + 1 for _, text in found), default=1)
    heads, labels = [shorten(column, 18) if column else "" for column in columns], [shorten(row, 30) for row in rows]
    side = max(28.0, 8 + max((text_width(line, LEGEND) for line in lines), default=24.0))
    widest = max(map(text_width, heads), default=0.0)
    x, y = _cells(len(rows), len(columns))
    x.names, y.names = _named(heads), _named(labels)
    x.turn = -50 if widest > side - 4 else 0
    above = (widest * 0.77 if x.turn else 10) + 40
    beyond = max(10.0, widest * 0.65 - side / 2 + 6) if x.turn else 10.0  # the last name leans to the right
    width = max(max(map(text_width, labels), default=0.0) + side * len(columns) + 10 + beyond, 100)
    height = above + (10 + 11.5 * tall) * len(rows)
    plot = Plot(title, max(width, text_width(title, 12)), height, x, y, frame=False, top=True)
    plot.right = beyond + plot.width - width
    for row, column in np.ndindex(len(rows), len(columns)):
        cell = cells[row][column]
        if cell is not None:
            strength = abs(cell[0]) / largest
            _shade(plot, row, column, DEEP if cell[0] >= 0 else ORANGE, 0.04 + 0.76 * strength)
            plot.text(column, row, cell[1], LEGEND, "white" if strength > 0.8 and cell[0] >= 0 else INK)
    return plot.render(name)


def cosine_curve(
    name: str, title: str, points: Points, mean: Sequence[tuple[float, float, float, float]], reach: float
) -> str:
    """(step, cosine) of each probe as dots, and a moving mean (step, mean, low, high) with its interval as a band.

    The page says which is which: there may be many of these.
    """
    plot = _curve_plot(title, 2.2)
    plot.y = Axis("cosine", limits=(-reach, reach), most_ticks=5)
    plot.level(0, INK)
    plot.markers(*_thinned(points), BLUE, size=4, opacity=0.5)
    if mean:
        steps, values, low, high = np.array(mean, np.float64).T.tolist()
        plot.line(steps, values, PURPLE)
        plot.band(steps, low, high, PURPLE, 0.22, "")
    return plot.render(name)


def reliability_plot(name: str, title: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """(confidence, accuracy) of bins, one curve before calibration and one after it; on the dashed line both agree."""
    plot = Plot(title, 4.6 * INCH, 4.2 * INCH)
    plot.x = Axis("confidence: probability of the predicted class", limits=(0.0, 1.02))
    plot.y = Axis("share of right predictions", limits=(0.0, 1.02))
    plot.line([0, 1], [0, 1], INK, 0.9, DASHED)
    for (label, points), colour in zip(curves.items(), (ORANGE, BLUE), strict=False):
        plot.line([x for x, _ in points], [y for _, y in points], colour, mark=5, name=label)
    return plot.render(name)


def coverage_plot(
    name: str, title: str, points: Sequence[tuple[float, float]], chosen: tuple[float, float] | None, label: str
) -> str:
    """(coverage, accuracy) of all thresholds, and the point of the threshold that was chosen."""
    plot = Plot(title, 4.6 * INCH, 4.2 * INCH)
    plot.x = Axis("coverage: share of predictions that are kept", limits=(0.0, 1.02))
    plot.y = Axis("accuracy of these predictions")
    plot.line([x for x, _ in points], [y for _, y in points], BLUE, name="all thresholds")
    if chosen is not None:
        plot.markers([chosen[0]], [chosen[1]], ORANGE, "D", 8, name=label)
    return plot.render(name)


BINS = 28


def score_scatter(name: str, title: str, gold: Sequence[float], predicted: Sequence[float]) -> str:
    """True against predicted scores: dots, or shaded squares where there are too many dots."""
    plot = Plot(title, 4.6 * INCH, 4.2 * INCH)
    plot.x, plot.y = Axis("true score (on the dashed line: no error)"), Axis("predicted score")
    if len(gold) <= MAX_POINTS:
        plot.markers(list(gold), list(predicted), BLUE, size=4.5, opacity=0.45)
    else:
        counts, x, y = np.histogram2d(gold, predicted, BINS)
        strength = 0.12 + 0.85 * np.log1p(counts) / np.log1p(counts.max())
        for i, j in np.argwhere(counts > 0).tolist():
            plot.rectangle(x[i], x[i + 1], y[j], y[j + 1], BLUE, float(strength[i, j]))
    ends = [min(*gold, *predicted), max(*gold, *predicted)]
    plot.line(ends, ends, INK, 0.9, DASHED)
    return plot.render(name)


def bars(name: str, title: str, labels: Sequence[str], counts: Sequence[float]) -> str:
    """One bar for each label, with its count."""
    plot = Plot(title, height=(0.9 + 0.26 * len(labels)) * INCH)
    for row, count in enumerate(counts):
        plot.rectangle(0, count, row - 0.35, row + 0.35, BLUE, 0.75)
        plot.text(count, row, f"{count:,.0f}", LEGEND, shift=4)
    plot.x = Axis(limits=(0, 1.14 * max(counts, default=1) or 1), most_ticks=5, integer=True)
    names = _named([shorten(label, 26) for label in labels])
    plot.y = Axis(limits=(len(labels) - 0.4, -0.6), names=names, grid=False)
    return plot.render(name)


def histogram(name: str, title: str, edges: Sequence[float], counts: Sequence[float], xlabel: str) -> str:
    """Counts between edges (one edge more than counts)."""
    plot = Plot(title, height=2.3 * INCH)
    edge = f' stroke="{PAGE}" stroke-width="0.8"'
    for left, right, count in zip(edges, edges[1:], counts, strict=False):
        plot.rectangle(left, right, 0, count, BLUE, 0.75, edge)
    plot.x = Axis(xlabel, limits=_wider(edges[0], edges[-1]), grid=False)
    plot.y = Axis("rows", limits=(0, 1.05 * max(counts, default=1) or 1), most_ticks=5, integer=True)
    return plot.render(name)


def _wider(low: float, high: float) -> tuple[float, float]:
    room = 0.03 * (high - low) or 0.5
    return low - room, high + room
