"""Calibrated probabilities of a run: labels, scores and weights stay; probabilities are those of outputs / T."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from polytask import (
    Finished,
    UserError,
    add_task,
    combine,
    evaluate_run,
    export_adapter,
    load,
    predict_file,
    read_recipe,
    train,
)
from polytask.evaluation.calibration import softmax
from polytask.recipe.earlier import as_written
from polytask.runs.bundle import load_bundle
from polytask.runs.calibrate import calibrate_tasks
from polytask.types import LabelSpace

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
MORE = ["train.steps_per_epoch=40", "tasks.opinion.abstain_below=0.3", "tasks.question.test=sample:questions-dev"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    return train(QUICKSTART, tmp_path_factory.mktemp("calibrated") / "run", [*tiny_settings, *MORE])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    settings = [*tiny_settings, *MORE, "train.calibrate=false", "tasks.opinion.abstain_below=null"]
    return train(QUICKSTART, tmp_path_factory.mktemp("plain") / "run", settings)


def lines(run: Finished, task: str, split: str = "dev") -> list[dict]:
    text = (run.folder / "predictions" / f"{task}-{split}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_only_probabilities_change(run: Finished, plain: Finished) -> None:
    one, other = (load_bundle(found.folder / "model") for found in (run, plain))
    weights = other.model.state_dict()
    assert all(tensor.equal(weights[name]) for name, tensor in one.model.state_dict().items())
    assert run.evaluations["dev"].tasks == plain.evaluations["dev"].tasks
    temperature = run.summary.calibration["opinion"]["temperature"]
    assert temperature != 1
    assert one.temperatures["opinion"] == temperature
    assert set(other.temperatures.values()) == {1.0}
    for calibrated, raw in zip(lines(run, "opinion"), lines(plain, "opinion"), strict=True):
        assert calibrated["prediction"] == raw["prediction"]
        assert calibrated["probabilities"] != raw["probabilities"]
    assert lines(run, "similarity") == lines(plain, "similarity")


def test_probabilities_are_those_of_outputs_divided_by_the_temperature(run: Finished, plain: Finished) -> None:
    model = load(run.folder)
    texts = [tuple(line["text"]) for line in lines(run, "opinion")[:20]]
    (outputs,) = model.outputs("opinion", texts)
    expected = softmax(outputs.double().numpy(), run.summary.calibration["opinion"]["temperature"])
    found = load(run.folder, abstain_below=0.0).predict("opinion", [text for (text,) in texts])
    raw = load(plain.folder).predict("opinion", [text for (text,) in texts])
    for prediction, row, line, other in zip(found, expected, lines(run, "opinion"), raw, strict=False):
        assert prediction.probabilities is not None
        assert list(prediction.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-6)
        assert prediction.probabilities == pytest.approx(line["probabilities"], abs=2e-6)
        assert prediction.label == line["prediction"] == other.label


def test_the_summary_and_the_report_show_it(run: Finished, plain: Finished) -> None:
    assert set(run.summary.calibration) == {"opinion", "question"}
    page = (run.folder / "report.html").read_text()
    assert "opinion: reliability on dev" in page
    assert "after, cross-fitted" in page
    assert "abstain_below: 0.3" in page
    assert "Calibration error on test before" in page
    assert {"before", "after"} == set(run.summary.calibration["question"]["test"])
    without = (plain.folder / "report.html").read_text()
    assert "opinion: reliability on dev" in without
    assert "after, cross-fitted" not in without
    assert plain.summary.calibration["opinion"]["after"] is None


def test_evaluate_measures_other_rows(run: Finished, plain: Finished) -> None:
    found = evaluate_run(run.folder)
    again = found.calibration["opinion"]
    before = run.summary.calibration["opinion"]["before"]
    for metric in ("log_loss", "calibration_error"):
        assert again["before"][metric] == pytest.approx(before[metric], abs=1e-6)
        assert again["before"][metric] == pytest.approx(found.tasks["opinion"].metrics[metric].value)
    assert again["after"]["log_loss"] < again["before"]["log_loss"]
    assert evaluate_run(plain.folder).calibration == {}


def test_exported_and_added_tasks_keep_their_temperature(run: Finished, tmp_path: Path) -> None:
    texts = ("How do I reset it?", "Is there a way to start it afresh?")
    before = load(run.folder).predict("question", *texts), load(run.folder).predict("opinion", "Not bad.")
    file = export_adapter(run.folder, "opinion", tmp_path / "opinion.safetensors")
    combine(run.folder, [file], tmp_path / "combined")
    assert load(tmp_path / "combined").predict("opinion", "Not bad.") == before[1]
    rows = "".join(f"text {i},{i % 2}\n" for i in range(40))
    (tmp_path / "new.csv").write_text("text,label\n" + rows)
    new = {"kind": "yes_no", "text": "text", "label": "label", "train": "new.csv", "dev": "new.csv"}
    recipe = {"tasks": {"new": new}, "data": str(tmp_path), "train": {"epochs": 1, "steps_per_epoch": 2}}
    added = add_task(run.folder, recipe, tmp_path / "added")
    model = load(tmp_path / "added")
    assert (model.predict("question", *texts), model.predict("opinion", "Not bad.")) == before
    assert set(added.summary.calibration) == {"new"}


def test_runs_of_earlier_versions_are_not_calibrated(run: Finished, tmp_path: Path) -> None:
    content = yaml.safe_load((run.folder / "recipe.yaml").read_text())
    assert content["train"]["calibrate"] is True
    del content["train"]["calibrate"]
    assert as_written(read_recipe(QUICKSTART), content).train.calibrate is False
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "environment.json").write_text("{}")
    assert read_recipe(tmp_path / "recipe.yaml").train.calibrate is False


def test_a_damaged_temperature_is_refused(run: Finished, tmp_path: Path) -> None:
    for file in (run.folder / "model").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "tasks.json"
    content = json.loads(path.read_text())
    for task, field, value in (
        ("opinion", "temperature", 0),
        ("opinion", "temperature", -2.0),
        ("opinion", "temperature", "hot"),
        ("opinion", "abstain_below", 1.5),
        ("similarity", "temperature", 2.0),
        ("similarity", "abstain_below", 0.5),
    ):
        changed = json.loads(json.dumps(content))
        changed["tasks"][task][field] = value
        path.write_text(json.dumps(changed))
        with pytest.raises(UserError, match=r"tasks\.json"):
            load_bundle(tmp_path)


# --- abstention -------------------------------------------------------------------------------------------------------
def test_predictions_that_are_not_sure_have_no_label(run: Finished) -> None:
    texts = [line["text"][0] for line in lines(run, "opinion")]
    every = load(run.folder, abstain_below=0.0).predict("opinion", texts)
    highest = [max(one.probabilities.values()) for one in every if one.probabilities]
    threshold = sorted(highest)[len(highest) // 2]
    found = load(run.folder, abstain_below=threshold).predict("opinion", texts)
    for one, full, p in zip(found, every, highest, strict=True):
        assert one.abstained == (p < threshold)
        assert one.label == (None if p < threshold else full.label)
        assert one.probabilities == full.probabilities
    assert {one.abstained for one in found} == {True, False}
    own = load(run.folder).predict("opinion", texts)  # the threshold of the recipe
    assert [one.abstained for one in own] == [p < 0.3 for p in highest]
    marked = [line.get("abstained", False) for line in lines(run, "opinion")]
    assert marked == [p < 0.3 for p in highest]
    assert all(line["prediction"] for line in lines(run, "opinion"))
    chosen = run.summary.calibration["opinion"]["coverage"]["chosen"]
    assert chosen["threshold"] == 0.3
    scores = load(run.folder, abstain_below=1.0).predict("similarity", "a", "b")
    assert scores[0].label is not None


def test_files_say_where_the_model_abstained(run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('text\ngood\nbad\n""\n')
    model = load(run.folder, abstain_below=1.0)
    done = predict_file(model, "opinion", str(tmp_path / "in.csv"), tmp_path / "out.jsonl")
    assert (done.abstained, done.without_text) == ({"opinion": 2}, {"opinion": 1})
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["predicted_opinion"] for row in rows] == [None, None, None]
    assert [row["abstained_opinion"] for row in rows] == [True, True, None]
    assert all(0 < row["probability_opinion"] < 1 for row in rows[:2])
    predict_file(model, "opinion", str(tmp_path / "in.csv"), tmp_path / "out.csv", probabilities="none")
    assert (tmp_path / "out.csv").read_text() == "text,predicted_opinion,abstained_opinion\ngood,,true\nbad,,true\n,,\n"


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_other_thresholds_are_refused(run: Finished, value: float) -> None:
    with pytest.raises(UserError, match=r"abstain_below: must be in \[0, 1\]"):
        load(run.folder, abstain_below=value)


def test_other_values_in_recipes_are_refused() -> None:
    with pytest.raises(UserError, match=r"abstain_below: must be in \[0, 1\], found 2"):
        read_recipe(QUICKSTART, ["tasks.opinion.abstain_below=2"])
    with pytest.raises(UserError, match="abstain_below: is only for kinds classes, yes_no, tokens, choice"):
        read_recipe(QUICKSTART, ["tasks.similarity.abstain_below=0.5"])
    with pytest.raises(UserError, match="calibrate: must be true or false"):
        read_recipe(QUICKSTART, ["train.calibrate=maybe"])


def test_a_diverged_task_is_left_out() -> None:
    task = SimpleNamespace(
        labels=LabelSpace("classes", classes=("a", "b")),
        spec=read_recipe(QUICKSTART).tasks["opinion"],
        splits={"dev": SimpleNamespace(labels=torch.zeros(10).numpy())},
    )
    prepared: Any = SimpleNamespace(evaluated=("opinion",), tasks={"opinion": task})
    scores: Any = SimpleNamespace(outputs={"opinion": torch.full((10, 2), float("nan"))})
    assert calibrate_tasks(prepared, {"dev": scores}) == {}
