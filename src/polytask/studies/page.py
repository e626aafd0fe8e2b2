"""Writes report.html of a study: one self-contained page, in the style of a run's report. Reads `study.json` only.

If runs are missing or have failed, the page says so. The only script sorts tables; the page's content policy allows it
by its hash, and the page is complete without it.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from polytask.disk.atomic import write_atomically
from polytask.evaluation.comparison.records import MEAN
from polytask.reports.svg import shorten
from polytask.studies import charts, table
from polytask.studies.sentences import in_points
from polytask.studies.table import ABSENT, Json, cells, main_score, scored
from polytask.text.controls import visible

NAMED, LONG = 3, 40  # variants that the verdict names, and characters of a name


def write_page(folder: Path) -> Path:
    """Writes `report.html` into a study's folder, from its `study.json`."""
    study = table.read_study(folder)
    styles = charts.looks(study["variants"], study["reference"])
    page = (
        templates()
        .get_template("study.html.jinja")
        .render(
            study=study,
            verdict=verdict(study),
            states={state: len(list(cells(study, state))) for state in ("done", "failed", "missing")},
            claims={
                claim: [c["sentence"] for c in table.ordered(study) if c["claim"] == claim] for claim in table.CLAIMS
            },
            pace=table.pace(study),
            seed_noise=table.seed_noise(study),
            views=scored(study),
            forgotten=table.FORGOTTEN if table.forgets(study) else "",
            rows=[_row(study, variant) for variant in study["variants"]],
            comparisons=table.ordered(study),
            forests=_forests(study),
            tradeoffs=_tradeoffs(study, styles),
            curves=_curves(study, styles),
            cells=[(variant, cell) for variant, cell in cells(study) if cell["state"] != "failed"],
            failed=list(cells(study, "failed")),
        )
    )
    target = folder / "report.html"
    write_atomically(target, visible(page))
    return target


@cache
def templates(*folders: Path) -> jinja2.Environment:
    """Returns the templates of a study's page and of these folders, with the filters that format numbers."""
    loader = jinja2.FileSystemLoader([*folders, Path(__file__).parent])
    pages = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    of_table = (table.points, table.ends, table.count, table.speed, table.memory, table.seconds, table.p_value)
    own = (effect, in_points, key, plain, link, sha256)
    pages.filters |= {function.__name__: function for function in (*of_table, *own)}
    return pages


# --- the verdict in one sentence --------------------------------------------------------------------------------------


def verdict(study: Json) -> str:
    """Says in one sentence what the study shows about the mean of the tasks, or about the only task."""
    view, reference = main_score(study), shorten(study["reference"], LONG)
    comparisons = [c for c in study.get("comparisons") or [] if c["task"] == view]
    if not comparisons:
        return _no_verdict(study)
    better, worse, same, undecided = ([c for c in comparisons if c["claim"] == claim] for claim in table.CLAIMS)
    parts = []
    if better:
        names = _named(sorted(better, key=lambda c: -abs(c["difference"])), difference=True)
        parts.append(f"{names} {_are(better)} better than {reference} on {place(view)}")
    if worse:
        names = _named(sorted(worse, key=lambda c: -abs(c["difference"])), difference=True)
        parts.append(f"{names} {_are(worse)} worse" + ("" if better else f" than {reference} on {place(view)}"))
    if same:
        than = "" if parts else f" as {reference} on {place(view)}"
        parts.append(f"{_named(same)} {_are(same)} the same{than} within {in_points(100 * same[0]['margin'])}")
    if undecided:
        rest = "undecided" if parts else f"undecided against {reference} on {place(view)}"
        parts.append(f"{_named(undecided)} {_are(undecided)} {rest}{_why(undecided)}")
    single = [c["claim"] for c in study["comparisons"] if c["task"] != view]
    tasks = [f"{single.count(claim)} {claim}" for claim in table.CLAIMS[:3] if claim in single]
    parts += [f"on single tasks: {', '.join(tasks)}"] if tasks else []
    return f"{'; '.join(parts)}."


def _why(undecided: Sequence[Json]) -> str:
    return "" if any(c["seed_noise_known"] for c in undecided) else " (one seed: seed noise unknown)"


def _no_verdict(study: Json) -> str:
    variants = study["variants"]
    if all(cell["state"] == "failed" for _, cell in cells(study)):
        return "Every run failed, so there is nothing to compare."
    if not any(cells(study, "done")):
        return "No run has finished, so there is nothing to compare yet."
    if len(variants) == 1:
        return f"There is one variant, {study['reference']}, and nothing to compare it with."
    if not variants[study["reference"]].get("scores"):
        return f"The reference, {study['reference']}, has no finished run, so nothing can be compared with it yet."
    return f"No variant but the reference, {study['reference']}, has finished, so there is nothing to compare yet."


def place(view: str) -> str:
    return "the mean of the tasks" if view == MEAN else view


def _are(comparisons: Sequence[Json]) -> str:
    return "is" if len(comparisons) == 1 else "are"


def _named(comparisons: Sequence[Json], difference: bool = False) -> str:
    """Lists the variants of comparisons: "a, b and 3 others"."""
    names = [shorten(c["variant"], LONG) for c in comparisons]
    if difference:
        sizes = [table.points(c["difference"], sign=True) for c in comparisons]
        names = [f"{name} ({size} points)" for name, size in zip(names, sizes, strict=True)]
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} others"]
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + names[-1:])


# --- the main table ---------------------------------------------------------------------------------------------------


def _row(study: Json, variant: str) -> Json:
    """Returns a variant's row: its scores and claims in each view, and (text, number to sort by) of each cost."""
    record = study["variants"][variant]
    claims = {c["task"]: c["claim"] for c in study.get("comparisons") or [] if c["variant"] == variant}
    cost = record.get("cost") or {}
    size = cost.get("parameters") or {}
    own = sorted((size.get("per_task") or {}).values())
    forgetting: list[tuple[Any, Callable[[Any], str]]] = [(cost.get("forgetting"), table.points)]
    costs: list[tuple[Any, Callable[[Any], str]]] = [
        *(forgetting if table.forgets(study) else []),
        (size.get("shared"), table.count),
        (
            own[-1] if own else None,
            lambda _: "\u00a0to ".join(dict.fromkeys(map(table.count, own[:1] + own[-1:]))) or ABSENT,
        ),
        (size.get("trainable"), table.count),
        (cost.get("examples_per_second"), table.speed),
        (cost.get("peak_memory_bytes"), table.memory),
        (cost.get("seconds"), table.seconds),
    ]
    return {
        "name": variant,
        "seeds": sum(cell["state"] == "done" for cell in record["cells"]),
        "scores": [(_score(record, view), claims.get(view)) for view in scored(study)],
        "costs": [(format_value(value), value) for value, format_value in costs],
    }


def _score(variant: Json, view: str) -> Json | None:
    score: Json | None = (variant.get("scores") or {}).get(view)
    return score if score and table.is_finite(score["mean"]) else None


# --- the plots --------------------------------------------------------------------------------------------------------


def _forests(study: Json) -> list[str]:
    views = sorted(scored(study), key=lambda view: view != MEAN)
    by_view = {view: [c for c in study.get("comparisons") or [] if c["task"] == view] for view in views}
    filled = [(view, comparisons) for view, comparisons in by_view.items() if comparisons]
    return [charts.forest(f"forest-{i}", shorten(place(view), 40), of) for i, (view, of) in enumerate(filled)]


def _tradeoffs(study: Json, styles: Mapping[str, charts.Look]) -> list[str]:
    view = main_score(study)
    higher = bool(study["tasks"].get(view, {}).get("greater_is_better", True))
    variants = {
        name: record for name, record in study["variants"].items() if record.get("cost") and _score(record, view)
    }
    costs = {name: record["cost"] for name, record in variants.items()}
    size = {name: (cost.get("parameters") or {}).get("trainable") for name, cost in costs.items()}
    time = {name: cost.get("seconds") for name, cost in costs.items()}
    memory = {name: cost.get("peak_memory_bytes") for name, cost in costs.items()}
    axes = [
        ("trainable parameters", size, 1),
        ("minutes to train", time, 60) if _largest(time) >= 600 else ("seconds to train", time, 1),
        ("peak memory, GiB", memory, 2**30) if _largest(memory) >= 2**31 else ("peak memory, MiB", memory, 2**20),
    ]
    return [
        charts.tradeoff(f"cost-{i}", f"{shorten(place(view), 24)}: score against {cost}", cost, points, styles, higher)
        for i, (cost, values, unit) in enumerate(axes)
        if len(points := _points(variants, view, values, unit)) > 1
    ]


def _largest(values: Mapping[str, Any]) -> float:
    return max((value for value in values.values() if table.is_finite(value)), default=0.0)


def _points(
    variants: Mapping[str, Json], view: str, values: Mapping[str, Any], unit: int
) -> dict[str, tuple[float, float, float, float]]:
    scores = {name: record["scores"][view] for name, record in variants.items() if table.is_finite(values[name])}
    return {name: (values[name] / unit, s["mean"], s["low"], s["high"]) for name, s in scores.items()}


def _curves(study: Json, styles: Mapping[str, charts.Look]) -> list[str]:
    plots = []
    for i, (task, about) in enumerate(study["tasks"].items()):
        curves = {
            variant: [tasks[task] for tasks in seeds.values() if tasks.get(task)]
            for variant, seeds in (study.get("curves") or {}).items()
            if variant in styles
        }
        curves = {variant: seeds for variant, seeds in curves.items() if seeds}
        if curves:
            title = f"{shorten(task, 30)}: {table.metric_name(about)} on dev"
            plots.append(charts.overlay(f"curve-{i}", title, curves, styles))
    return plots


# --- the template's filters -------------------------------------------------------------------------------------------


def effect(value: Any) -> str:
    return f"{value:+.2f}" if table.is_finite(value) else ABSENT


def key(value: Any) -> str:
    """Returns what a cell of a table is sorted by; unknown values come last."""
    return repr(value) if table.is_finite(value) else ""


def plain(value: Any) -> str:
    """Formats a value of a recipe or of the environment."""
    return ABSENT if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def link(run: str) -> str:
    """Returns the address of a run's report, relative to the study; never another scheme or host."""
    return quote(f"{run.strip('/')}/report.html")


def sha256(script: str) -> str:
    """Hashes a script in the form that a content policy needs."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
