"""Program output that the pages quote is what the program prints."""

import ast
import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from polytask.cli.main import main
from polytask.evaluation.comparison.records import Comparison, TaskData
from polytask.evaluation.comparison.verdict import judge
from polytask.evaluation.forgetting import OldTask
from polytask.evaluation.metrics import all_metrics_for, primary_metric
from polytask.runs.gate import drop_message
from polytask.settings import AddSettings
from polytask.studies.sentences import sentence
from polytask.training.captured import reason_not_capturable, reason_not_divided
from polytask.types import LabelKind, MetricValue

ROOT = Path(__file__).parent.parent.parent


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The rows of all tables in the text, without their headings."""
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_what_init_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    text = page("your-own-files")
    (code,) = re.findall(r'^python -c "\n(.*?)^"', text, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^polytask (init recipe.yaml .*)$", text, re.MULTILINE)
    (quoted,) = re.findall(r"^    mood:\n(?:    .*\n)+", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "your-own-files.md", "exec"), {})
    monkeypatch.setattr(sys, "argv", ["polytask", *command.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out.startswith(re.sub(r"^    ", "", quoted, flags=re.MULTILINE))


def test_why_add_task_saves_no_model() -> None:
    (quoted,) = re.findall(
        r"^    error: no model was saved: (.*?)\n\n", page("adding-a-task"), re.MULTILINE | re.DOTALL
    )
    before, after, difference = (MetricValue(*values) for values in VALUES)
    message = drop_message({"opinion": OldTask("accuracy", 150, before, after, difference, False)}, MAX_DROP)
    assert " ".join(quoted.split()) == message


VALUES = [(0.6467, 0.56, 0.72), (0.44, 0.36, 0.52), (-0.2067, -0.284, -0.129)]
MAX_DROP = AddSettings(guarantee="measured", max_drop=5)


def comparison(seeds: int) -> Comparison:
    """A comparison to change: 100 examples, and another wrong one in every run."""
    gold = np.array([0, 1] * 50)
    runs = np.stack([np.where(np.arange(100) == seed, 1 - gold, gold) for seed in range(2 * seeds)])
    task = TaskData("T", "yes_no", 2, "accuracy", gold, {"B": runs[:seeds], "A": runs[seeds:]})
    (compared,) = judge([task], "B").comparisons
    return compared


def test_the_sentence_of_every_verdict() -> None:
    better = replace(comparison(3), difference=0.009, low=0.002, high=0.016, claim="better")
    same = replace(better, claim="same", difference=0.001, low=-0.002, high=0.004)
    two = replace(comparison(2), difference=0.183, low=-0.4, high=0.766, seeds_needed=5, seed_differences=(0.1, 0.2))
    one = replace(two, seed_noise_known=False, seeds=1, difference=-0.175, low=-0.24, high=-0.11)
    quoted = [row[1] for row in rows(page("comparing")) if row[1].startswith('"')]
    assert quoted == [f'"{sentence(verdict)}"' for verdict in (better, same, two, one)]


def test_every_reason_for_steps_that_are_not_captured() -> None:
    reasons = re.findall(r'return f?"(.*)"', inspect.getsource(reason_not_capturable))
    assert "only CUDA has graphs" in reasons[0]  # not printed: the first line is only printed on a GPU
    quoted = [row[1] for row in rows(page("speed"))]
    reasons += re.findall(r'return f?"(.*)"', inspect.getsource(reason_not_divided))
    for reason in reasons[1:]:
        pattern = re.sub(r"\\\{.*?\\\}", ".+", re.escape(reason))
        assert [quote for quote in quoted if re.fullmatch(pattern, quote)], f"docs/speed.md does not list: {reason}"


def test_every_finding_has_its_row() -> None:
    sources = [ROOT / "src" / "polytask" / "tasks" / f"{name}.py" for name in ("doctor", "odd_labels", "odd_texts")]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))]
    names = {n.value for n in nodes if isinstance(n, ast.Constant) and re.fullmatch("[a-z]+(_[a-z]+)*", str(n.value))}
    tables = page("data").partition("## Which files can be read")[0]
    explained = {name for row in rows(tables) for name in row[0].split(", ")} - {"finding"}
    assert explained <= names
    assert {name for name in names if "_" in name} <= explained


def test_every_metric_is_listed() -> None:
    listed = {}
    for kinds, metrics in (row for row in rows(page("data").partition("### Metrics")[2]) if len(row) == 2):
        listed |= {kind: re.findall(r"`([\w@]+)`", metrics) for kind in kinds.split(", ")}
    for kind in get_args(LabelKind):
        assert sorted(listed[kind]) == sorted(metric.name for metric in all_metrics_for(kind))
        assert listed[kind][0] == primary_metric(kind) if kind != "text" else "perplexity"


def test_every_module_that_a_page_names_is_there() -> None:
    for file in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        named = re.findall(r"`((?:\w+/)+\w+\.py)`", file.read_text(encoding="utf-8"))
        missing = [name for name in named if not any((ROOT / top / name).is_file() for top in ("", "src/polytask"))]
        assert not [name for name in missing if "uniform" not in name], f"{file.name}: {missing}"
