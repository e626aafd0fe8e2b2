"""Interference between tasks: sentences for the summary, and plots for the report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polytask.evaluation.interference import curve, moving, summarize
from polytask.reports import plots

Json = dict[str, Any]

NOTHING_SHARED = (
    "No trainable parameter is shared by two tasks (the encoder is frozen, or each task has its own), so their "
    "gradients cannot conflict."
)


def with_sentences(summary: Mapping[str, Any]) -> Json:
    """Adds a `sentence` to every pair of a summary of probes, and a `note` if there is no pair."""
    pairs = [{**pair, "sentence": _sentence(pair, summary["probes"])} for pair in summary["pairs"]]
    return {**summary, "pairs": pairs, "note": None if pairs else NOTHING_SHARED}


def _sentence(pair: Mapping[str, Any], probes: int) -> str:
    one, other = pair["tasks"]
    cosine = pair["cosine"]
    if cosine["value"] is None:
        return f"{one} and {other} share no trainable parameters."
    interval = f" [{cosine['low']:.3f}, {cosine['high']:.3f}]" if cosine["low"] is not None else ""
    numbers = (
        f"mean cosine {cosine['value']:.3f}{interval}, below 0 in {100 * pair['conflict']:.0f} % of {probes} "
        f"{'probe' if probes == 1 else 'probes'}"
    )
    if pair["verdict"] == "unclear":
        return f"The gradients of {one} and {other} show no clear sign: {numbers}."
    conflict = pair["verdict"] == "apart"
    values = {name: layer["value"] for name, layer in pair["layers"].items()}
    most = (min if conflict else max)(values, key=lambda name: values[name])
    place = f"; most in {'the ' if not most.startswith('layer') else ''}{most} ({values[most]:.3f})"
    return f"The gradients of {one} and {other} {'conflict' if conflict else 'agree'}: {numbers}{place}."


def interference_section(probes: Sequence[Json]) -> Json | None:
    """The results of the probes, with the strongest conflict first."""
    if not probes:
        return None
    found = with_sentences(summarize(probes))
    if found["note"]:
        return found
    pairs = sorted(found["pairs"], key=lambda pair: pair["cosine"]["value"] or 0.0)
    curves = {" and ".join(pair["tasks"]): curve(probes, *pair["tasks"]) for pair in pairs}
    # One scale for all pairs, so that they can be compared; one probe in a hundred may be outside.
    seen = np.abs([cosine for points in curves.values() for _, cosine in points])
    reach = max(0.05, 1.1 * float(np.quantile(seen, 0.99))) if len(seen) else 1.0
    drawn = [
        plots.cosine_curve(f"interference-{at}", name, points, moving(points), reach)
        for at, (name, points) in enumerate(curves.items())
        if points
    ]
    columns = [*found["layers"], "", "all layers"]
    cells = [
        [_cell(pair["layers"].get(layer)) for layer in found["layers"]] + [None, _cell(pair["cosine"])]
        for pair in pairs
    ]
    transfer = [
        [None if i == j else _cell(value, True) for j, value in enumerate(row)]
        for i, row in enumerate(found["transfer"])
    ]
    tasks = found["tasks"]
    title = "A step on the row's task: what it does for the column's task"
    return {
        **found,
        "pairs": pairs,
        "map": plots.signed_matrix("interference-map", "Mean cosine by layer", cells, list(curves), columns),
        "curves": drawn,
        "matrix": plots.signed_matrix("interference-transfer", title, transfer, tasks, tasks),
    }


def _cell(found: Json | None, interval: bool = False) -> tuple[float, str] | None:
    if found is None or found["value"] is None:
        return None
    value, low, high = (x if x is None else f"{round(x, 2) + 0.0:.2f}" for x in found.values())  # never -0.00
    if not interval or low is None:
        return found["value"], f"{value}"
    shade = found["value"] if found["low"] * found["high"] > 0 else 0.0  # no colour if the interval contains 0
    return shade, f"{value}\n{low} to {high}"
