"""Writes report.html of a tuning: one self-contained page, in the style of a study's. Reads `tune.json` only."""

from pathlib import Path
from typing import Any

from polytask.disk.atomic import write_atomically
from polytask.disk.json_files import read_json
from polytask.evaluation.comparison.records import MEAN
from polytask.studies import charts as study_charts
from polytask.studies.page import place, templates
from polytask.text.controls import visible
from polytask.tuning import charts
from polytask.tuning.fields import text_of


def write_page(folder: Path) -> Path:
    """Writes `report.html` into a tuning's folder, from its `tune.json`."""
    tune = read_json(folder / "tune.json")
    pages = templates(Path(__file__).parent)
    pages.filters |= {"text_of": text_of, "place": place}
    page = pages.get_template("tune.html.jinja").render(
        tune=tune,
        trials=_ranked(tune),
        running=sum(trial["state"] == "running" for trial in tune["trials"]),
        failed=[trial for trial in tune["trials"] if trial["error"]],
        views=_views(tune),
        progress=charts.best_so_far(tune) if any(t["scores"] for t in tune["trials"]) else "",
        importance=charts.importance(tune) if tune["importances"] else "",
        slices=charts.slices(tune) if any("1" in t["scores"] for t in tune["trials"]) else [],
        forests=_forests(tune),
    )
    target = folder / "report.html"
    write_atomically(target, visible(page))
    return target


def _ranked(tune: Any) -> list[Any]:
    """Sorts the trials: those that were trained longest first, and the best of them first."""

    def rank(trial: Any) -> tuple[int, float]:
        longest = max(map(int, trial["scores"]), default=0)
        return -longest, -trial["scores"].get(str(longest), 0.0)

    return sorted(tune["trials"], key=rank)


def _views(tune: Any) -> list[str]:
    """Returns the scores of the finalists: the mean of the tasks first."""
    views = dict.fromkeys(view for one in tune["finalists"].values() for view in one["dev"])
    return sorted(views, key=lambda view: view != MEAN)


def _forests(tune: Any) -> list[str]:
    """Draws the finalists' differences to the recipe, on the rows that decide and on the search's dev rows."""
    plots = []
    for part, rows in (("held_back", tune["rows"]), ("dev", "the search's dev rows")):
        own = [c for c in tune["comparisons"][part] if c["task"] == tune["view"]]
        if own:
            title = f"{place(tune['view'])}, on {rows}"
            plots.append(study_charts.forest(f"forest-{part}", title, own))
    return plots
