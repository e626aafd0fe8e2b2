"""Whole runs whose scores have no range: predictions of any size, adding, exporting, and heads that need a range."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polytask
from polytask import Finished, UserError, add_task, combine, evaluate_run, export_adapter, load, start_training, train
from polytask.recipe.reading import recipe_from
from polytask.recipe.starter import start_recipe
from polytask.runs.tasks_file import read_tasks

from ..conftest import Page

WORDS = ["cheap", "small", "plain", "usual", "large", "gold"]
TEXTS = ["gold gold gold gold", "cheap cheap cheap"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adverts whose price depends on their words; the dev rows have higher and lower prices than all training rows."""
    folder, rng = tmp_path_factory.mktemp("prices"), np.random.default_rng(0)
    for name, rows, lowest, highest in (("train", 120, 1, 5), ("dev", 30, 0, 6)):
        with (folder / f"adverts-{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["advert", "other", "price"])
            for n in range(rows):
                chosen = rng.integers(lowest, highest, 3)
                text = " ".join(WORDS[i] for i in chosen)
                writer.writerow([f"{text} item", f"number {n} {text}", 2000.5 + 500 * int(chosen.sum())])
    return folder


def recipe(data: Path, **more: Any) -> dict[str, Any]:
    task = {"kind": "score", "text": "advert", "label": "price", "train": "adverts-train.csv", "dev": "adverts-dev.csv"}
    task |= {name: str(data / task[name]) for name in ("train", "dev")} | more
    return {"tasks": {"price": task}, "train": {"epochs": 8, "batch_size": 16}, "optimizer": "adamw"}


@pytest.fixture(scope="module")
def settings(tiny_settings: list[str]) -> list[str]:
    return [setting for setting in tiny_settings if not setting.startswith("train.epochs")]


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> Finished:
    return train(recipe(data), tmp_path_factory.mktemp("run") / "run", settings)


def labels_of(folder: Path, key: str) -> list[float]:
    lines = (folder / "predictions" / "price-dev.jsonl").read_text().splitlines()
    return [json.loads(line)[key] for line in lines]


def test_scores_and_predictions_are_in_the_unit_of_the_file(run: Finished) -> None:
    gold, predicted = (np.array(labels_of(run.folder, key)) for key in ("label", "prediction"))
    metrics = run.summary.evaluations["dev"]["price"]["metrics"]
    assert metrics["mae"]["value"] == pytest.approx(np.abs(gold - predicted).mean(), rel=1e-4)
    assert metrics["pearson"]["value"] == pytest.approx(np.corrcoef(gold, predicted)[0, 1], abs=1e-4)
    assert metrics["pearson"]["value"] > 0.3
    assert 2000 < predicted.mean() < 9500
    assert run.summary.tasks["price"].range is None


def test_the_model_can_be_loaded_scored_and_exported(run: Finished, tmp_path: Path) -> None:
    entry = read_tasks(run.folder / "model" / "tasks.json").tasks["price"]
    assert not entry.bounded
    assert entry.spec("price").range is None
    model = load(run.folder)
    high, low = [prediction.label for prediction in model.predict("price", TEXTS)]
    assert high > low  # type: ignore[operator]
    again = evaluate_run(run.folder)
    assert again.tasks["price"].value == run.summary.evaluations["dev"]["price"]["metrics"]["pearson"]["value"]
    rows = [{"advert": "gold", "price": 1e6}, {"advert": "cheap", "price": -5}]
    assert evaluate_run(run.folder, on={"price": rows}).tasks["price"].examples == 2
    file = export_adapter(run.folder, "price", tmp_path / "price.safetensors")
    combined = load(combine(run.folder, [file], tmp_path / "combined"))
    assert [p.label for p in combined.predict("price", TEXTS)] == pytest.approx([high, low])


def test_the_report_and_the_card_name_no_range(run: Finished) -> None:
    page = Page((run.folder / "report.html").read_text(encoding="utf-8"))
    assert "a score." in page.text
    card = (run.folder / "model" / "README.md").read_text(encoding="utf-8")
    assert "answers a number" in card


def test_it_is_added_and_stays(
    run: Finished, tiny_run: Finished, data: Path, tmp_path: Path, settings: list[str]
) -> None:
    short = ["train.epochs=1", "train.steps_per_epoch=3"]
    before = load(run.folder).bundle.labels["price"]
    opinion = {"kind": "classes", "text": "text", "label": "opinion"}
    opinion |= {"train": "sample:opinions-train", "dev": "sample:opinions-dev"}
    added = add_task(run.folder, {"tasks": {"opinion": opinion}}, tmp_path / "added", short)
    assert load(added.folder).bundle.labels["price"] == before
    assert added.summary.added.old["price"]["identical"]  # type: ignore[union-attr]
    joined = add_task(tiny_run.folder, {"tasks": recipe(data)["tasks"]}, tmp_path / "joined", short)
    assert not load(joined.folder).bundle.labels["price"].bounded


def test_a_teacher_of_the_same_task(run: Finished, data: Path, tmp_path: Path, settings: list[str]) -> None:
    taught = train(recipe(data), tmp_path / "run", [*settings, "train.epochs=1", f"teachers.price={run.folder}"])
    assert np.isfinite(taught.summary.evaluations["dev"]["price"]["loss"])


def test_a_teacher_of_other_rows_answers_in_the_unit_of_the_file(
    run: Finished, data: Path, tmp_path: Path, settings: list[str]
) -> None:
    """Its training scores have another mean and deviation, by which its outputs are standardized."""
    some = [*settings, "tasks.price.rows={sample: 20, seed: 3}", f"teachers.price={run.folder}"]
    running = start_training(recipe_from(recipe(data), some), tmp_path / "run")
    labels, split = running.prepared.tasks["price"].labels, running.prepared.tasks["price"].splits["train"]
    teacher = load(run.folder)
    assert labels.low != teacher.bundle.labels["price"].low
    outputs = running.session.feed.teacher_outputs["price"]
    expected = [answer.label for answer in teacher.predict("price", [one.texts[0] for one in split.examples()])]
    assert labels.unscaled(outputs.numpy()).tolist() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("head", ["cosine", "joint"])
def test_heads_that_need_a_range_say_what_to_write(head: str, data: Path, tmp_path: Path, settings: list[str]) -> None:
    pair = recipe(data, text=["advert", "other"], head=head)
    with pytest.raises(UserError, match=rf"price.head: {head} needs scores with a range .*write tasks.price.range"):
        train(pair, tmp_path / "run", settings)


def test_in_batch_negatives_need_a_range(data: Path, tmp_path: Path, settings: list[str]) -> None:
    pair = recipe(data, text=["advert", "other"], head="bi")
    with pytest.raises(UserError, match="a score task with a range"):
        train(pair, tmp_path / "run", [*settings, "regularizers=[in_batch_negatives]"])


def test_init_leaves_the_range_out_where_scores_have_no_scale(data: Path, tmp_path: Path) -> None:
    started = start_recipe(tmp_path / "recipe.yaml", {"price": str(data / "adverts-train.csv")})
    assert "kind: score" in started.text
    assert "range" not in started.text.replace("no range, so any number can be predicted", "")
    assert not started.blanks


def test_init_finds_pairs_without_labels(tmp_path: Path) -> None:
    sample = Path(polytask.__file__).parent / "tasks" / "sample" / "articles-train.csv"
    (tmp_path / "help-train.csv").write_text(sample.read_text())
    started = start_recipe(tmp_path / "recipe.yaml", {"help": str(tmp_path / "help-train.csv")})
    assert "kind: match" in started.text
    assert "label:" not in started.text.replace("# label:", "")
    assert not started.blanks
