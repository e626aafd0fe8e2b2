"""Truncation: which end is cut, in training and in predictions; how many texts are; and the error that names rows."""

import json
from pathlib import Path

import pytest

from polytask import Finished, UserError, add_task, combine, evaluate_run, export_adapter, load, predict_file, train
from polytask.runs.bundle import load_bundle

ENCODER = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "positions": 32}
WORDS = ["good", "bad"]


def rows(count: int, filler: int = 0) -> str:
    """Texts whose last word is the label."""
    lines = [f"{'and ' * filler}{WORDS[i % 2]},{WORDS[i % 2]}" for i in range(count)]
    return "text,label\n" + "\n".join(lines) + "\n"


def recipe(folder: Path, **fields: object) -> dict:
    task = {"kind": "classes", "text": "text", "label": "label", "train": "train.csv", "dev": "dev.csv"}
    steps = {"epochs": 1, "steps_per_epoch": 30, "batch_size": 16, "device": "cpu", "warmup": 0, "schedule": "constant"}
    return {
        "tasks": {"mood": task},
        "encoder": ENCODER,
        "data": str(folder),
        "max_length": 8,
        "optimizer": {"lr": 0.01},
        "train": steps,
        **fields,
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text(rows(64, filler=12))
    (tmp_path / "dev.csv").write_text(rows(40, filler=12))
    return tmp_path


def test_only_the_end_that_is_kept_is_learned(data: Path) -> None:
    kept = train(recipe(data, truncate="start"), data / "start").evaluations["dev"].tasks["mood"].value
    lost = train(recipe(data, truncate="end"), data / "end").evaluations["dev"].tasks["mood"].value
    assert (kept, lost) == (1.0, 0.5)
    assert evaluate_run(data / "start").tasks["mood"].value == 1.0
    model = load(data / "start")
    assert model.bundle.packer.truncate == "start"
    long = f"{'bad ' * 5000}and good"
    (prediction,) = model.predict("mood", long)
    assert (prediction.label, prediction.tokens, prediction.truncated) == ("good", 5004, True)
    content = json.loads((data / "start" / "model" / "tasks.json").read_text())
    assert content["truncate"] == "start"


def test_predictions_have_their_lengths(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    found = model.predict("opinion", ["good", "good " * 62, "good " * 63, "", "good " * 9000])
    assert [(one.tokens, one.truncated) for one in found] == [
        (3, False),
        (64, False),
        (65, True),
        (None, False),
        (9002, True),
    ]
    # The questions are two sequences: the longer one counts.
    (pair,) = model.predict("question", "good " * 40, "good " * 60)
    assert (pair.tokens, pair.truncated) == (62, False)
    few = load(tiny_run.folder, few=True)
    assert [one.tokens for one in few.predict("opinion", ["good", "good " * 63])] == [3, 65]


def test_files_of_predictions_have_them_too(tiny_run: Finished, tmp_path: Path) -> None:
    lines = (tiny_run.folder / "predictions" / "opinion-dev.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    model = load(tiny_run.folder)
    for line in found[:10]:
        (prediction,) = model.predict("opinion", *line["text"])
        assert (prediction.tokens, prediction.truncated) == (line["tokens"], line["truncated"])
    (tmp_path / "in.csv").write_text(f'text\ngood\n{"good " * 70}\n""\n')
    done = predict_file(model, "opinion", str(tmp_path / "in.csv"), tmp_path / "out.jsonl")
    assert (done.truncated, done.abstained) == ({"opinion": 1}, {"opinion": 0})
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["tokens_opinion"], row["truncated_opinion"]) for row in out] == [(3, False), (72, True), (None, None)]


def test_with_error_no_text_is_truncated(data: Path) -> None:
    with pytest.raises(
        UserError, match=r"(?s)104 rows are longer than max_length \(8 tokens\).*line 2: task mood: 15 tok"
    ):
        train(recipe(data, truncate="error"), data / "run")
    assert not (data / "run").exists()
    (data / "train.csv").write_text(rows(64, filler=5))
    (data / "dev.csv").write_text(rows(10, filler=5))
    train(recipe(data, truncate="error"), data / "run")
    model = load(data / "run")
    with pytest.raises(UserError, match=r"trained with `truncate: error`: example 1 \(9 tokens\) \(counted from 0\)"):
        model.predict("mood", ["good", "and and and and and and good"])
    (data / "in.csv").write_text(rows(2, filler=5) + '"",\n' + rows(30, filler=6).partition("\n")[2])
    with pytest.raises(UserError, match=r"(?s)30 rows are longer.*in.csv, line 5: task mood: 9 tokens.*and 10 more"):
        predict_file(model, None, str(data / "in.csv"), data / "out.csv")
    assert not (data / "out.csv").exists()
    (data / "more.csv").write_text(rows(4, filler=6))
    with pytest.raises(UserError, match="4 rows are longer"):
        evaluate_run(data / "run", on={"mood": str(data / "more.csv")})


def test_an_added_task_truncates_as_the_old_ones_do(data: Path) -> None:
    train(recipe(data, truncate="start"), data / "old")
    task = {"kind": "classes", "text": "text", "label": "label", "train": "train.csv", "dev": "dev.csv"}
    new = {"tasks": {"new": task}, "data": str(data), "train": {"epochs": 1, "steps_per_epoch": 2}}
    with pytest.raises(UserError, match=r"truncate: .* has 'start', found 'end'; leave the field out"):
        add_task(data / "old", {**new, "truncate": "end"}, data / "added")
    add_task(data / "old", new, data / "added")
    assert load_bundle(data / "added" / "model").packer.truncate == "start"
    file = export_adapter(data / "added", "new", data / "new.safetensors")
    combine(data / "added", [file], data / "combined")
    assert load(data / "combined").predict("new", "and " * 9 + "good")[0].tokens == 12
    assert load_bundle(data / "combined").packer.truncate == "start"


def test_models_of_earlier_versions_cut_the_end(tiny_run: Finished, tmp_path: Path) -> None:
    content = json.loads((tiny_run.folder / "model" / "tasks.json").read_text())
    del content["truncate"]
    for task in content["tasks"].values():
        del task["temperature"], task["abstain_below"]
    for file in (tiny_run.folder / "model").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tasks.json").write_text(json.dumps(content))
    bundle = load_bundle(tmp_path)
    assert bundle.packer.truncate == "end"
    assert set(bundle.temperatures.values()) == {1.0}


@pytest.mark.parametrize("value", ["both", "", 3])
def test_other_values_are_refused(data: Path, value: object) -> None:
    with pytest.raises(UserError, match="truncate: must be one of end, start, error"):
        train(recipe(data, truncate=value), data / "run")
