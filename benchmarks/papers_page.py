"""Writes docs/papers.md and its plots from results, published scores and claims. Runs nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from papers_claims import NOT_BY_SEEDS, NOT_KNOWN, VERDICTS, Claim, Judged, System, comparison_of, judge, read_systems
from papers_results import (
    ABSENT,
    TASKS,
    Result,
    Scores,
    decimals,
    has_training,
    machine,
    not_shown,
    published_scores,
    table,
    tasks_of,
)
from papers_studies import own_settings

from polytask.reports.svg import (
    BLUE,
    INK,
    LEGEND,
    ORANGE,
    TEXT,
    Axis,
    Plot,
    label,
    marker,
    svg_element,
    text_width,
)

PANEL, ROW = 175.0, 19.0  # points
NO_BREAK = "\N{NO-BREAK SPACE}"
DECIDED = VERDICTS[:2]
FEW_SEEDS = 10
OPEN = '"Seeds" is how many the undecided comparisons of a claim have, and "seeds needed" how many would decide it.'
HARMLESS = ("train.evaluate_train",)
"""Settings that change no training, so they are not listed as changes."""

INTRODUCTION = Path(__file__).parent / "papers_introduction.txt"


def write_page(results: Sequence[Result], out: Path) -> None:
    """Writes papers.md and images/papers-*.svg into a folder."""
    for name, text in files(results).items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")


def files(results: Sequence[Result]) -> dict[str, str]:
    """By path inside docs/: the page and its plots."""
    systems, published = read_systems(), published_scores()
    by_study = {study: [r for r in results if r["name"] == study] for s in systems.values() for study in s.studies}
    texts = {"papers.md": page(systems, by_study, published)}
    for study, own in by_study.items():
        if own:
            on_training_rows = any(study in system.on_training_rows for system in systems.values())
            texts[f"images/papers-{study}.svg"] = plot(study, own[-1], published.get(study, {}), on_training_rows)
    return texts


# --- the page ---------------------------------------------------------------------------------------------------------
def page(
    systems: Mapping[str, System], by_study: Mapping[str, Sequence[Result]], published: Mapping[str, Scores]
) -> str:
    run = sum(bool(own) for own in by_study.values())
    verdicts = {name: {c: verdict(claim, by_study) for c, claim in s.claims.items()} for name, s in systems.items()}
    introduction, explained = (
        INTRODUCTION.read_text(encoding="utf-8").format(run=run, all=len(by_study)).split("CLAIMS\n")
    )
    parts = [introduction, *at_a_glance(systems, by_study, verdicts), explained]
    for name, system in systems.items():
        parts += [f"## {name}", system.about, system.differs]
        parts += [f"Not tested: {system.untested.rstrip('.')}."] if system.untested else []
        for study, heading in system.studies.items():
            if by_study[study]:
                scores, on_training_rows = published.get(study, {}), study in system.on_training_rows
                parts += study_part(study, heading, by_study[study], scores, on_training_rows)
        missing = [f"{heading} (`{study}`)" for study, heading in system.studies.items() if not by_study[study]]
        parts += [f"Not run yet: {'; '.join(missing)}."] if missing else []
        parts += [f"### Claims of {name}", claims_table(system.claims, verdicts[name])]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def verdict(claim: Claim, by_study: Mapping[str, Sequence[Result]]) -> Judged:
    """The verdict by the last result of each study that has the claim's rows."""
    return judge(claim, {study: last_with_rows(claim, study, own) for study, own in by_study.items() if own})


def last_with_rows(claim: Claim, study: str, results: Sequence[Result]) -> Result:
    """The result with the most comparisons of a claim (a study may have been cut off); of several, the last one.

    One that is not the last is marked, because the page shows the scores of the last one.
    """
    tests = [test for test in claim.tests if test.study == study]
    found = max(reversed(results), key=lambda result: sum(comparison_of(test, result) is not None for test in tests))
    return found if found is results[-1] else {**found, "earlier": True}


def at_a_glance(
    systems: Mapping[str, System],
    by_study: Mapping[str, Sequence[Result]],
    verdicts: Mapping[str, Mapping[str, Judged]],
) -> list[str]:
    """The numbers of verdicts, and all claims: those that are decided, and the open ones, the fewest seeds first."""
    every = [judged for own in verdicts.values() for judged in own.values()]
    counts = Counter(judged.verdict for judged in every)
    named = {"holds": "hold", "does not hold": "do not hold", "not run yet": "are not run yet"}
    shown = [f"**{counts[one]}** {named.get(one, one)}" for one in VERDICTS if counts[one]]
    parts = [f"Of {len(every)} claims, {', '.join(shown)}.", summary(systems, by_study, verdicts)]
    rows = [(name, number, verdicts[name][number]) for name, system in systems.items() for number in system.claims]
    rows.sort(key=lambda row: (VERDICTS.index(row[2].verdict), effort(row[2])))
    decided = ["| | claim | verdict | because |", "|---" * 4 + "|"]
    open_ones = ["| | claim | verdict | seeds | seeds needed |", "|---" * 5 + "|"]
    for name, number, judged in rows:
        verdict_cell = judged.verdict.capitalize().replace(" ", NO_BREAK)
        start = f"| [{number}](#claims-of-{name}) | {systems[name].claims[number].text} | **{verdict_cell}** |"
        if judged.verdict in DECIDED:
            decided.append(f"{start} {judged.sentence or judged.reason.rstrip('.')}. |")
        else:
            open_ones.append(f"{start} {seeds_cells(judged)} |")
    parts += ["\n".join(decided)] if len(decided) > 2 else []
    if len(open_ones) > 2:
        parts += [*why_open(every), OPEN, "\n".join(open_ones)]
    return parts


def effort(judged: Judged) -> float:
    """The seeds that would decide an open claim, for sorting; those that no number of seeds decides come last."""
    if isinstance(judged.needed, int):
        return judged.needed
    return 1e3 + (NOT_BY_SEEDS, NOT_KNOWN, "").index(judged.needed)


def why_open(every: Sequence[Judged]) -> list[str]:
    """What open claims need, as a list with their numbers."""
    open_ones = [judged for judged in every if judged.verdict == "cannot be told"]
    numbers = [judged.needed for judged in open_ones if isinstance(judged.needed, int)]
    others = Counter(judged.needed for judged in open_ones if not isinstance(judged.needed, int))
    reasons = [
        (sum(number <= FEW_SEEDS for number in numbers), f"need at most {FEW_SEEDS} seeds to be decided"),
        (sum(number > FEW_SEEDS for number in numbers), "need more seeds than that"),
        (others[NOT_BY_SEEDS], "rest on a difference that is too small for these dev sets, whatever the seeds"),
        (others[NOT_KNOWN], "need a number of seeds that is not known"),
        (others[""], "are not about scores that runs like these have, or their study was not run"),
    ]
    listed = [f"- {count} {reason}" for count, reason in reasons if count]
    return ["Of the claims that cannot be told, by the differences seen so far:", "\n".join(listed)] if listed else []


def seeds_cells(judged: Judged) -> str:
    """The seeds of an open claim, and those that would decide it."""
    if judged.seeds is None:
        return f"{ABSENT} | {ABSENT}"
    return f"{judged.seeds} | {judged.needed}"


def summary(
    systems: Mapping[str, System],
    by_study: Mapping[str, Sequence[Result]],
    verdicts: Mapping[str, Mapping[str, Judged]],
) -> str:
    lines = ["| system | studies run | claims | " + " | ".join(VERDICTS) + " |", "|---" * (3 + len(VERDICTS)) + "|"]
    for name, system in systems.items():
        run = sum(bool(by_study[study]) for study in system.studies)
        counts = Counter(judged.verdict for judged in verdicts[name].values())
        numbers = [f"{run} of {len(system.studies)}", len(system.claims), *(counts[one] for one in VERDICTS)]
        lines.append(f"| [{name}](#{name}) | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def study_part(
    study: str, heading: str, results: Sequence[Result], published: Scores, on_training_rows: bool
) -> list[str]:
    """The last result; the files of earlier ones, with other settings, are named."""
    *earlier, result = results
    parts = [f"### {heading}", setting(result), table(result, published, on_training_rows)]
    if on_training_rows and not has_training(result):
        parts += ["These results have no scores of ours on training rows."]
    parts += shortfall(result, published, on_training_rows)
    if earlier:
        named = [f"[{one['date']}](../benchmarks/{one['file']}), with {changes_of(one)}" for one in earlier]
        parts += [f"Earlier runs: {'; '.join(named)}."]
    crosses = "cross: published; " if published else ""
    caption = f"{heading}: {crosses}point: ours, with its 95 % interval"
    return [*parts, f"![{caption}](images/papers-{study}.svg)"]


def setting(result: Result) -> str:
    seeds = ", ".join(map(str, result["seeds"]))
    runs = {name: variant["runs"] for name, variant in result["variants"].items()}
    unfinished = [f"{name} {done} of {planned}" for name, (done, planned) in runs.items() if done < planned]
    rest = f"; finished runs: {', '.join(unfinished)}" if unfinished else ""
    return (
        f"**With {changes_of(result)}**; seeds {seeds}, reference {result['reference']}; {result['date']}, "
        f"{machine(result['environment'])}, torch {result['environment']['torch']}{rest}."
    )


def changes_of(result: Result) -> str:
    """The settings of a result, as a phrase: those of the recipes, or what was changed."""
    texts = [text for change in result["changes"]["set"] if (text := change_in_words(result, change))]
    if result["changes"]["rate"] != 1:
        texts.append(f"{result['changes']['rate']:g} times the learning rate")
    return ", ".join(texts) or "the settings of the recipes"


def change_in_words(result: Result, change: str) -> str:
    """A changed field with its values in the recipes; empty if the change reaches no row, or no training.

    Rows that set the field themselves keep their value.
    """
    field, _, value = change.partition("=")
    rows = own_settings(result["name"]).values()
    own = {str(row[field]) for row in rows if field in row}
    every_row = bool(rows) and all(field in row for row in rows)
    changed = [old for old in result["changes"]["recipes"].get(field, ()) if old not in own]
    if field in HARMLESS or every_row or set(changed) == {value}:
        return ""
    named = ", ".join(old for old in changed if old != "None")
    return f"`{change}`" + (f" (recipes: {named})" if named else "")


def shortfall(result: Result, published: Scores, on_training_rows: bool) -> list[str]:
    """A sentence on the score that is furthest below its published one."""
    gaps = []
    for name, tasks in published.items():
        variant = result["variants"].get(name, {})
        for task, score in tasks.items():
            ours = variant.get("training" if on_training_rows else "scores", {}).get(task)
            if ours is not None and ours[0] < score:
                text = f"{TASKS[task]} of {name}, {decimals(ours[0])} instead of {decimals(score)}"
                gaps.append((score - ours[0], text))
    return [f"Furthest below the published scores: {max(gaps)[1]}."] if gaps else []


def claims_table(claims: Mapping[str, Claim], verdicts: Mapping[str, Judged]) -> str:
    lines = ["| | claim | verdict |", "|---|---|---|"]
    for number, claim in claims.items():
        judged = verdicts[number]
        only = judged.shown[0] if len(judged.shown) == 1 and not judged.sentence else ""
        sentences = [f"{part}." for part in (judged.sentence or only, judged.reason.rstrip(".")) if part]
        listed = f"<details><summary>All comparisons</summary>{'<br>'.join(judged.shown)}</details>"
        listed = listed if judged.comparisons > 1 and not only else ""
        lines.append(f"| {number} | {claim.text} | **{judged.verdict.capitalize()}**: {' '.join(sentences)}{listed} |")
    return "\n".join(lines)


# --- the plots --------------------------------------------------------------------------------------------------------
def plot(study: str, result: Result, published: Scores, on_training_rows: bool) -> str:
    """One panel for each task, a line for each row: the published score as a cross, ours with intervals."""
    rows = list(result["variants"])
    height = 48 + ROW * len(rows)
    names = max(map(text_width, rows)) + TEXT
    parts = ['<rect width="100%" height="100%" fill="#ffffff"/>']
    left = 0.0
    for number, task in enumerate(tasks_of(result)):
        width = PANEL + (names if number == 0 else 0)
        shown = panel(task, result, published, on_training_rows)
        shown.width, shown.height = width, height
        shown.y.names = [(float(row), name if number == 0 else "") for row, name in enumerate(rows)]
        shown.y.label = "" if number else " "  # room, because the width of a name is an estimate
        # The number at the end of an axis may reach into the next panel.
        box = f'<svg overflow="visible" x="{left:g}" y="0" width="{width:g}" height="{height:g}" '
        parts.append(shown.render(f"{study}-{task}").replace("<svg ", box, 1))
        left += width
    lines = legend(result, bool(published), on_training_rows)
    for number, (colour, shape, text) in enumerate(lines):
        down = height + LEGEND + 1.5 * LEGEND * number
        parts += [marker(10, down, shape, 7, colour), label(20, down, text, LEGEND)]
    height += LEGEND + 1.5 * LEGEND * len(lines)
    whole = svg_element(f"papers-{study}", f"Scores of {study}", left, height, parts)
    size = f'width="{1.2 * left:.0f}" height="{1.2 * height:.0f}"'
    fonts = 'font-family="system-ui,-apple-system,Segoe UI,Roboto,sans-serif"'
    return plain_colours(whole.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} {fonts} ', 1)) + "\n"


def panel(task: str, result: Result, published: Scores, on_training_rows: bool) -> Plot:
    rows: Mapping[str, Any] = result["variants"]
    drawn = Plot(TASKS[task], x=Axis(most_ticks=4, margin=0.08), y=Axis(limits=(len(rows) - 0.5, -0.5), grid=False))
    crosses = [(published[name][task], float(row)) for row, name in enumerate(rows) if task in published.get(name, {})]
    drawn.markers([x for x, _ in crosses], [y for _, y in crosses], INK, "X", 10)
    hidden = not_shown(result, published)
    for row, (name, variant) in enumerate(rows.items()):
        score = variant["scores"].get(task)
        if score and task not in hidden.get(name, ()):
            drawn.line(score[1:], [row, row], BLUE, 1.8)
            drawn.markers([score[0]], [row], BLUE, "o", 6)
        if on_training_rows and (score := variant["training"].get(task)):
            drawn.markers([score[0]], [row], ORANGE, "s", 7)
    return drawn


def legend(result: Result, published: bool, on_training_rows: bool) -> list[tuple[str, str, str]]:
    """Colour, marker and text of each line of the legend."""
    rows = " (training rows)" if on_training_rows else ""
    lines = [(INK, "X", f"published{rows}")] if published else []
    lines.append((BLUE, "o", "ours (dev)"))
    if on_training_rows and has_training(result):
        lines.append((ORANGE, "s", "ours (training rows)"))
    return lines


def plain_colours(text: str) -> str:
    """The plot with fixed colours, for a file that has no page around it."""
    for variable, colour in (("--ink", "#1c2434"), ("--grid", "#cdd4e3"), ("--page", "#ffffff")):
        text = text.replace(f"var({variable})", colour)
    return text
