"""polytask.fit: tasks with data in memory, equal to the recipe that it writes, resumable, and with a model."""

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import polytask
from polytask import Classes, Fitted, Match, Score, UserError, YesNo
from polytask.runs.folder import RunFolder
from polytask.runs.own_data import with_named_data, with_own_data
from polytask.settings import RowSample

TINY = {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "positions": 128}
SETTINGS: dict[str, Any] = {
    "optimizer": {"name": "fused_adamw", "lr": 3e-3},
    "train": {"epochs": 2, "steps_per_epoch": 5, "batch_size": 8, "device": "cpu", "threads": 1},
}


def sample(name: str) -> pd.DataFrame:
    return pd.read_csv(str(resources.files("polytask.tasks") / "sample" / f"{name}.csv"))


def tasks() -> dict[str, Any]:
    opinions, pairs, scores = sample("opinions-train"), sample("questions-train"), sample("similarity-train")
    return {
        "opinion": Classes(opinions, "text", "opinion", dev=sample("opinions-dev"), weight=2.0),
        "question": YesNo(pl.from_pandas(pairs), text=["question1", "question2"], label="duplicate", head="cosine"),
        "similarity": Score(scores.to_dict("records"), ["sentence1", "sentence2"], "similarity", range=(0, 5)),
    }


def journal(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if "second" not in key and key != "time"} for line in lines]


def losses(folder: Path) -> list[Any]:
    return [line["losses"] for line in journal(folder) if "losses" in line]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    return polytask.fit(tasks(), TINY, run=tmp_path_factory.mktemp("fit") / "run", **SETTINGS)


def test_the_result(fitted: Fitted) -> None:
    assert set(fitted.scores) == {"dev"}
    assert fitted.scores["dev"].keys() == {"opinion", "question", "similarity"}
    assert fitted.scores["dev"]["opinion"] == fitted.evaluations["dev"].tasks["opinion"].value
    assert fitted.report.is_file()
    assert fitted.model.tasks == ("opinion", "question", "similarity")
    assert fitted.model is fitted.model
    assert fitted.model.predict("opinion", "Great.")[0].label


def test_equal_to_the_recipe_that_it_writes(fitted: Fitted, tmp_path: Path) -> None:
    again = polytask.train(fitted.folder / "recipe.yaml", tmp_path / "again")
    assert losses(again.folder) == losses(fitted.folder) != []
    for name in ("model.safetensors", "parts.safetensors"):
        assert (again.folder / "model" / name).read_bytes() == (fitted.folder / "model" / name).read_bytes()


def test_the_data_is_in_the_runs_folder(fitted: Fitted, tmp_path: Path) -> None:
    recipe = polytask.read_recipe(fitted.folder / "recipe.yaml")
    for task in recipe.tasks.values():
        assert Path(task.train or "").parent == Path(task.dev).parent == fitted.folder / "data"
    assert recipe.tasks["opinion"].weight == 2.0
    moved = fitted.folder.rename(tmp_path / "moved")
    try:
        scores = polytask.evaluate_run(moved).tasks
        assert {task: score.value for task, score in scores.items()} == pytest.approx(fitted.scores["dev"])
    finally:
        moved.rename(fitted.folder)


def test_held_out_rows_have_all_classes_and_no_text_twice(fitted: Fitted) -> None:
    (dev,), (train,) = (list((fitted.folder / "data").glob(f"question-{split}-*")) for split in ("dev", "train"))
    rows = [[json.loads(line) for line in path.read_text().splitlines()] for path in (dev, train)]
    assert sum(map(len, rows)) == len(sample("questions-train"))
    for label in ("yes", "no"):
        held, kept = (sum(row["duplicate"] == label for row in part) for part in rows)
        assert held == pytest.approx(0.2 * (held + kept), abs=2)
    pairs = [{(row["question1"], row["question2"]) for row in part} for part in rows]
    assert not pairs[0] & pairs[1]


def test_the_model_is_evaluated_on_data_in_memory(fitted: Fitted) -> None:
    scored = polytask.evaluate_run(fitted.folder, on={"opinion": sample("opinions-dev")})
    assert scored.tasks["opinion"].value == pytest.approx(fitted.scores["dev"]["opinion"])


def rows(count: int = 60) -> list[dict[str, Any]]:
    return [{"text": f"{'good' if i % 3 else 'bad'} thing {i}", "label": i % 3} for i in range(count)]


def test_stopped_and_resumed_with_the_same_data_and_not_with_other_data(tmp_path: Path) -> None:
    whole = polytask.fit({"t": Classes(rows(), "text", "label")}, TINY, run=tmp_path / "whole", **SETTINGS)
    running = polytask.start_training(
        {"tasks": {"t": Classes(iter(rows()), "text", "label")}, "encoder": TINY, **SETTINGS}, tmp_path / "run"
    )
    for report in running.steps():
        if report.step == 3:
            running.save()
            break
    del running
    other = rows()
    other[7]["label"] = 0
    with pytest.raises(UserError, match=r"another recipe:\n  tasks.t.train: was .*t-train-.*, is .*t-train-"):
        polytask.fit({"t": Classes(other, "text", "label")}, TINY, run=tmp_path / "run", resume=True, **SETTINGS)
    resumed = polytask.fit(
        {"t": Classes(pd.DataFrame(rows()), "text", "label")}, TINY, run=tmp_path / "run", resume=True, **SETTINGS
    )
    assert losses(resumed.folder) == losses(whole.folder)
    weights = [fitted.folder / "model" / "model.safetensors" for fitted in (whole, resumed)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    again = polytask.fit({"t": Classes(rows(), "text", "label")}, TINY, run=tmp_path / "run", resume=True, **SETTINGS)
    assert again.scores == resumed.scores


def test_the_folder_is_that_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = {"kind": "classes", "text": "text", "label": "label", "train": rows(), "dev": pd.DataFrame(rows(9))}
    fitted = polytask.fit({"t": task}, TINY, name="mine", **SETTINGS)
    assert fitted.folder == Path("runs/mine")
    with pytest.raises(UserError, match="already contains a run"):
        polytask.fit({"t": task}, TINY, name="mine", **SETTINGS)


def test_training_rows_of_a_file_are_held_out_too(tmp_path: Path) -> None:
    pd.DataFrame({**pd.DataFrame(rows()), "text": [f"é {row['text']}" for row in rows()]}).to_csv(
        tmp_path / "x.csv", encoding="cp1252", index=False
    )
    task = Classes(tmp_path / "x.csv", "text", "label", encoding="cp1252", dev_share=0.25, dev_seed=3)
    recipe = polytask.recipe_from({"tasks": {"t": task}})
    dev = Path(recipe.tasks["t"].dev).read_text(encoding="utf-8")
    assert len(dev.splitlines()) == 15
    assert "é " in dev
    assert recipe.tasks["t"].encoding is None


def generator() -> Iterator[dict[str, Any]]:
    yield from rows()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Classes(pd.DataFrame(rows()), "message", "label"), "fit: tasks.t.train: no column 'message'; its columns are"),
        (Classes(rows(), "text", "label", dev_share=0.9), r"fit: tasks.t.dev_share: must be in \(0, 0.5\], found 0.9"),
        (Classes(rows(3), "text", "label"), "3 rows are too few, or too similar, to hold out 20% of them"),
        (
            Classes([*rows(), {"text": None, "label": "x"}, {"text": "x", "label": float("nan")}], "text", "label"),
            r"2 empty values(.|\n)*train, row 61, column 'text': the value is empty(.|\n)*row 62, column 'label'",
        ),
        (
            Classes(rows(), "text", "label", encoding="cp1252"),
            "fit: tasks.t.encoding: must be left out for data in mem",
        ),
        (
            Classes(None, "text", "label"),
            "tasks.t.train: must be the name of a file, a data frame, .* found .*NoneType",
        ),
        (Score(rows(), "text", "label", standardize=False), "fit: tasks.t.standardize: false needs `range`"),
        (Match(rows(), "text"), "fit: tasks.t.text: must be two columns for kind match, found 1"),
        (
            Classes(rows(), "text", "label", dev=[{"text": "x", "label": ""}]),
            "t-dev-.*jsonl, line 1, column 'label': the label is empty",
        ),
        (Classes([{"text": "x", "label": 1}] * 60, "text", "label", dev=rows()), "only the class '1'"),
        ("frame", "fit: tasks.t: must be a mapping"),
    ],
)
def test_what_cannot_be_trained(task: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        polytask.fit({"t": task}, TINY, run=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_unknown_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"fit: there is no field 'adaptor' \(did you mean adapter\?\)"):
        polytask.fit({"t": Classes(rows(), "text", "label")}, TINY, run=tmp_path / "run", adaptor="pal")


def test_lists_can_be_any_sequence() -> None:
    task = Classes(rows(), "text", "label", dev=rows(9), classes=np.unique([2, 0, 1]), rows=RowSample(5, seed=2))
    recipe = polytask.recipe_from({"tasks": {"t": task}}, ["tasks.t.weight=2"])
    assert recipe.tasks["t"].classes == ("0", "1", "2")
    assert recipe.tasks["t"].rows == RowSample(5, seed=2)
    assert recipe.tasks["t"].weight == 2


def test_runs_on_the_same_data_have_equal_recipes(tmp_path: Path) -> None:
    recipe = polytask.recipe_from({"tasks": {"t": Classes(rows(), "text", "label")}})
    folders = [RunFolder(tmp_path / name) for name in "ab"]
    a, b = (with_own_data(recipe, folder) for folder in folders)
    assert a != b
    assert with_named_data(a, folders[0]) == with_named_data(b, folders[1])


def test_a_task_with_data_in_memory_is_added(fitted: Fitted, tmp_path: Path) -> None:
    recipe = {"tasks": {"new": Classes(rows(), "text", "label")}, "train": SETTINGS["train"]}
    added = polytask.add_task(fitted.folder, recipe, tmp_path / "added")
    assert added.evaluations["dev"].tasks.keys() == {"opinion", "question", "similarity", "new"}
    assert [path.name[:8] for path in sorted((tmp_path / "added" / "data").iterdir())] == ["new-dev-", "new-trai"]


def test_a_generator_is_read_once(tmp_path: Path) -> None:
    shared = generator()
    with pytest.raises(UserError, match=r"fit: tasks.b.train: has no rows; a generator can be read only once"):
        polytask.fit(
            {"a": Classes(shared, "text", "label"), "b": Classes(shared, "text", "label")}, TINY, run=tmp_path / "run"
        )
