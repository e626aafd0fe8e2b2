"""study.md: a study as one Markdown table, and how a study's numbers are written, there and on its page.

Knows `study.json`, not the runs. Scores and differences are written in points, hundredths of the metric.
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
ABSENT = "–"  # noqa: RUF001  (a dash, for what is not known)
CLAIMS = ("better", "worse", "same", "undecided")


def write_table(folder: Path) -> Path:
    """Write `study.md` into a study's folder, from its `study.json`."""
    target = folder / "study.md"
    write_atomically(target, visible(study_markdown(read_study(folder))))
    return target


def read_study(folder: Path) -> Json:
    """What `study.json` of a folder says."""
    path = folder / "study.json"
    if not path.exists():
        raise UserError(f"{folder} is not the folder of a study: it has no study.json")
    study = read_json(path)
    if study.get("format") != FORMAT:
        raise UserError(f"{path} has the format {study.get('format')!r}; this polytask reads {FORMAT}")
    return study


def study_markdown(study: Json) -> str:
    """Title, date and hardware, the table of the variants, the sentences, and the runs that failed."""
    parts = [f"# {escaped(study['name'])}", escaped(_circumstances(study)), _table(study)]
    parts.append(f"{SCALE} {_noise(study)}{f' {FORGOTTEN}' if forgets(study) else ''}")
    said = [f"- {escaped(comparison['sentence'])}" for comparison in ordered(study)]
    parts += ["\n".join(said)] if said else []
    missing = [cell for _, cell in cells(study, "missing")]
    if missing:
        parts.append(f"Not finished: {len(missing)} of {len(list(cells(study)))} runs are not there yet.")
    failed = [f"- {escaped(variant)}, seed {cell['seed']}: {_reason(cell)}" for variant, cell in cells(study, "failed")]
    parts += ["Failed runs:", "\n".join(failed)] if failed else []
    return "\n\n".join(parts) + "\n"


SCALE = "Scores on dev, in points (hundredths of the metric), mean over seeds [95 % interval]."

FORGOTTEN = (
    "Forgotten: how far tasks end below their best score after any stage, in points, mean over all tasks but the last "
    "learned and over seeds."
)


def _noise(study: Json) -> str:
    if seed_noise(study) == "known":
        return "The intervals are over examples and seeds together."
    which = "One seed" if seed_noise(study) == "unknown" else "Where a variant has one seed"
    return f"{which}: seed noise is unknown, the intervals are over examples only, and nothing is claimed."


def _circumstances(study: Json) -> str:
    machine = study.get("environment") or {}
    found = [str(study.get("started") or "")[:10], machine.get("cpu"), machine.get("device")]
    found += [f"{key} {machine[key]}" for key in ("torch", "polytask") if machine.get(key)]
    found += [f"commit {str(machine['commit'])[:12]}"] if machine.get("commit") else []
    seeds = ", ".join(map(str, study["seeds"]))
    found += [f"seed {seeds}" if len(study["seeds"]) == 1 else f"seeds {seeds}"]
    return " · ".join(dict.fromkeys(str(part) for part in found if part))


def _table(study: Json) -> str:
    views = scored(study)
    heads = [f"{view} ({metric})" if metric else view for view, metric in views.items()]
    lost = ["Forgotten"] if forgets(study) else []
    lines = [["Variant", *heads, *lost, "Trainable parameters", "Examples/s", "Peak memory", "Time"]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for variant, found in study["variants"].items():
        name = f"{variant} (reference)" if variant == study["reference"] else variant
        scores, cost = found.get("scores") or {}, found.get("cost") or {}
        size = (cost.get("parameters") or {}).get("trainable")
        line = [name, *(with_interval(scores.get(view)) for view in views)]
        line += [points(cost.get("forgetting"))] if lost else []
        line += [count(size), speed(cost.get("examples_per_second"))]
        lines.append([*line, memory(cost.get("peak_memory_bytes")), seconds(cost.get("seconds"))])
    return "\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines)


def _reason(cell: Json) -> str:
    """The last line of the error, which is where Python says what it was."""
    lines = [line.strip() for line in (cell.get("error") or "").splitlines() if line.strip()]
    return escaped(lines[-1]) if lines else "no error text"


def escaped(text: str) -> str:
    """On one line, with nothing that Markdown would take for a cell's end, a tag, a link, code or emphasis."""
    text = " ".join(str(text).split())
    text = re.sub(r"([\\`*|~<]|(?<=\])[(\[]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return re.sub(r"&(?=#?\w+;)", "&amp;", re.sub(r"^([#>])", r"\\\1", text))


# --- what is in a study -----------------------------------------------------------------------------------------------


def scored(study: Json) -> dict[str, str]:
    """What is compared, and its metric: every task, and with several tasks their mean (whose metric is "")."""
    views = {task: metric_name(about) for task, about in study["tasks"].items()}
    return views | {MEAN: ""} if len(views) > 1 else views


def metric_name(task: Json) -> str:
    """The metric, and its direction where that is not the usual one."""
    return str(task["metric"]) if task.get("greater_is_better", True) else f"{task['metric']}, lower is better"


def forgets(study: Json) -> bool:
    """Whether runs of the study learned their tasks one after another."""
    return any(known((found.get("cost") or {}).get("forgetting")) for found in study["variants"].values())


def main_score(study: Json) -> str:
    """The mean of the tasks, or the only task. (Before the first run has finished the tasks are not known.)"""
    return next(reversed(scored(study)), MEAN)


def ordered(study: Json) -> list[Json]:
    """The comparisons: better ones, worse ones (the largest first), then the same, then what is undecided.

    In each part the mean of the tasks comes first.
    """
    found, rest = study.get("comparisons") or [], CLAIMS[2:]
    size = {id(c): 0.0 if c["claim"] in rest else -abs(c["difference"]) for c in found}
    return sorted(found, key=lambda c: (CLAIMS.index(c["claim"]), c["task"] != MEAN, size[id(c)]))


def seed_noise(study: Json) -> str:
    """ "known", "unknown" (one run of each variant), or "partly" known."""
    seen = {c["seed_noise_known"] for c in study.get("comparisons") or []} or {len(study["seeds"]) > 1}
    return "partly" if len(seen) > 1 else "known" if True in seen else "unknown"


def cells(study: Json, state: str | None = None) -> Iterator[tuple[str, Json]]:
    """(variant, cell) of all cells, or of those in one state."""
    for variant, found in study["variants"].items():
        yield from ((variant, cell) for cell in found["cells"] if state in (None, cell["state"]))


# --- how numbers are written ------------------------------------------------------------------------------------------


def known(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def points(value: Any, sign: bool = False) -> str:
    """86.1 for 0.861."""
    if not known(value):
        return ABSENT
    text = f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"
    return "0.0" if float(text) == 0 else text


def ends(found: Json, sign: bool = False) -> str:
    """[85.6, 86.5]"""
    return f"[{points(found['low'], sign)}, {points(found['high'], sign)}]"


def with_interval(score: Json | None) -> str:
    """86.1 [85.6, 86.5]"""
    return f"{points(score['mean'])} {ends(score)}" if score and known(score.get("mean")) else ABSENT


def count(value: Any) -> str:
    return f"{value:,.0f}" if known(value) else ABSENT


def speed(value: Any) -> str:
    return (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") if known(value) else ABSENT


def memory(value: Any) -> str:
    if not known(value):
        return ABSENT
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def seconds(value: Any) -> str:
    if not known(value):
        return ABSENT
    whole = round(value)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{value:.1f} s"


def chance(value: Any) -> str:
    """A p value."""
    return ("< 0.001" if value < 0.001 else f"{value:.3f}") if known(value) else ABSENT
