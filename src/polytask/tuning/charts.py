"""The plots of a tuning as inline SVG, drawn with reports/svg.py. Knows the content of tune.json only."""

from collections.abc import Mapping
from typing import Any

from polytask.reports.svg import BLUE, GREEN, INK, ORANGE, Axis, Plot, shorten
from polytask.tuning.fields import text_of

INCH = 72.0
LOOKS = {"1": (BLUE, "o", "1/9 of the steps"), "3": (ORANGE, "s", "1/3 of the steps"), "9": (GREEN, "D", "all steps")}
Json = Mapping[str, Any]


def best_so_far(tune: Json) -> str:
    """Draws every finished run of the search over time, and the best score so far at each length."""
    plot = Plot("score on the search's dev rows", 6.4 * INCH, 3.2 * INCH)
    plot.x, plot.y = Axis("minutes"), Axis("points")
    for ninths, (colour, shape, name) in LOOKS.items():
        ended = sorted(
            (tune["times"].get(trial["runs"][ninths], 0.0) / 60, 100 * score)
            for trial in tune["trials"]
            if (score := trial["scores"].get(ninths)) is not None
        )
        if ended:
            minutes, scores = [at for at, _ in ended], [score for _, score in ended]
            plot.markers(minutes, scores, colour, shape, 6, 0.75, name=name)
            best = [max(scores[: i + 1]) for i in range(len(scores))]
            # A stair: each score holds until the next run ends.
            xs = [minute for minute in minutes for _ in range(2)][1:]
            ys = [score for score in best for _ in range(2)][:-1]
            plot.line(xs, ys, colour, 1.6)
    return plot.render("best-so-far")


def importance(tune: Json) -> str:
    """Draws the importance of each field as a bar, the largest first."""
    shares = sorted(tune["importances"].items(), key=lambda item: -item[1])
    plot = Plot("share of the differences between trials", 5.4 * INCH, (0.9 + 0.26 * len(shares)) * INCH)
    for row, (_, value) in enumerate(shares):
        plot.rectangle(0, 100 * value, row - 0.32, row + 0.32, BLUE, 0.85)
    plot.x = Axis("%", limits=(0, max(100 * value for _, value in shares) * 1.05 or 1.0))
    names = [(float(row), shorten(field, 26)) for row, (field, _) in enumerate(shares)]
    plot.y = Axis(limits=(len(shares) - 0.5, -0.5), names=names, grid=False)
    return plot.render("importance")


def slices(tune: Json) -> list[str]:
    """Draws, for each field, the score of every trial's shortest run over the field's value."""
    return [_slice(tune, field, i) for i, field in enumerate(tune["fields"])]


def _slice(tune: Json, field: str, i: int) -> str:
    trials = [trial for trial in tune["trials"] if "1" in trial["scores"]]
    values = [trial["settings"][field] for trial in trials]
    plot = Plot(shorten(field, 40), 4.6 * INCH, 2.5 * INCH, right=20)
    plot.y = Axis("points", most_ticks=5)
    ranged = ".." in tune["fields"][field]
    kinds = sorted({text_of(value) for value in values}, key=lambda kind: (len(kind), kind))
    if ranged:
        plot.x = Axis("value", log=field in tune["log_fields"], most_ticks=4, format=lambda value: f"{value:g}")
        if isinstance(tune["start"][field], int | float):
            plot.moment(tune["start"][field], INK, 0.9, "2 2")
    else:
        names = [(float(at), shorten(kind, 16)) for at, kind in enumerate(kinds)]
        turn = -25 if sum(map(len, kinds)) > 24 else 0  # long names would overlap
        plot.x = Axis("value", limits=(-0.5, len(kinds) - 0.5), names=names, grid=False, turn=turn)
    for ninths, (colour, shape, _) in LOOKS.items():
        own = [t for t in trials if max(map(int, t["scores"])) == int(ninths)]
        xs = [t["settings"][field] if ranged else kinds.index(text_of(t["settings"][field])) for t in own]
        plot.markers(list(map(float, xs)), [100 * t["scores"]["1"] for t in own], colour, shape, 6, 0.8)
    return plot.render(f"slice-{i}")
