"""The result of a tuning: who has won, whether it beats the recipe on held-back rows, best.yaml and tune.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from polytask.disk.atomic import write_atomically
from polytask.evaluation.comparison.records import MEAN, Verdict
from polytask.studies.cells import Cell
from polytask.studies.results import (
    FinishedRun,
    comparisons_json,
    environment_of,
    finished_runs,
    scores_json,
    verdict_of,
)
from polytask.studies.table import with_interval
from polytask.studies.throughput import finish_times
from polytask.text.controls import visible
from polytask.tuning.fields import text_of
from polytask.tuning.page import write_page
from polytask.tuning.plan import START, TunePlan
from polytask.tuning.trials import Trial, Trials

FORMAT = 1
ANSWERS = {"better": "yes", "worse": "no", "same": "no", "undecided": "cannot be told"}
Json = dict[str, Any]


@dataclass(frozen=True)
class Tuned:
    """The result of a tuning."""

    folder: Path
    winner: str
    """`trial 3`, or `recipe` if no trial was better."""
    settings: Mapping[str, Any]
    """The fields that the winner changes, by dotted name."""
    answer: str
    """Whether the winner beats the recipe on held-back rows: yes, no or cannot be told."""
    sentence: str
    """The answer with its reason."""

    @property
    def best(self) -> Path:
        """The file of the winning recipe."""
        return self.folder / "best.yaml"

    @property
    def page(self) -> Path:
        return self.folder / "report.html"


def write_result(
    plan: TunePlan, trials: Trials, final: Mapping[str, Sequence[Cell]], budget: float, workers: int
) -> Tuned:
    """Writes best.yaml, tune.json and report.html from what has finished."""
    known = trials.all()
    runs = _complete(finished_runs([cell for cells in final.values() for cell in cells]))
    dev = verdict_of(runs, START, tasks=plan.tasks) if runs else None
    held_back = verdict_of(runs, START, split="test", tasks=plan.tasks) if runs and plan.hold_back != 0 else None
    winner = _winner(plan, runs, dev, known)
    changed = {} if winner == START else dict(known[int(winner.removeprefix("trial "))].settings)
    changed = {field: value for field, value in changed.items() if value != plan.start[field]}
    judged = dev if plan.hold_back == 0 else held_back
    answer, sentence = _answer(plan, winner, judged, known)
    content = {
        "format": FORMAT,
        "name": plan.recipe.name,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "budget": budget,
        "used": max(finish_times(plan.folder).values(), default=0.0),
        "workers": workers,
        "hold_back": plan.hold_back,
        "rows": rows_name(plan),
        "view": plan.view,
        "lower_is_better": plan.lower_is_better,
        "fields": {field.field: str(field) for field in plan.fields},
        "log_fields": [field.field for field in plan.fields if getattr(field, "log", False)],
        "start": plan.start,
        "trials": [_trial_json(trial) for trial in known],
        "times": finish_times(plan.folder),
        "importances": trials.importances(),
        "finalists": _finalists_json(final, known, runs, dev, held_back),
        "comparisons": {"dev": comparisons_json(dev), "held_back": comparisons_json(held_back, rows_name(plan))},
        "winner": winner,
        "changed": changed,
        "answer": answer,
        "sentence": sentence,
        "environment": environment_of(runs),
    }
    write_atomically(plan.folder / "tune.json", json.dumps(content, indent=1, ensure_ascii=False))
    write_atomically(plan.folder / "best.yaml", _best_yaml(plan, content))
    write_page(plan.folder)
    return Tuned(plan.folder, winner, changed, answer, sentence)


def _complete(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Returns the runs of the seeds that the recipe and the finalists have in common.

    A finalist of which runs have failed is left out, so that all have the same seeds.
    """
    seeds: dict[str, set[int]] = {START: set()}
    for run in runs:
        seeds.setdefault(run.variant, set()).add(run.seed)
    most = max((len(own) for variant, own in seeds.items() if variant != START), default=0)
    kept = {variant: own for variant, own in seeds.items() if variant != START and len(own) == most}
    common = seeds[START].intersection(*kept.values()) if kept else set()
    return [run for run in runs if run.variant in (START, *kept) and run.seed in common]


def _winner(plan: TunePlan, runs: Sequence[FinishedRun], dev: Verdict | None, trials: Sequence[Trial]) -> str:
    """Returns the finalist with the highest mean over the fresh seeds; without final runs, the best of the search."""
    if dev is None:
        scored = [trial for trial in trials if trial.scores]
        best = max(scored, key=lambda trial: trial.rank, default=None)
        return START if best is None or best.settings == plan.start else f"trial {best.number}"
    scores = {}
    for variant in dict.fromkeys(run.variant for run in runs):
        own = [plan.score(run.summary) for run in runs if run.variant == variant]
        scores[variant] = sum(own) / len(own)
    return max(scores, key=lambda variant: (scores[variant], variant == START))


def rows_name(plan: TunePlan) -> str:
    return {"test": "test rows", 0: "dev rows"}.get(plan.hold_back, "held-back rows")


def _answer(plan: TunePlan, winner: str, verdict: Verdict | None, trials: Sequence[Trial]) -> tuple[str, str]:
    question = f"Beats the recipe on {rows_name(plan)}"
    if not any(trial.scores for trial in trials):
        return "cannot be told", f"{question}: cannot be told. No trial has finished."
    if verdict is None:
        reason = f"There are no final runs with fresh seeds; {winner} has the best score of the search."
        return "cannot be told", f"{question}: cannot be told. {reason}"
    if winner == START:
        return "no", f"{question}: no. With fresh seeds, no finalist has a higher dev score than the recipe itself."
    (found,) = [
        c for c in comparisons_json(verdict, rows_name(plan)) if c["variant"] == winner and c["task"] == plan.view
    ]
    answer = ANSWERS[found["claim"]]
    reason = found["sentence"][0].upper() + found["sentence"][1:]
    chosen = " These rows also chose the winner, so its score is too optimistic." if plan.hold_back == 0 else ""
    return answer, f"{question}: {answer}. {reason}.{chosen}"


def _trial_json(trial: Trial) -> Json:
    return {
        "number": trial.number,
        "bracket": trial.bracket,
        "settings": dict(trial.settings),
        "state": trial.state,
        "scores": {str(ninths): score for ninths, score in trial.scores.items()},
        "runs": {str(ninths): key for ninths, key in trial.runs.items()},
        "error": trial.error,
    }


def _finalists_json(
    final: Mapping[str, Sequence[Cell]],
    trials: Sequence[Trial],
    runs: Sequence[FinishedRun],
    dev: Verdict | None,
    held_back: Verdict | None,
) -> Json:
    finalists: Json = {}
    for name in final:
        own = [run for run in runs if run.variant == name]
        finalists[name] = {
            "settings": {} if name == START else dict(trials[int(name.removeprefix("trial "))].settings),
            "seeds": [run.seed for run in own],
            "runs": [f"cells/{run.folder.name}" for run in own],
            "dev": scores_json(dev, name),
            "held_back": scores_json(held_back, name),
        }
    return finalists


# --- best.yaml --------------------------------------------------------------------------------------------------------
def _best_yaml(plan: TunePlan, content: Json) -> str:
    """Returns the winning recipe on the user's own files; comments say what was changed, and the scores."""
    recipe = {**plan.settled(content["changed"]), "name": f"{plan.recipe.name}-tuned"}
    lines = [
        f"Written by polytask tune on {content['written'][:10]}: the winner is {content['winner']} "
        f"among {len(content['trials'])} trials.",
        content["sentence"],
        "",
        *_changes(content),
        "",
        *_scores(content),
        "A run of the search is repeated exactly by: polytask train cells/KEY.yaml --run DIR (KEY: see report.html)",
    ]
    comments = "".join(f"# {' '.join(visible(line).split())}".rstrip() + "\n" for line in lines)
    return comments + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)


def _changes(content: Json) -> list[str]:
    if not content["changed"]:
        return ["Nothing is changed."]
    start = content["start"]
    return [f"{field}: {text_of(value)} (was {text_of(start[field])})" for field, value in content["changed"].items()]


def _scores(content: Json) -> list[str]:
    """Returns a line of scores for each kind of rows and each view."""
    finalists = {name: one for name, one in content["finalists"].items() if name in (START, content["winner"])}
    seeds = finalists.get(START, {}).get("seeds")
    if not seeds:
        return ["There are no scores with fresh seeds."]
    lines = [f"Scores in points, mean over the seeds {', '.join(map(str, seeds))} [95 % interval]:"]
    for part, rows in (("dev", "the search's dev rows"), ("held_back", content["rows"])):
        views = finalists[START][part]
        for view in sorted(views, key=lambda view: view != MEAN):
            values = [f"{name} {with_interval(one[part].get(view))}" for name, one in finalists.items()]
            lines.append(f"{rows}, {'mean of the tasks' if view == MEAN else view}: {', '.join(values)}")
    return lines
