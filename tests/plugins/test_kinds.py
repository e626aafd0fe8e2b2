"""Kinds of labels as plug-ins: registered, checked, trained, saved, predicted, trusted and combined."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import polytask
from polytask import UserError, methods, run_contracts
from polytask.kinds.base import Kind
from polytask.kinds.classes import Classes
from polytask.kinds.score import Score
from polytask.kinds.table import KINDS
from polytask.plugins.files import use_plugins

from .conftest import RECIPE

STARS = '''
"""Scores that are written as stars: *** is 3."""

from dataclasses import replace

import polytask
from polytask.kinds.base import LabelReader
from polytask.kinds.names import LabelProblem
from polytask.kinds.score import Score


class StarReader(LabelReader):
    def _read(self, value):
        if not isinstance(value, str) or set(value) - {"*"}:
            raise LabelProblem("not a row of stars")
        return float(len(value))


class Stars(Score):
    """A number of stars, from 0 to 5."""

    examples = ("*", "**", "*****", "***", "", "****")

    def reader(self, spec, known=None, values=()):
        return StarReader()

    def space(self, spec, meta, vocabulary, stored):
        return super().space(replace(spec, range=(0.0, 5.0)), meta, vocabulary, stored)


polytask.register("kind", "stars", Stars)
'''


@pytest.fixture
def project(folder: Path) -> Path:
    """A folder whose recipe has a task of the kind `stars`, with the adapter of another plug-in."""
    rows = [f"the book was {word} {n},{'*' * stars}" for n in range(8) for word, stars in (("good", 5), ("dull", 1))]
    (folder / "stars.csv").write_text("text,rating\n" + "\n".join(rows) + "\n")
    (folder / "my_kind.py").write_text(STARS)
    task = {"kind": "stars", "text": "text", "label": "rating", "train": "stars.csv", "dev": "stars.csv"}
    recipe = {**RECIPE, "plugins": ["my_adapter.py", "my_kind.py"], "tasks": {"rating": task}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def test_a_run_with_a_kind_of_ones_own(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="not trusted"):
        polytask.train(project / "recipe.yaml", project / "run")
    settings = ["regularizers=[r_drop]"]
    finished = polytask.train(project / "recipe.yaml", project / "run", settings, trust_plugins=True)
    score = finished.evaluations["dev"].tasks["rating"]
    assert score.primary == "pearson"
    assert {"spearman", "mae", "r2"} <= score.metrics.keys()
    about = finished.summary.tasks["rating"]
    assert (about.kind, about.own_kind, about.range) == ("score", "stars", (0.0, 5.0))
    entry = json.loads((project / "run" / "model" / "tasks.json").read_text())["tasks"]["rating"]
    assert (entry["kind"], entry["form"]) == ("stars", "score")
    lines = (project / "run" / "predictions" / "rating-dev.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["label"] == 5.0
    # The model is used after the tables have other methods, and in another place.
    shutil.copytree(project / "run" / "model", tmp_path / "received")
    model = polytask.load(tmp_path / "received")
    use_plugins([])
    assert "stars" not in KINDS
    (prediction,) = model.predict("rating", "the book was good")
    assert isinstance(prediction.label, float)
    assert 0 <= prediction.label <= 5
    assert polytask.evaluate_run(project / "run").tasks["rating"].value == score.value
    resumed = polytask.train(project / "recipe.yaml", project / "run", settings, resume=True)
    assert resumed.evaluations["dev"].tasks["rating"].value == score.value
    use_plugins([])
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "another-user"))
    with pytest.raises(UserError, match=r"not trusted:\n.*received/plugins/my_.*\.py \(SHA-256"):
        polytask.load(tmp_path / "received")


def test_tasks_are_added_to_it_and_it_is_compared(project: Path) -> None:
    finished = polytask.train(project / "recipe.yaml", project / "run", trust_plugins=True)
    mood = {"kind": "classes", "text": "text", "label": "mood", "train": str(project / "data.csv")}
    new = {"tasks": {"mood": {**mood, "dev": str(project / "data.csv")}}, "train": RECIPE["train"]}
    added = polytask.add_task(finished.folder, new, project / "added")
    assert added.summary.added is not None
    assert added.summary.added.old["rating"]["identical"]
    use_plugins([])
    verdict = polytask.compare_runs([project / "run", project / "added"], project / "comparison")
    assert verdict["comparisons"]


def test_changed_code_reads_the_labels_again(project: Path) -> None:
    polytask.train(project / "recipe.yaml", project / "run", trust_plugins=True)
    (project / "my_kind.py").write_text(STARS.replace("float(len(value))", "float(5 - len(value))"))
    polytask.train(project / "recipe.yaml", project / "again", trust_plugins=True)
    lines = (project / "again" / "predictions" / "rating-dev.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["label"] == 0.0


def test_combine_uses_plug_ins(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = polytask.train(project / "recipe.yaml", project / "run", trust_plugins=True).folder
    file = polytask.export_adapter(run, "rating", tmp_path / "rating.st")
    use_plugins([])
    model = polytask.load(polytask.combine(run, [file], tmp_path / "one"))  # with those of the run
    assert {path.name for path in (tmp_path / "one" / "plugins").iterdir()} == {"my_adapter.py", "my_kind.py"}
    assert model.predict("rating", "good")[0].label == polytask.load(run).predict("rating", "good")[0].label
    # The encoder alone has none.
    plain = tmp_path / "encoder"
    shutil.copytree(run / "model", plain, ignore=shutil.ignore_patterns("tasks.json", "parts*", "plugins"))
    with pytest.raises(UserError, match=r"rating\.st: task\.kind: there is no kind 'stars'"):
        polytask.combine(plain, [file], tmp_path / "two")
    plugins = [project / "my_adapter.py", project / "my_kind.py"]
    model = polytask.load(polytask.combine(plain, [file], tmp_path / "two", plugins=plugins))
    assert model.predict("rating", "good")[0].label == polytask.load(run).predict("rating", "good")[0].label
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "another-user"))
    for encoder, more in ((run, {}), (plain, {"plugins": plugins})):
        with pytest.raises(UserError, match="not trusted"):
            polytask.combine(encoder, [file], tmp_path / "three", **more)  # type: ignore[arg-type]
    assert not (tmp_path / "three").exists()
    assert polytask.combine(run, [file], tmp_path / "three", trust_plugins=True).exists()


# --- contracts --------------------------------------------------------------------------------------------------------
BAD = {
    "no examples": ("examples = ()", "`examples` must be 6 or more labels, found 0"),
    "a label that is text": (
        "def decode(self, outputs, labels):\n        return [('*', None)] * len(outputs)",
        "decode must return labels of type float, found '*'",
    ),
    "targets in double precision": (
        "def targets(self, *args):\n        return super().targets(*args).astype('float64')",
        "targets must be float32, found float64",
    ),
    "a loss that is a sum": (
        "def loss(self, outputs, targets):\n        return (outputs - targets).square().sum()",
        "`loss` must be the mean of `losses`",
    ),
    "predictions that differ": (
        "def predicted(self, outputs, labels):\n        return outputs.numpy() + 1",
        "decode and predicted do not agree",
    ),
    "no vote": (
        "def vote(self, near_NK, weights_NK, labels):\n        raise NotImplementedError('none')",
        "it raised NotImplementedError: none",
    ),
}


def test_a_good_kind_keeps_the_contract(project: Path) -> None:
    outcomes = list(run_contracts(project / "my_kind.py", trust_plugins=True))
    assert [outcome for outcome in outcomes if outcome.problem is not None] == []
    assert len(outcomes) == 9
    assert {outcome.table for outcome in outcomes} == {"kind"}


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD)
def test_a_bad_kind_fails_with_a_sentence(line: str, message: str, project: Path) -> None:
    source = STARS.replace("    def reader(self, spec", f"    {line}\n\n    def reader(self, spec")
    (project / "my_kind.py").write_text(source)
    problems = [outcome.problem for outcome in run_contracts(project / "my_kind.py", trust_plugins=True)]
    assert any(message in problem for problem in problems if problem is not None), problems


# --- registering ------------------------------------------------------------------------------------------------------
class Renamed(Classes):
    """Classes under another name."""


class Formless(Kind):
    name: Any = "plain"

    reader = space = targets = label = loss = losses = distance = distillation = mean_outputs = None  # type: ignore[assignment]
    decode = predicted = None  # type: ignore[assignment]


class WithOptions(Score):
    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("mine", dict, "dict must derive from polytask.kinds.base.Kind"),
        ("mine", Kind, "Kind must define decode, "),
        ("mine", Formless, "Formless.form must be the kind whose form the labels have: one of classes, yes_no"),
        ("mine", WithOptions, r"WithOptions must take the arguments \(\)"),
        ("score", Score, "polytask has its own kind of this name"),
        ("mine", Score(), "must be a class"),
    ],
)
def test_what_cannot_be_registered(name: str, kind: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        polytask.register("kind", name, kind)
    assert "mine" not in KINDS


def test_a_kind_registered_in_python(folder: Path) -> None:
    polytask.register("kind", "renamed", Renamed)
    assert KINDS["renamed"].form == "classes"
    assert KINDS["renamed"].name == "renamed"
    assert (KINDS["classes"].form, KINDS["classes"].name) == (None, "classes")
    assert methods.form_of("renamed") == "classes"
    task = {"kind": "renamed", "text": "text", "label": "mood", "train": "data.csv", "dev": "data.csv"}
    recipe = {**RECIPE, "plugins": [], "adapter": "none", "tasks": {"mood": task}, "data": str(folder)}
    finished = polytask.train(recipe, folder / "run")
    assert finished.summary.calibration["mood"]["temperature"] > 0
    assert np.isfinite(finished.evaluations["dev"].tasks["mood"].metrics["auc"].value)
    assert polytask.load(folder / "run").predict("mood", "good")[0].label in ("glad", "sad")
    methods.remove(methods.REGISTERED["kind", "renamed"])
    with pytest.raises(UserError, match=r"tasks\.mood\.kind: there is no kind 'renamed'"):
        polytask.load(folder / "run")
    with pytest.raises(UserError, match=r"tasks\.mood\.kind: there is no kind 'renamed'"):
        polytask.train(recipe, folder / "again")
