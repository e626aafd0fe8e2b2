"""Whole runs with several classes per row: thresholds, files of predictions, resuming, comparing, adding, exporting."""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from polytask import (
    Finished,
    UserError,
    add_task,
    combine,
    compare_runs,
    evaluate_run,
    export_adapter,
    load,
    predict_file,
    prepare,
    read_recipe,
    start_training,
    train,
)
from polytask.kinds.multilabel import calibrated_thresholds
from polytask.runs.calibrate import calibrate_tasks
from polytask.runs.score import score_split
from polytask.runs.tasks_file import read_tasks

from ..conftest import Page
from .conftest import prediction_lines

TICKETS = Path(__file__).parent.parent.parent / "recipes" / "tickets.yaml"
CLASSES = ("access", "billing", "bug", "cancellation", "delivery", "feature", "quality", "refund")
TEXTS = ["I was charged twice, send the money back.", "The app crashes and I cannot log in.", "Hello!"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> Finished:
    return train(TICKETS, tmp_path_factory.mktemp("tickets") / "run", settings)


def lines(run: Path, name: str = "topics-dev") -> list[dict[str, Any]]:
    return prediction_lines(run, name)


def multi_hot(rows: list[list[str]]) -> np.ndarray:
    return np.array([[name in row for name in CLASSES] for row in rows])


def test_thresholds_are_chosen_on_dev_and_saved_with_the_model(run: Finished) -> None:
    entry = read_tasks(run.folder / "model" / "tasks.json").tasks["topics"]
    assert entry.classes == CLASSES
    assert entry.separator == "|"
    assert len(entry.thresholds) == 8
    summary = run.summary
    thresholds = summary.tasks["topics"].thresholds  # of calibrated probabilities
    assert thresholds == calibrated_thresholds(entry.thresholds, entry.temperature)
    assert any("topics: the threshold of each class was chosen on dev" in remark for remark in summary.remarks)
    rows = lines(run.folder)
    for row in rows:
        for name, threshold in zip(CLASSES, thresholds, strict=True):
            p = row["probabilities"][name]  # rounded
            assert (name in row["prediction"]) == (p >= threshold) or abs(p - threshold) < 1e-6
    gold, predicted = (multi_hot([row[key] for row in rows]) for key in ("label", "prediction"))
    metrics = summary.evaluations["dev"]["topics"]["metrics"]
    assert metrics["f1_micro"]["value"] == pytest.approx(f1_score(gold, predicted, average="micro", zero_division=0))
    assert metrics["f1_macro"]["value"] == pytest.approx(f1_score(gold, predicted, average="macro", zero_division=0))


def test_probabilities_are_calibrated(run: Finished) -> None:
    found = run.summary.calibration["topics"]
    entry = read_tasks(run.folder / "model" / "tasks.json").tasks["topics"]
    assert found["temperature"] == entry.temperature != 1
    assert (found["problem"], found["coverage"]) == (None, None)
    assert found["rows"] == 8 * len(lines(run.folder))
    again = evaluate_run(run.folder).calibration["topics"]["before"]
    assert again["log_loss"] == pytest.approx(found["before"]["log_loss"])
    page = Page((run.folder / "report.html").read_text(encoding="utf-8"))
    assert f"{found['rows']:,}, each class of a row" in page.text
    assert "Rows with a label" not in page.text  # the model cannot abstain


def test_a_threshold_of_the_recipe_is_that_of_the_probabilities_as_they_are(settings: list[str]) -> None:
    prepared = prepare(read_recipe(TICKETS, [*settings, "tasks.topics.thresholds=0.3"]))
    found = calibrate_tasks(prepared, {"dev": score_split(prepared, "dev", 0)})["topics"]
    assert (found["temperature"], found["after"], found["problem"]) == (1.0, None, "the recipe sets `thresholds`")


def test_tuned_thresholds_score_at_least_as_well_on_dev_as_a_half(run: Finished, tmp_path: Path, settings: Any) -> None:
    half = train(TICKETS, tmp_path / "half", [*settings, "tasks.topics.thresholds=0.5"])
    assert not any("threshold" in remark for remark in half.summary.remarks)
    one, other = (finished.summary.evaluations["dev"]["topics"]["metrics"] for finished in (run, half))
    assert one["f1_macro"]["value"] >= other["f1_macro"]["value"]
    assert one["average_precision"] == other["average_precision"]  # the same weights
    assert {row["row"]: row["probabilities"] for row in lines(run.folder)} == {
        row["row"]: row["probabilities"] for row in lines(half.folder)
    }


def test_evaluating_again_uses_the_saved_thresholds(run: Finished, tmp_path: Path) -> None:
    again = evaluate_run(run.folder)
    assert again.tasks["topics"].value == run.summary.evaluations["dev"]["topics"]["metrics"]["f1_micro"]["value"]
    other = tmp_path / "other.csv"
    other.write_text("text,topics\nWhere is my parcel?,delivery\nHello,\nIt broke and I want my money,quality|refund\n")
    assert evaluate_run(run.folder, on={"topics": str(other)}).tasks["topics"].examples == 3
    other.write_text("text,topics\nWhere is my parcel?,delivery|weather\n")
    with pytest.raises(UserError, match=r"'delivery\|weather': not among the labels of the training rows"):
        evaluate_run(run.folder, on={"topics": str(other)})


def test_a_killed_run_ends_with_the_same_model(run: Finished, tmp_path: Path, settings: list[str]) -> None:
    list(itertools.islice(start_training(read_recipe(TICKETS, settings), tmp_path / "run").steps(), 9))
    resumed = train(TICKETS, tmp_path / "run", settings, resume=True)
    for name in ("model.safetensors", "parts.safetensors", "tasks.json"):
        assert (resumed.folder / "model" / name).read_bytes() == (run.folder / "model" / name).read_bytes()
    assert lines(resumed.folder) == lines(run.folder)


# --- predictions ------------------------------------------------------------------------------------------------------
def test_predictions_are_tuples_of_classes(run: Finished) -> None:
    predictor = load(run.folder)
    thresholds = dict(zip(CLASSES, run.summary.tasks["topics"].thresholds, strict=True))
    for prediction in predictor.predict("topics", TEXTS):
        assert prediction.probabilities is not None
        assert prediction.label == tuple(n for n, p in prediction.probabilities.items() if p >= thresholds[n])
    (empty,) = predictor.predict("topics", [""])
    assert (empty.label, empty.probabilities) == (None, None)


def test_a_file_gets_joined_classes_or_lists(run: Finished, tmp_path: Path) -> None:
    predictor = load(run.folder)
    source = tmp_path / "new.csv"
    source.write_text("text\n" + "\n".join(f'"{text}"' for text in TEXTS) + "\n")
    expected = [list(prediction.label or ()) for prediction in predictor.predict("topics", TEXTS)]  # type: ignore[arg-type]
    predict_file(predictor, "topics", str(source), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["predicted_topics"] for row in rows] == ["|".join(names) for names in expected]
    assert [len(row["probability_topics"].split("|")) for row in rows if row["predicted_topics"]] == [
        len(names) for names in expected if names
    ]
    predict_file(predictor, "topics", str(source), tmp_path / "out.jsonl", probabilities="all")
    read = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["predicted_topics"] for row in read] == expected
    assert all(f"probability_topics_{name}" in row for row in read for name in CLASSES)
    predict_file(predictor, "topics", str(source), tmp_path / "out.parquet")


def test_the_report_shows_each_class_and_the_co_occurrence(run: Finished) -> None:
    page = Page((run.folder / "report.html").read_text(encoding="utf-8"))
    for words in ("any number of classes", "Threshold", "Co-occurrence", "any of 8 classes", "was chosen on dev"):
        assert words in page.text, words
    assert "any of `access`" in (run.folder / "model" / "README.md").read_text(encoding="utf-8")


# --- with everything else ---------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_two_recipes_are_compared(run: Finished, tmp_path: Path, settings: list[str]) -> None:
    runs = {}
    for name, more in {"plain": [], "focal": ["tasks.topics.loss={name: focal, class_weights: balanced}"]}.items():
        runs[name] = [train(TICKETS, tmp_path / f"{name}{s}", [*settings, *more, f"seed={s}"]).folder for s in (0, 1)]
    content = compare_runs([*runs["plain"], *runs["focal"]], tmp_path / "comparison")
    (comparison,) = content["comparisons"]
    assert comparison["task"] == "topics"
    assert comparison["low"] <= comparison["difference"] <= comparison["high"]


def test_a_task_with_several_classes_joins_a_run_and_keeps_its_thresholds(
    tiny_run: Finished, tmp_path: Path, tiny_settings: list[str]
) -> None:
    content = {"kind": "multilabel", "text": "text", "label": "topics"}
    content |= {"train": "sample:tickets-train", "dev": "sample:tickets-dev"}
    short = ["train.epochs=1", "train.steps_per_epoch=4"]
    added = add_task(tiny_run.folder, {"tasks": {"topics": content}}, tmp_path / "added", short)
    thresholds = read_tasks(added.folder / "model" / "tasks.json").tasks["topics"].thresholds
    assert len(thresholds) == 8
    opinion = {"kind": "classes", "text": "text", "label": "opinion"}
    opinion |= {"train": "sample:opinions-train", "dev": "sample:opinions-dev"}
    replay = {"tasks": {"again": opinion}, "policy": "replay", "add": {"guarantee": "measured", "distill": 0.5}}
    more = add_task(added.folder, replay, tmp_path / "more", [*short, "add.max_drop=null"])
    assert read_tasks(more.folder / "model" / "tasks.json").tasks["topics"].thresholds == thresholds
    assert "topics" in more.summary.added.old  # type: ignore[union-attr]


def test_an_exported_task_answers_as_before(run: Finished, tmp_path: Path) -> None:
    file = export_adapter(run.folder, "topics", tmp_path / "topics.safetensors")
    model, before = load(combine(run.folder, [file], tmp_path / "combined")), load(run.folder)
    assert [p.label for p in model.predict("topics", TEXTS)] == [p.label for p in before.predict("topics", TEXTS)]
    assert model.bundle.labels["topics"] == before.bundle.labels["topics"]


def test_teachers_and_rows_without_labels(run: Finished, tmp_path: Path, settings: list[str]) -> None:
    more = tmp_path / "more.csv"
    more.write_text("text\n" + "\n".join(f'"{text} {n}"' for n in range(20) for text in TEXTS) + "\n")
    named = [f"teachers.topics=[{run.folder}, {run.folder}]", f"tasks.topics.unlabelled={more}"]
    policy = ["policy=replay", "regularizers=[smart, r_drop, bregman]", "train.steps_per_epoch=4"]
    finished = train(TICKETS, tmp_path / "student", [*settings, *named, *policy])
    assert np.isfinite(finished.summary.evaluations["dev"]["topics"]["loss"])
    assert finished.summary.tasks["topics"].data["unlabelled"]["rows"] == 60


ROWS = [(f"parcel number {n} came late", [["late"], ["late", "broken"], [], ["broken"]][n % 4]) for n in range(24)]


def written(form: str, folder: Path) -> Path:
    """A file with the rows, which have their labels in this form."""
    path = folder / f"{form}.{'jsonl' if form == 'lists' else 'csv'}"
    if form == "lists":
        path.write_text("".join(json.dumps({"text": text, "label": names}) + "\n" for text, names in ROWS))
        return path
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "broken", "late"] if form == "columns" else ["text", "label"])
        for text, names in ROWS:
            cells = {
                "columns": [int("broken" in names), int("late" in names)],
                "json": [json.dumps(names)],
                "comma": [",".join(names)],
            }
            writer.writerow([text, *cells[form]])
    return path


def test_every_way_of_writing_labels_trains_the_same_model(tmp_path: Path, settings: list[str]) -> None:
    losses = set()
    for form in ("comma", "json", "columns", "lists"):
        path, label = str(written(form, tmp_path)), ["broken", "late"] if form == "columns" else "label"
        task = {"kind": "multilabel", "text": "text", "label": label, "train": path, "dev": path}
        finished = train({"tasks": {"t": task}}, tmp_path / form, [*settings, "train.steps_per_epoch=3"])
        assert finished.summary.tasks["t"].classes == ("broken", "late")
        assert [sorted(row["label"]) for row in lines(finished.folder, "t-dev")] == [sorted(names) for _, names in ROWS]
        losses.add(finished.summary.evaluations["dev"]["t"]["loss"])
    assert len(losses) == 1


@pytest.mark.parametrize(
    ("settings_of_task", "message"),
    [
        (["label=[topics]"], r"tasks.topics.label: must be two or more different columns, found \['topics'\]"),
        (["label=[a, b]", "classes=[a, b]"], "tasks.topics.classes: must be left out: the names of the label columns"),
        (["thresholds=1.5"], r"tasks.topics.thresholds: must be in \(0, 1\), found 1.5"),
        (["thresholds=best"], "tasks.topics.thresholds: must be a number, found 'best'"),
        (["separator=' '"], "tasks.topics.separator: must be one or more characters"),
        (["kind=classes", "thresholds=0.4"], "tasks.topics.thresholds: must be left out for kind classes, found 0.4"),
        (["kind=classes", "separator=;"], "tasks.topics.separator: must be left out for kind classes"),
        (["kind=classes", "label=[a, b]"], "tasks.topics.label: must be one column for kind classes"),
        (["head=cosine"], "cosine does not support kind multilabel"),
        (["metric=accuracy"], "no metric 'accuracy' for kind multilabel"),
        (["label=[text, topics]"], "column 'text': neither yes nor no"),
        (["classes=[access, billing]"], "not one of the task's classes; expected access, billing"),
        (["label=missing"], "no column 'missing'"),
    ],
)
def test_recipes_and_data_that_are_refused(settings_of_task: list[str], message: str, settings: list[str]) -> None:
    with pytest.raises(UserError, match=message):
        prepare(read_recipe(TICKETS, [*settings, *(f"tasks.topics.{one}" for one in settings_of_task)]))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("thresholds", [0.5], "thresholds: must be one for each class, found 1"),
        ("thresholds", [2.0] * 8, r"thresholds: must be in \[0, 1\]"),
        ("separator", "", "separator: only kind multilabel has one"),
        ("label", ["a", "b"], "label: must be one column"),
        ("classes", ["a", "a"], "classes: must be two or more different names"),
    ],
)
def test_a_damaged_description_is_refused(run: Finished, tmp_path: Path, field: str, value: Any, message: str) -> None:
    content = json.loads((run.folder / "model" / "tasks.json").read_text())
    content["tasks"]["topics"][field] = value
    (tmp_path / "tasks.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        read_tasks(tmp_path / "tasks.json")
