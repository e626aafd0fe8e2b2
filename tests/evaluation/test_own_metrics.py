"""Users' own metrics are imported, checked, and compared in their own direction."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from polytask.evaluation.own_metrics import own_metrics, primary_of, trust_functions
from polytask.evaluation.scoring import Predictions, score
from polytask.plugins.trust import trust_plugin
from polytask.recipe.reading import read_recipe
from polytask.recipe.records import recipe_to_mapping
from polytask.settings import TaskSpec
from polytask.types import LabelSpace, MetricValue, TaskScore, UserError

MODULE = """
import numpy as np

def distance(gold, predicted):
    return np.abs(gold - predicted).mean()

distance.greater_is_better = False

def shaky(gold, predicted):
    if len(set(gold)) < 3:
        raise ValueError("a class is missing")
    return 1.0

def broken(gold, predicted):
    raise ZeroDivisionError("oh")

def endless(gold, predicted):
    return float("inf")

def words(gold, predicted):
    return "good"

number = 3
"""
MOODS = LabelSpace("classes", ("low", "middle", "high"))
RECIPE = """
tasks:
  mood: {{kind: classes, text: t, label: l, train: a.csv, dev: b.csv, metrics: {metrics}, metric: {metric}}}
"""


@pytest.fixture(autouse=True)
def new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "config"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with functions, which the user has trusted."""
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    trust_plugin(path)
    return path


def spec(*metrics: str, metric: str | None = None) -> TaskSpec:
    return TaskSpec("mood", "classes", ("t",), "l", "a.csv", "b.csv", metrics=metrics, metric=metric)


def trusted(task: TaskSpec) -> TaskSpec:
    trust_functions([task])
    return task


def scored(task: TaskSpec, gold: Any, predicted: Any) -> TaskScore:
    return score(Predictions(np.array(gold), np.array(predicted)), MOODS, 0.0, task.metric, own=own_metrics(task))


def test_a_function_is_a_metric_with_its_interval_and_direction(file: Path) -> None:
    task = spec(f"{file}:distance", "sklearn.metrics:cohen_kappa_score", metric="distance")
    gold, predicted = np.arange(40) % 3, np.where(np.arange(40) < 30, np.arange(40) % 3, 0)
    found = scored(task, gold, predicted)
    distance, kappa = found.metrics["distance"], found.metrics["cohen_kappa_score"]
    assert distance.value == np.abs(gold - predicted).mean()
    assert 0 < distance.low < distance.value < distance.high < 1
    assert kappa.value == pytest.approx(cohen_kappa_score(gold, predicted))
    assert kappa.low < kappa.value < kappa.high
    assert (found.primary, found.greater_is_better, found.signed()) == ("distance", False, -distance.value)
    assert (distance.greater_is_better, kappa.greater_is_better) == (False, True)
    assert primary_of(task).name == "distance"


def test_every_row_right_does_not_collapse_and_resamples_may_have_no_value(file: Path) -> None:
    gold = np.arange(20) % 3
    assert scored(spec(f"{file}:distance"), gold, gold).metrics["distance"].high > 0.1
    rare = np.array([0] * 10 + [1] * 10 + [2])
    assert scored(spec(f"{file}:shaky"), rare, rare).metrics["shaky"] == MetricValue(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module:f", "no_such_module:f: the module cannot be imported: ModuleNotFoundError"),
        ("{file}:missing", "has no function missing"),
        ("{file}:number", "has no function number"),
        ("{file}:broken", "broken: it raised ZeroDivisionError: oh"),
        ("{file}:endless", "endless: it returned inf; a metric must be a finite number"),
        ("{file}:words", "words: it raised ValueError: could not convert"),
    ],
)
def test_errors_name_the_task_and_the_function(file: Path, reference: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^recipe: tasks.mood.metrics: .*{message}"):
        scored(spec(reference.format(file=file)), [0, 1, 2], [0, 1, 1])


def test_a_name_that_is_taken_and_a_module_that_fails(tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text("def f1(gold, predicted):\n    return 0.0\n")
    with pytest.raises(UserError, match="a metric called f1 already exists"):
        own_metrics(trusted(spec(f"{tmp_path}/same.py:f1")))
    (tmp_path / "exits.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(UserError, match="cannot be imported: SystemExit: 3"):
        own_metrics(trusted(spec(f"{tmp_path}/exits.py:f")))


def test_modules_are_looked_up_next_to_the_recipe(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = file.parent / "recipe.yaml"
    text = RECIPE.format(metrics="[mine:distance, sklearn.metrics:cohen_kappa_score]", metric="distance")
    recipe.write_text(text)
    elsewhere = file.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text("raise RuntimeError('the wrong file')\n")
    monkeypatch.chdir(elsewhere)
    task = read_recipe(recipe).tasks["mood"]
    assert task.metrics == (f"{file}:distance", "sklearn.metrics:cohen_kappa_score")
    assert recipe_to_mapping(read_recipe(recipe))["tasks"]["mood"]["metrics"] == list(task.metrics)
    assert primary_of(task).name == "distance"
    over = elsewhere / "over.yaml"
    over.write_text("base: ../recipe.yaml\nseed: 3\n")
    assert read_recipe(over).tasks["mood"].metrics == task.metrics


def test_nothing_runs_before_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a module and packages on the path; a module of an installed package needs no trust."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef f(gold, predicted):\n    return 1.0\n"
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    (tmp_path / "path" / "own_package").mkdir(parents=True)
    (tmp_path / "path" / "runs" / "own_run").mkdir(parents=True)  # without __init__.py
    modules = ("own_package/__init__.py", "own_package/inner.py", "runs/own_run/own.py", "own_module.py")
    for name in (*(f"path/{module}" for module in modules), "own_file.py"):
        (tmp_path / name).write_text(f"# {name}\n{code}")
    for module in (f"{tmp_path}/own_file.py", "own_module", "own_package.inner", "runs.own_run.own"):
        (tmp_path / "ran").unlink(missing_ok=True)
        with pytest.raises(UserError, match=r"recipe: tasks.mood.metrics: .*: this plug-in is not trusted .SHA-256"):
            own_metrics(spec(f"{module}:f"))
        assert not (tmp_path / "ran").exists()
        assert own_metrics(trusted(spec(f"{module}:f")))[0].name == "f"
        assert (tmp_path / "ran").exists()
    assert own_metrics(spec("sklearn.metrics:cohen_kappa_score"))


@pytest.mark.parametrize("reference", [":distance", "mine:", "mine:not a name"])
def test_references_that_are_not_functions(file: Path, reference: str) -> None:
    (file.parent / "recipe.yaml").write_text(RECIPE.format(metrics=f"['{reference}']", metric="null"))
    with pytest.raises(UserError, match=r"tasks.mood.metrics: must be functions as module:function, or .*; found"):
        read_recipe(file.parent / "recipe.yaml")


def test_a_name_without_a_module_must_be_registered(file: Path) -> None:
    (file.parent / "recipe.yaml").write_text(RECIPE.format(metrics="[distance]", metric="null"))
    with pytest.raises(UserError, match=r"no metric 'distance'.*named as module:function"):
        own_metrics(read_recipe(file.parent / "recipe.yaml").tasks["mood"])
