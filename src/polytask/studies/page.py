"""report.html of a study: one self-contained page, the sibling of a run's report. Knows `study.json`, not the runs.

The study may still be going on, or have failed: the page then says what is not there. The only script sorts tables; it
is allowed by its hash, and the page is complete without it.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from polytask.disk.atomic import write_atomically
from polytask.evaluation.comparison.records import MEAN
from polytask.reports.plots import shorten
from polytask.studies import charts, table
from polytask.studies.sentences import in_points
from polytask.studies.table import ABSENT, Json, cells, main_score, scored
from polytask.text.controls import visible

NAMED, LONG = 3, 40  # variants that the verdict names before it only counts them, and letters of a name there


def write_page(folder: Path) -> Path:
    """Write `report.html` into a study's folder, from its `study.json`."""
    study = table.read_study(folder)
    drawn = charts.looks(study["variants"], study["reference"])
    page = _template().render(
        study=study,
        verdict=verdict(study),
        states={state: len(list(cells(study, state))) for state in ("done", "failed", "missing")},
        said={claim: [c["sentence"] for c in table.ordered(study) if c["claim"] == claim] for claim in table.CLAIMS},
        seed_noise=table.seed_noise(study),
        views=scored(study),
        forgotten=table.FORGOTTEN if table.forgets(study) else "",
        place=place,
        rows=[_row(study, variant) for variant in study["variants"]],
        comparisons=table.ordered(study),
        forests=_forests(study),
        tradeoffs=_tradeoffs(study, drawn),
        curves=_curves(study, drawn),
        cells=[(variant, cell) for variant, cell in cells(study) if cell["state"] != "failed"],
        failed=list(cells(study, "failed")),
    )
    target = folder / "report.html"
    write_atomically(target, visible(page))  # whoever looks at the old page never sees half of the new one
    return target


def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    pages = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    written = (table.points, table.ends, table.count, table.speed, table.memory, table.seconds, table.chance)
    own = (effect, in_points, key, plain, link, sha256)
    pages.filters |= {function.__name__: function for function in (*written, *own)}
    return pages.get_template("study.html.jinja")


# --- the verdict in one sentence --------------------------------------------------------------------------------------


def verdict(study: Json) -> str:
    """What the study says about the mean of the tasks, or about the only task."""
    view, reference = main_score(study), shorten(study["reference"], LONG)
    found = [c for c in study.get("comparisons") or [] if c["task"] == view]
    if not found:
        return _no_verdict(study)
    better, worse, same, undecided = ([c for c in found if c["claim"] == claim] for claim in table.CLAIMS)
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


def _are(found: Sequence[Json]) -> str:
    return "is" if len(found) == 1 else "are"


def _named(found: Sequence[Json], difference: bool = False) -> str:
    names = [shorten(c["variant"], LONG) for c in found]
    if difference:
        sizes = [table.points(c["difference"], sign=True) for c in found]
        names = [f"{name} ({size} points)" for name, size in zip(names, sizes, strict=True)]
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} others"]
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + names[-1:])


# --- the main table ---------------------------------------------------------------------------------------------------


def _row(study: Json, variant: str) -> Json:
    """One variant: (text, number to sort by) of each cost; score and claim of each view."""
    found = study["variants"][variant]
    claims = {c["task"]: c["claim"] for c in study.get("comparisons") or [] if c["variant"] == variant}
    cost = found.get("cost") or {}
    size = cost.get("parameters") or {}
    own = sorted((size.get("per_task") or {}).values())
    lost: list[tuple[Any, Callable[[Any], str]]] = [(cost.get("forgetting"), table.points)]
    shown: list[tuple[Any, Callable[[Any], str]]] = [
        *(lost if table.forgets(study) else []),
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
        "seeds": sum(cell["state"] == "done" for cell in found["cells"]),
        "scores": [(_score(found, view), claims.get(view)) for view in scored(study)],
        "costs": [(write(value), value) for value, write in shown],
    }


def _score(found: Json, view: str) -> Json | None:
    score: Json | None = (found.get("scores") or {}).get(view)
    return score if score and table.known(score["mean"]) else None


# --- the plots --------------------------------------------------------------------------------------------------------


def _forests(study: Json) -> list[str]:
    views = sorted(scored(study), key=lambda view: view != MEAN)
    found = {view: [c for c in study.get("comparisons") or [] if c["task"] == view] for view in views}
    shown = [(view, comparisons) for view, comparisons in found.items() if comparisons]
    return [charts.forest(f"forest-{at}", shorten(place(view), 40), of) for at, (view, of) in enumerate(shown)]


def _tradeoffs(study: Json, drawn: Mapping[str, charts.Look]) -> list[str]:
    view = main_score(study)
    higher = bool(study["tasks"].get(view, {}).get("greater_is_better", True))
    known = {name: found for name, found in study["variants"].items() if found.get("cost") and _score(found, view)}
    costs = {name: found["cost"] for name, found in known.items()}
    size = {name: (cost.get("parameters") or {}).get("trainable") for name, cost in costs.items()}
    time = {name: cost.get("seconds") for name, cost in costs.items()}
    room = {name: cost.get("peak_memory_bytes") for name, cost in costs.items()}
    shown = [
        ("trainable parameters", size, 1),
        ("minutes to train", time, 60) if _largest(time) >= 600 else ("seconds to train", time, 1),
        ("peak memory, GiB", room, 2**30) if _largest(room) >= 2**31 else ("peak memory, MiB", room, 2**20),
    ]
    return [
        charts.tradeoff(f"cost-{at}", f"{shorten(place(view), 24)}: score against {what}", what, points, drawn, higher)
        for at, (what, values, unit) in enumerate(shown)
        if len(points := _points(known, view, values, unit)) > 1
    ]


def _largest(values: Mapping[str, Any]) -> float:
    return max((value for value in values.values() if table.known(value)), default=0.0)


def _points(
    known: Mapping[str, Json], view: str, values: Mapping[str, Any], unit: int
) -> dict[str, tuple[float, float, float, float]]:
    scores = {name: found["scores"][view] for name, found in known.items() if table.known(values[name])}
    return {name: (values[name] / unit, s["mean"], s["low"], s["high"]) for name, s in scores.items()}


def _curves(study: Json, drawn: Mapping[str, charts.Look]) -> list[str]:
    found = []
    for at, (task, about) in enumerate(study["tasks"].items()):
        of = {
            variant: [tasks[task] for tasks in seeds.values() if tasks.get(task)]
            for variant, seeds in (study.get("curves") or {}).items()
            if variant in drawn
        }
        of = {variant: seeds for variant, seeds in of.items() if seeds}
        if of:
            found.append(
                charts.overlay(f"curve-{at}", f"{shorten(task, 30)}: {table.metric_name(about)} on dev", of, drawn)
            )
    return found


# --- how the page writes things ---------------------------------------------------------------------------------------


def effect(value: Any) -> str:
    return f"{value:+.2f}" if table.known(value) else ABSENT


def key(value: Any) -> str:
    """What a cell is sorted by; what is not known comes last."""
    return repr(value) if table.known(value) else ""


def plain(value: Any) -> str:
    """A value of a recipe or of the environment."""
    return ABSENT if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def link(run: str) -> str:
    """The report of a run, relative to the study; never another scheme or host."""
    return quote(f"{run.strip('/')}/report.html")


def sha256(script: str) -> str:
    """As a content policy names a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
