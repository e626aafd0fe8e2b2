"""Results of the studies of recipes/papers/ in the compact form that docs/papers.md is made from, and their tables.

A result is one study as it was run once: its scores [mean, low, high], its comparisons, and what was changed. Knows
no claims.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml
from papers_studies import untrained
from scipy import stats

HERE = Path(__file__).parent
Result = Mapping[str, Any]
Scores = Mapping[str, Mapping[str, float]]
"""By variant and task."""
TASKS = {
    **{"sst": "SST", "quora": "Quora", "sts": "STS"},
    **{"mrpc": "MRPC", "cola": "CoLA", "rte": "RTE", "trec": "TREC", "sick": "SICK", "texts": "texts"},
}
ABSENT = "\N{EN DASH}"
MARKS = {"better": " ▲", "worse": " ▼", "same": " =", "undecided": ""}
LEVEL = 0.05
CPU = "cpu"
RECORDED = ("polytask", "commit", "python", "torch", "device", "cpu", "cores")
"""What a result keeps of its environment."""
SCORE, GAP, SPREAD, FORGOTTEN, PERPLEXITY = "score", "gap", "spread", "forgetting", "perplexity"
"""What a comparison is about: the score; the score on training rows minus that on dev; the deviation over seeds; how
far a task of a sequence ends below its best score; the logarithm of the perplexity of plain text, which is its loss."""
BySeed = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By variant, task and seed."""


def read_results() -> list[Result]:
    """The results in benchmarks/papers-*.json, the oldest file first, each with the name of its dated file."""
    return [
        {**result, "file": dated_file(file, result["environment"]["device"])}
        for file in sorted(HERE.glob("papers-*.json"))
        for result in json.loads(file.read_text(encoding="utf-8"))
    ]


def dated_file(results: Path, device: str) -> str:
    """The file with commands and tables: 2026-11-16-papers-2-h200.md for papers-2026-11-16b.json."""
    name = results.stem.removeprefix("papers-")
    date, letter = name[:10], name[10:]
    number = f"{' abcdefgh'.index(letter)}-" if letter else ""
    return f"{date}-papers-{number}{'cpu' if device == CPU else 'h200'}.md"


def machine(environment: Mapping[str, Any]) -> str:
    """What a study ran on, in words. Results from before 2026-11-20 do not have the number of cores."""
    if environment["device"] == CPU:
        return f"{environment['cores']} CPU cores" if environment.get("cores") else "a CPU"
    return "one " + str(environment["device"]).removeprefix("cuda (").removesuffix(")")


def published_scores() -> dict[str, Scores]:
    """By study, variant and task: the published scores."""
    content: dict[str, Scores] = yaml.safe_load((HERE / "published.yaml").read_text(encoding="utf-8"))
    return content


# --- from study.json --------------------------------------------------------------------------------------------------
def pack(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The results in these files, and in all JSON files of these folders."""
    for path in paths:
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            yield packed(json.loads(file.read_text(encoding="utf-8")))


def packed(study: Mapping[str, Any]) -> dict[str, Any]:
    """A result from the content of a study.json that `papers.py run` has completed."""
    training = study.get("training", {})
    environment = study["environment"]
    comparisons = [{**short(c), "rows": "dev"} for c in [*study["comparisons"], *study.get("pairs", [])]]
    return {
        "name": study["name"],
        "date": study["started"][:10],
        "environment": {key: environment.get(key) for key in RECORDED},
        "changes": without_folders(study.get("changes", {"set": [], "rate": 1, "recipes": {}})),
        "seeds": study["seeds"],
        "reference": study["reference"],
        "examples": {task: about["examples"] for task, about in study["tasks"].items()},
        "variants": {
            name: packed_variant(record, training.get(name, {}), study["curves"].get(name, {}))
            for name, record in study["variants"].items()
        },
        "comparisons": comparisons + comparisons_over_seeds(study),
    }


def comparisons_over_seeds(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The comparisons with the reference on training rows, and of what else claims compare."""
    reference, margin = study["reference"], study["margin"] / 100
    found = training_comparisons(study.get("training", {}), reference, margin)
    for of, values in study.get("measured", {}).items():
        if of == SPREAD:
            found += spread_comparisons(values, reference)
        else:
            made = training_comparisons(values, reference, margin)
            found += [{**one, "rows": "dev", "of": of} for one in made]
    return found


def without_folders(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes with a file or a folder of a model written as its name, also among the recipes' own values.

    One that is the recipes' own value is no change.
    """
    named = [(field, value.rsplit("/", 1)[-1]) for field, value in (one.split("=", 1) for one in changes["set"])]
    changed = [f"{field}={value}" for field, value in named if changes["recipes"].get(field) != [value]]
    recipes = {
        field: [own.rsplit("/", 1)[-1] if own.startswith("/") else own for own in values]
        for field, values in changes["recipes"].items()
    }
    return {**changes, "set": changed, "recipes": recipes}


def packed_variant(
    record: Mapping[str, Any], training: Mapping[str, Mapping[str, float]], curves: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "runs": [sum(cell["state"] == "done" for cell in record["cells"]), len(record["cells"])],
        "scores": {task: interval(score) for task, score in record["scores"].items()},
        "seeds": {task: [rounded(value) for value in score["values"]] for task, score in record["scores"].items()},
        "training": {task: over_seeds(list(values.values())) for task, values in training.items()},
        "start": at_start(curves),
    }


def rounded(value: float) -> float:
    return round(value, 6)


def interval(score: Mapping[str, Any]) -> list[float]:
    return [rounded(score[key]) for key in ("mean", "low", "high")]


def short(comparison: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        key: comparison[key] for key in ("variant", "reference", "task", "claim", "comparisons") if key in comparison
    }
    kept = ("p", "p_same", "seed_deviation", "example_error")
    noise = {key: float(f"{comparison[key]:.3g}") for key in kept if comparison.get(key) is not None}
    return {**names, **{key: rounded(comparison[key]) for key in ("difference", "low", "high")}, **noise}


def at_start(curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> dict[str, float]:
    """By task: the mean over seeds of the dev score before the first step."""
    tasks = dict.fromkeys(task for seed in curves.values() for task in seed)
    return {task: rounded(mean(seed[task][0][1] for seed in curves.values())) for task in tasks}


def over_seeds(values: Sequence[float], level: float = LEVEL) -> list[float]:
    """The mean with an interval over seeds (Student's t); without one seed more, the interval is the mean."""
    middle = mean(values)
    half = 0.0
    if len(values) > 1:
        half = float(stats.t.ppf(1 - level / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return [rounded(middle), rounded(middle - half), rounded(middle + half)]


def training_comparisons(training: BySeed, reference: str, margin: float) -> list[dict[str, Any]]:
    """Comparisons with the reference on training rows, paired by seed, with Bonferroni's correction.

    The rows are the same in all runs, so the noise is that of seeds only.
    """
    pairs = [
        (variant, task, [values[seed] - training[reference][task][seed] for seed in values])
        for variant, tasks in training.items()
        for task, values in tasks.items()
        if variant != reference and values.keys() == training.get(reference, {}).get(task, {}).keys()
    ]
    pairs = [pair for pair in pairs if len(pair[2]) > 1]
    found = []
    for variant, task, differences in pairs:
        middle, low, high = over_seeds(differences)
        _, surely_low, surely_high = over_seeds(differences, LEVEL / len(pairs))
        claim = "better" if surely_low > 0 else "worse" if surely_high < 0 else "undecided"
        if claim == "undecided" and -margin < surely_low and surely_high < margin:
            claim = "same"
        names = {"variant": variant, "reference": reference, "task": task, "claim": claim}
        found.append({**names, "difference": middle, "low": low, "high": high, "rows": "train"})
    return found


def p_over_seeds(difference: float, half: float, seeds: int, margin: float) -> tuple[float, float]:
    """The p values of a difference and of "the same", given half the width of a 95 % interval of `over_seeds`."""
    room = max(margin - abs(difference), 0.0)
    if half == 0:
        return float(difference == 0), float(room == 0)
    at_level = float(stats.t.ppf(1 - LEVEL / 2, seeds - 1))
    p, p_same = (float(2 * stats.t.sf(at_level * size / half, seeds - 1)) for size in (abs(difference), room))
    return p, p_same


def spread_comparisons(scores: BySeed, reference: str) -> list[dict[str, Any]]:
    """Comparisons of the deviation over seeds with the reference's: `log(s_reference / s)`, so that more is steadier.

    The interval is that of the F test for two variances, with Bonferroni's correction. It assumes normal scores, and
    ten seeds can only tell deviations that differ by a factor of two or more.
    """
    pairs = [
        (variant, task, list(values.values()), list(scores[reference][task].values()))
        for variant, tasks in scores.items()
        for task, values in tasks.items()
        if variant != reference and len(values) > 1 and len(scores.get(reference, {}).get(task, {})) > 1
    ]
    found = []
    for variant, task, own, other in pairs:
        middle, low, high = log_ratio(other, own, LEVEL)
        _, surely_low, surely_high = log_ratio(other, own, LEVEL / len(pairs))
        claim = "better" if surely_low > 0 else "worse" if surely_high < 0 else "undecided"
        names = {"variant": variant, "reference": reference, "task": task, "claim": claim}
        found.append({**names, "difference": middle, "low": low, "high": high, "rows": "dev", "of": SPREAD})
    return found


def log_ratio(one: Sequence[float], two: Sequence[float], level: float) -> tuple[float, float, float]:
    """The logarithm of the ratio of two deviations, with its interval; numbers that are all equal count as 1e-6."""
    middle = math.log(max(stdev(one), 1e-6) / max(stdev(two), 1e-6))
    freedom = len(one) - 1, len(two) - 1
    low, high = (middle - 0.5 * math.log(float(stats.f.ppf(p, *freedom))) for p in (1 - level / 2, level / 2))
    return rounded(middle), rounded(low), rounded(high)


# --- tables -----------------------------------------------------------------------------------------------------------
def table(result: Result, published: Scores, on_training_rows: bool = False) -> str:
    """The rows of a study as Markdown: published scores next to ours.

    `on_training_rows`: the published scores are those; ours on dev get columns of their own.
    """
    reference = result["reference"]
    claims = {
        (c["variant"], c["task"], c["rows"]): c["claim"] for c in result["comparisons"] if c["reference"] == reference
    }
    with_training = on_training_rows and has_training(result)
    tasks, hidden = tasks_of(result), not_shown(result, published)
    columns = {task: columns_of(task, published, on_training_rows, with_training) for task in tasks}
    lines = ["| row | " + " | ".join(f"{TASKS[task]}{kind}" for task in tasks for kind in columns[task]) + " |"]
    lines += ["|---" * (sum(map(len, columns.values())) + 1) + "|"]
    for name, variant in result["variants"].items():
        cells = [name]
        for task in tasks:
            there = published.get(name, {})
            if len(columns[task]) > 1:
                cells.append(decimals(there[task]) if task in there else ABSENT)
            if with_training:
                cells.append(scored(variant["training"].get(task), claims.get((name, task, "train"))))
            claim = claims.get((name, task, "dev")) if task not in hidden.get(reference, ()) else None
            cells.append(ABSENT if task in hidden.get(name, ()) else scored(variant["scores"].get(task), claim))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def columns_of(task: str, published: Scores, on_training_rows: bool, with_training: bool) -> list[str]:
    """The headings of a task's columns; one column for a task without published scores."""
    if on_training_rows:
        return [" published<br>(training rows)", *[" ours<br>(training rows)"] * with_training, " ours<br>(dev)"]
    return ["<br>published", "<br>ours"] if any(task in scores for scores in published.values()) else ["<br>ours"]


def tasks_of(result: Result) -> list[str]:
    """The tasks of a study, in the order of TASKS."""
    return [task for task in TASKS if task in result["examples"]]


def has_training(result: Result) -> bool:
    """Whether a result has scores on training rows."""
    return any(variant["training"] for variant in result["variants"].values())


def not_shown(result: Result, published: Scores) -> dict[str, set[str]]:
    """By variant: the tasks that were not trained, whose scores are those of untrained heads, if none is published."""
    return {name: tasks - published.get(name, {}).keys() for name, tasks in untrained(result["name"]).items()}


def decimals(value: float) -> str:
    """A score as .512 or -.057."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def scored(score: Sequence[float] | None, claim: str | None) -> str:
    """A mean with its interval; ▲ and ▼ mark what is better or worse than the reference."""
    if score is None or not all(map(math.isfinite, score)):
        return ABSENT
    highest = min(score[2], max(score[0], 1.0))  # the interval of a few seeds can exceed 1, which no score can
    middle, low, high = map(decimals, (score[0], score[1], highest))
    return f"{middle} [{low}, {high}]{MARKS[claim] if claim else ''}".replace(" ", "\N{NO-BREAK SPACE}")
