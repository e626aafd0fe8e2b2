"""Writes study.md, a study as one Markdown table, and formats a study's numbers, there and on its page.

Reads `study.json` only, not the runs. Scores and differences are written in points, hundredths of the metric.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polytask.disk.atomic import write_atomically
from polytask.disk.json_files import read_json
from polytask.evaluation.comparison.records import MEAN
from polytask.text.controls import visible
from polytask.types import UserError

Json = Mapping[str, Any]

FORMAT = 2
ABSENT = "–"  # noqa: RUF001  (a dash, for unknown values)
CLAIMS = ("better", "worse", "same", "undecided")


def write_table(folder: Path) -> Path:
    """Writes `study.md` into a study's folder, from its `study.json`."""
    target = folder / "study.md"
    write_atomically(target, visible(study_markdown(read_study(folder))))
    return target


def read_study(folder: Path) -> Json:
    """Reads `study.json` of a study's folder."""
    path = folder / "study.json"
    if not path.exists():
        raise UserError(f"{folder}: not the folder of a study: it has no study.json")
    study = read_json(path)
    if study.get("format") != FORMAT:
        raise UserError(f"{path}: format must be {FORMAT}, found {study.get('format')!r}; run the study again")
    return study


def study_markdown(study: Json) -> str:
    """Returns the page: title, date and hardware, the table of variants, the sentences, and the failed runs."""
    parts = [f"# {escaped(study['name'])}", escaped(_circumstances(study)), *pace(study), _table(study)]
    parts.append(f"{SCALE} {_noise(study)}{f' {FORGOTTEN}' if forgets(study) else ''}")
    sentences = [f"- {escaped(comparison['sentence'])}" for comparison in ordered(study)]
    parts += ["\n".join(sentences)] if sentences else []
    missing = [cell for _, cell in cells(study, "missing")]
    if missing:
        parts.append(f"Not finished: {len(missing)} of {len(list(cells(study)))} runs are missing.")
    failed = [f"- {escaped(variant)}, seed {cell['seed']}: {_reason(cell)}" for variant, cell in cells(study, "failed")]
    parts += ["Failed runs:", "\n".join(failed)] if failed else []
    return "\n\n".join(parts) + "\n"


SCALE = "Scores on dev, in points (hundredths of the metric), mean over seeds [95 % interval]."

FORGOTTEN = (
    "Forgotten: how far tasks end below their best score after any stage, in points; the mean over seeds and over all "
    "tasks except the one learned last."
)


def _noise(study: Json) -> str:
    if seed_noise(study) == "known":
        return "The intervals are over examples and seeds together."
    which = "One seed" if seed_noise(study) == "unknown" else "Where a variant has one seed"
    return f"{which}: seed noise is unknown, the intervals are over examples only, and nothing is claimed."


def _circumstances(study: Json) -> str:
    machine = study.get("environment") or {}
    parts = [str(study.get("started") or "")[:10], machine.get("cpu"), machine.get("device")]
    parts += [f"{key} {machine[key]}" for key in ("torch", "polytask") if machine.get(key)]
    parts += [f"commit {str(machine['commit'])[:12]}"] if machine.get("commit") else []
    seeds = ", ".join(map(str, study["seeds"]))
    parts += [f"seed {seeds}" if len(study["seeds"]) == 1 else f"seeds {seeds}"]
    return " · ".join(dict.fromkeys(str(part) for part in parts if part))


def _table(study: Json) -> str:
    views = scored(study)
    heads = [f"{view} ({metric})" if metric else view for view, metric in views.items()]
    forgotten = ["Forgotten"] if forgets(study) else []
    lines = [["Variant", *heads, *forgotten, "Trainable parameters", "Examples/s", "Peak memory", "Time"]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for variant, record in study["variants"].items():
        name = f"{variant} (reference)" if variant == study["reference"] else variant
        scores, cost = record.get("scores") or {}, record.get("cost") or {}
        size = (cost.get("parameters") or {}).get("trainable")
        line = [name, *(with_interval(scores.get(view)) for view in views)]
        line += [points(cost.get("forgetting"))] if forgotten else []
        line += [count(size), speed(cost.get("examples_per_second"))]
        lines.append([*line, memory(cost.get("peak_memory_bytes")), seconds(cost.get("seconds"))])
    return "\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines)


def _reason(cell: Json) -> str:
    """Returns the last line of the error, which holds the message of a Python exception."""
    lines = [line.strip() for line in (cell.get("error") or "").splitlines() if line.strip()]
    return escaped(lines[-1]) if lines else "no error text"


def escaped(text: str) -> str:
    """Puts a text on one line and escapes what Markdown would read as a cell's end, a tag, a link, code or emphasis."""
    text = " ".join(str(text).split())
    text = re.sub(r"([\\`*|~<]|(?<=\])[(\[]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return re.sub(r"&(?=#?\w+;)", "&amp;", re.sub(r"^([#>])", r"\\\1", text))


# --- the content of a study -------------------------------------------------------------------------------------------


def scored(study: Json) -> dict[str, str]:
    """Returns every task and its metric and, with several tasks, their mean (whose metric is "")."""
    views = {task: metric_name(about) for task, about in study["tasks"].items()}
    return views | {MEAN: ""} if len(views) > 1 else views


def metric_name(task: Json) -> str:
    """Returns the metric's name, and its direction if lower is better."""
    return str(task["metric"]) if task.get("greater_is_better", True) else f"{task['metric']}, lower is better"


def pace(study: Json) -> list[str]:
    """Returns a sentence for each number of workers: its runs per minute, as measured."""
    return [
        f"{_workers(one['workers'])} finished {one['runs']:,} {'run' if one['runs'] == 1 else 'runs'} in "
        f"{seconds(one['seconds'])}: {one['runs_per_minute']:.3g} runs per minute."
        for one in study.get("throughput") or []
    ]


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def forgets(study: Json) -> bool:
    """Whether runs of the study learned their tasks one after another."""
    return any(is_finite((record.get("cost") or {}).get("forgetting")) for record in study["variants"].values())


def main_score(study: Json) -> str:
    """Returns the mean of the tasks, or the only task. (Before the first run has finished, the tasks are unknown.)"""
    return next(reversed(scored(study)), MEAN)


def ordered(study: Json) -> list[Json]:
    """Sorts the comparisons: better and worse ones (the largest first), then the same, then undecided ones.

    In each part the mean of the tasks comes first.
    """

    def order(comparison: Json) -> tuple[int, bool, float]:
        claimed = comparison["claim"] in ("better", "worse")
        size = -abs(comparison["difference"]) if claimed else 0.0
        return CLAIMS.index(comparison["claim"]), comparison["task"] != MEAN, size

    return sorted(study.get("comparisons") or [], key=order)


def seed_noise(study: Json) -> str:
    """Returns whether seed noise is "known", "unknown" (one run of each variant), or "partly" known."""
    known = {c["seed_noise_known"] for c in study.get("comparisons") or []} or {len(study["seeds"]) > 1}
    return "partly" if len(known) > 1 else "known" if True in known else "unknown"


def cells(study: Json, state: str | None = None) -> Iterator[tuple[str, Json]]:
    """Yields (variant, cell) of all cells, or of those in one state."""
    for variant, record in study["variants"].items():
        yield from ((variant, cell) for cell in record["cells"] if state in (None, cell["state"]))


# --- formatting -------------------------------------------------------------------------------------------------------


def is_finite(value: Any) -> bool:
    """Whether a value of study.json is a number that is neither NaN nor infinite."""
    return isinstance(value, int | float) and math.isfinite(value)


def points(value: Any, sign: bool = False) -> str:
    """Formats a fraction in points: 86.1 for 0.861."""
    if not is_finite(value):
        return ABSENT
    text = f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"
    return "0.0" if float(text) == 0 else text


def ends(interval: Json, sign: bool = False) -> str:
    """Formats an interval: [85.6, 86.5]."""
    return f"[{points(interval['low'], sign)}, {points(interval['high'], sign)}]"


def with_interval(score: Json | None) -> str:
    """Formats a score with its interval: 86.1 [85.6, 86.5]."""
    return f"{points(score['mean'])} {ends(score)}" if score and is_finite(score.get("mean")) else ABSENT


def count(value: Any) -> str:
    return f"{value:,.0f}" if is_finite(value) else ABSENT


def speed(value: Any) -> str:
    return (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") if is_finite(value) else ABSENT


def memory(value: Any) -> str:
    if not is_finite(value):
        return ABSENT
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def seconds(value: Any) -> str:
    if not is_finite(value):
        return ABSENT
    whole = round(value)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{value:.1f} s"


def p_value(value: Any) -> str:
    return ("< 0.001" if value < 0.001 else f"{value:.3f}") if is_finite(value) else ABSENT
