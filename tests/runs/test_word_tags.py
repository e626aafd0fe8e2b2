"""Runs with word tags: columns and taggers, from training to predictions, resuming and added tasks."""

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polytask
from polytask import UserError, add_task, evaluate_run, export_adapter, predict_file, start_training, train
from polytask.recipe.reading import recipe_from
from polytask.runs.bundle import load_bundle
from polytask.runs.prepare import prepare

TEXT = "the plan has a run"
TINY = {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "positions": 128}
FEW = {"epochs": 2, "steps_per_epoch": 20, "batch_size": 16, "device": "cpu", "precision": "float32"}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def tagged_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows with the same text: only the tags tell the label."""
    rng = np.random.default_rng(seed)
    rows = []
    for is_noun in rng.integers(2, size=count).tolist():
        tags = ["DT", *["NN" if is_noun else "VB"] * 4]
        rows.append({"text": TEXT, "tags": " ".join(tags), "label": "noun" if is_noun else "verb"})
    return rows


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe with one task of tagged texts and one of tagged pairs."""
    folder = tmp_path_factory.mktemp("data")
    single = {name: tagged_rows(64, seed) for seed, name in enumerate(("train", "dev"))}
    task = {"kind": "classes", "text": "text", "label": "label", "tags": "tags"}
    pair = {"kind": "yes_no", "text": ["text", "text2"], "label": "same", "tags": ["tags", "tags2"]}
    for name, rows in single.items():
        task[name] = write(folder / f"{name}.jsonl", rows)
        pairs = [
            {**a, "text2": b["text"], "tags2": b["tags"], "same": a["label"] == b["label"]}
            for a, b in zip(rows, rows[1:] + rows[:1], strict=True)
        ]
        pair[name] = write(folder / f"pair-{name}.jsonl", pairs)
    optimizer = {"name": "adamw", "lr": 1e-2}
    return {"encoder": TINY, "tasks": {"word": task, "same": pair}, "optimizer": optimizer, "train": FEW}


@pytest.fixture(scope="module")
def run(content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(recipe_from(content), tmp_path_factory.mktemp("run") / "run").folder


def without_tags(content: dict[str, Any]) -> dict[str, Any]:
    tasks = {name: {k: v for k, v in task.items() if k != "tags"} for name, task in content["tasks"].items()}
    return {**content, "tasks": tasks}


def losses(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["losses"] for line in lines if line["kind"] == "step"]


# --- training ---------------------------------------------------------------------------------------------------------
def test_the_tags_are_learned_and_start_as_the_plain_model(content: dict[str, Any], run: Path, tmp_path: Path) -> None:
    plain = train(recipe_from(without_tags(content)), tmp_path / "plain")
    assert losses(run)[0] == losses(plain.folder)[0]
    assert losses(run)[1] != losses(plain.folder)[1]
    assert evaluate_run(run).tasks["word"].value == 1.0
    assert plain.evaluations["dev"].tasks["word"].value < 0.75  # all texts are the same


def test_gradients_of_single_tasks_and_frozen_encoders_train_the_tags(content: dict[str, Any], tmp_path: Path) -> None:
    for number, more in enumerate(({"policy": "pcgrad", "sampler": "mixed"}, {"train": {**FEW, "parts": "adapters"}})):
        finished = train(recipe_from({**content, **more}), tmp_path / str(number))
        weight = load_bundle(finished.folder / "model").model.word_tags.weight
        assert not weight[0].any()
        assert weight[1:].any(1).all()
        assert finished.evaluations["dev"].tasks["word"].value == 1.0


def test_regularizers_and_heads_only(content: dict[str, Any], tmp_path: Path) -> None:
    smart = {"regularizers": [{"name": "smart", "weight": 1.0}, {"name": "r_drop"}]}
    finished = train(recipe_from({**content, **smart}), tmp_path / "smart")
    assert finished.evaluations["dev"].tasks["word"].value == 1.0
    heads = train(recipe_from({**content, "train": {**FEW, "parts": "heads"}}), tmp_path / "heads")
    assert not load_bundle(heads.folder / "model").model.word_tags.weight.any()


def test_a_stopped_run_resumes_to_the_same_end(content: dict[str, Any], run: Path, tmp_path: Path) -> None:
    recipe = recipe_from({**content, "train": {**FEW, "save_every": 4}})
    running = start_training(recipe, tmp_path / "stopped")
    list(itertools.islice(running.steps(), 26))
    del running
    resumed = train(recipe, tmp_path / "stopped", resume=True)
    for file in ("model/model.safetensors", "model/parts.safetensors", "predictions/word-dev.jsonl"):
        assert (run / file).read_bytes() == (resumed.folder / file).read_bytes()


# --- with other options of tasks --------------------------------------------------------------------------------------
def test_chosen_rows_keep_their_tags(content: dict[str, Any]) -> None:
    chosen = {name: {**task, "rows": {"sample": 20, "seed": 1}} for name, task in content["tasks"].items()}
    whole, part = (prepare(recipe_from({**content, "tasks": tasks})) for tasks in (content["tasks"], chosen))
    for task in ("word", "same"):
        split, some = (prepared.tasks[task].splits["train"] for prepared in (whole, part))
        rows = split.rows.tolist()
        wanted = split.gather([rows.index(row) for row in some.rows.tolist()]).concatenated(100)
        found = some.gather(range(20)).concatenated(100)
        assert found.tags.any()
        assert found.ids.tolist() == wanted.ids.tolist()
        assert found.tags.tolist() == wanted.tags.tolist()


def test_tags_are_trained_where_a_task_is_not(content: dict[str, Any], tmp_path: Path) -> None:
    """Also: training rows are scored with their tags, and a task without a training file has tags."""
    word, same = content["tasks"]["word"], {**content["tasks"]["same"], "trained": False}
    del same["train"]
    settings = {**FEW, "evaluate_train": 20}
    tasks = {"word": {**word, "rows": 40}, "same": same}
    finished = train(recipe_from({**content, "tasks": tasks, "train": settings}), tmp_path / "run")
    assert finished.evaluations["dev"].tasks["word"].value == 1.0
    assert finished.evaluations["dev"].train["word"].value == 1.0
    bundle = load_bundle(finished.folder / "model")
    assert bundle.word_tags.names == ("DT", "NN", "VB")
    assert bundle.model.word_tags.weight[1:].any(1).all()
    now, then = evaluate_run(finished.folder).tasks["same"], finished.evaluations["dev"].tasks["same"]
    assert now.loss == pytest.approx(then.loss, rel=1e-5)


def test_only_tags_of_trained_tasks_are_known(content: dict[str, Any]) -> None:
    tasks = {**content["tasks"], "word": {**content["tasks"]["word"], "trained": False}}
    tasks["same"] = without_tags(content)["tasks"]["same"]
    prepared = prepare(recipe_from({**content, "tasks": tasks}))
    assert prepared.word_tags is None
    assert prepared.model.word_tags is None


def test_masked_words_keep_the_tags_of_the_run_they_start_from(
    content: dict[str, Any], run: Path, tmp_path: Path
) -> None:
    texts = write(tmp_path / "texts.jsonl", [{"text": f"the {word} has a run"} for word in ("plan", "home", "cat")] * 9)
    lines = [{"text": f"a {one} is in the {other}"} for one in ("day", "year") for other in ("city", "house", "world")]
    more = write(tmp_path / "more.jsonl", lines)
    before = load_bundle(run / "model")
    recipe = recipe_from({**content, "train": {**FEW, "epochs": 1, "steps_per_epoch": 4}})
    running = polytask.start_pretraining(
        recipe, tmp_path / "run", [f"{texts}:text", f"{more}:text"], start=run, keep_checkpoints=True
    )
    prepared = running.prepared
    assert prepared.word_tags == before.word_tags
    assert torch.equal(prepared.model.word_tags.weight, before.model.word_tags.weight)
    finished = running.complete()
    after = load_bundle(finished.folder / "model")
    assert after.word_tags == before.word_tags
    assert after.specs["word"].tags == ("tags",)
    assert finished.summary.added.old["word"]["before"]["value"] == 1.0
    assert evaluate_run(finished.folder).tasks["word"].value == finished.evaluations["dev"].tasks["word"].value


# --- predictions ------------------------------------------------------------------------------------------------------
def test_files_are_predicted_with_their_tags(content: dict[str, Any], run: Path, tmp_path: Path) -> None:
    model = polytask.load(run)
    source = content["tasks"]["same"]["dev"]
    predict_file(model, ["word", "same"], source, tmp_path / "out.jsonl", probabilities="all")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["predicted_word"] for row in rows] == [row["label"] for row in rows]
    saved = [json.loads(line) for line in (run / "predictions" / "same-dev.jsonl").read_text().splitlines()]
    for row, line in zip(rows, saved, strict=True):
        assert row["predicted_same"] == line["prediction"]
        assert row["probability_same_yes"] == pytest.approx(line["probabilities"]["yes"], abs=2e-6)


def test_texts_without_tags_are_untagged_and_warn_once(run: Path, tmp_path: Path, caplog: Any) -> None:
    model = polytask.load(run)
    with caplog.at_level(logging.WARNING):
        (one,) = model.predict("word", TEXT)
        (two,) = model.predict("word", TEXT)
        source = write(tmp_path / "plain.jsonl", [{"text": TEXT}])
        predict_file(model, "word", source, tmp_path / "out.jsonl")
    assert one == two
    assert [record.message for record in caplog.records] == [
        "predict: word was trained with word tags (column tags), but the texts have none; the words count as untagged, "
        "and predictions may be worse"
    ]


def test_a_wrong_number_of_tags_is_found_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    rows = [*tagged_rows(3), {"text": "", "tags": ""}, {"text": TEXT, "tags": "NN VB"}]
    source = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match=r"line 5, column 'tags'.*5 word\(s\) between spaces, but there are 2 tag\(s\)"):
        predict_file(polytask.load(run), "word", source, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


# --- data and recipes -------------------------------------------------------------------------------------------------
def test_broken_tags_are_broken_rows(content: dict[str, Any], tmp_path: Path) -> None:
    train_file = write(tmp_path / "train.jsonl", [*tagged_rows(9), {"text": TEXT, "tags": "NN", "label": "noun"}])
    task = {**content["tasks"]["word"], "train": train_file}
    with pytest.raises(UserError, match=r"1 broken row.*\n.*line 10, column 'tags'"):
        prepare(recipe_from({**content, "tasks": {"word": task}}))
    prepared = prepare(recipe_from({**content, "tasks": {"word": {**task, "broken_rows": "skip"}}}))
    assert prepared.word_tags is not None
    assert prepared.word_tags.names == ("DT", "NN", "VB")
    assert len(prepared.tasks["word"].splits["train"]) == 9


def test_a_column_of_other_things_is_refused(content: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"text": f"w{i} x", "label": str(i % 2)} for i in range(600)]
    task = {**content["tasks"]["word"], "train": write(tmp_path / "train.jsonl", rows), "tags": "text"}
    with pytest.raises(UserError, match=r"601 different tags .* at most 500 are allowed; is `tags` the right column"):
        prepare(recipe_from({**content, "tasks": {"word": task}}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"word_tags": {"tagger": "pattern"}}, r"tasks\.word\.tags: must be left out with word_tags\.tagger"),
        ({"word_tags": {"tagger": "brill"}}, r"word_tags\.tagger: must be one of pattern, nltk; found 'brill'"),
        ({"word_tags": {}}, r"word_tags: the field tagger is missing"),
    ],
)
def test_recipes_that_are_refused(content: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe_from({**content, **change})


def test_each_text_needs_its_column(content: dict[str, Any]) -> None:
    tasks = {"same": {**content["tasks"]["same"], "tags": "tags"}}
    with pytest.raises(UserError, match=r"tasks\.same\.tags: must be one column for each text column \(2\)"):
        recipe_from({**content, "tasks": tasks})


# --- taggers ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def tagger_run(content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("textblob")
    recipe = recipe_from({**without_tags(content), "word_tags": {"tagger": "pattern"}})
    return train(recipe, tmp_path_factory.mktemp("tagger") / "run").folder


def test_a_tagger_tags_the_texts_of_a_prediction(tagger_run: Path, caplog: Any) -> None:
    model = polytask.load(tagger_run)
    assert model.bundle.word_tags is not None
    assert {"DT", "NN", "VBZ"} <= set(model.bundle.word_tags.names)
    assert model.bundle.model.word_tags.weight[1:].any()
    saved = json.loads((tagger_run / "predictions" / "word-dev.jsonl").read_text().splitlines()[0])
    (prediction,) = model.predict("word", TEXT)
    assert prediction.probabilities == pytest.approx(saved["probabilities"], abs=1e-6)
    assert not caplog.records
    assert evaluate_run(tagger_run).tasks["word"].examples == 64


def test_a_tagged_model_teaches(content: dict[str, Any], run: Path, tagger_run: Path, tmp_path: Path) -> None:
    plain = {**without_tags(content), "tasks": {"word": without_tags(content)["tasks"]["word"]}}
    plain["train"] = {**FEW, "epochs": 1, "steps_per_epoch": 2}
    train(recipe_from({**plain, "teachers": {"word": str(tagger_run)}}), tmp_path / "run")
    with pytest.raises(UserError, match=r"teachers\.word: .* reads word tags from columns"):
        train(recipe_from({**plain, "teachers": {"word": str(run)}}), tmp_path / "other")


def test_the_model_card_says_where_the_tags_come_from(run: Path, tagger_run: Path) -> None:
    assert "The tags come from columns of the data" in (run / "model" / "README.md").read_text()
    card = (tagger_run / "model" / "README.md").read_text()
    assert "The tags come from the tagger `pattern` (`pip install 'polytask[tags]'`). config.json" in card
    assert json.loads((tagger_run / "summary.json").read_text())["word_tags"]["tagger"] == "pattern"


# --- other commands ---------------------------------------------------------------------------------------------------
def test_tasks_are_added_to_a_tagged_run(content: dict[str, Any], run: Path, tmp_path: Path) -> None:
    new = {"tasks": {"again": content["tasks"]["word"]}, "train": {**FEW, "epochs": 1}}
    finished = add_task(run, new, tmp_path / "added")
    old, added = (load_bundle(folder / "model") for folder in (run, finished.folder))
    assert added.word_tags == old.word_tags
    assert torch.equal(added.model.word_tags.weight, old.model.word_tags.weight)
    assert finished.summary.added.old["word"]["identical"]
    measured = add_task(run, {**new, "add": {"guarantee": "measured", "max_drop": 100}}, tmp_path / "measured")
    changed = load_bundle(measured.folder / "model").model
    assert not torch.equal(changed.word_tags.weight, old.model.word_tags.weight)


def test_tags_cannot_be_added_to_a_run_without(content: dict[str, Any], tiny_run: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tasks\.word\.tags: the model of .* has no word tags; leave it out"):
        add_task(tiny_run.folder, {"tasks": {"word": content["tasks"]["word"]}}, tmp_path / "added")
    recipe = {"tasks": {"word": without_tags(content)["tasks"]["word"]}, "word_tags": {"tagger": "pattern"}}
    with pytest.raises(UserError, match=r"word_tags: .* has None, found .*; leave the field out"):
        add_task(tiny_run.folder, recipe, tmp_path / "added")


def test_one_task_cannot_be_exported(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the tasks share the embedding of word tags, so one task cannot be exported"):
        export_adapter(run, "word", tmp_path / "word.safetensors")


def test_a_damaged_vocabulary_is_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (run / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tasks = json.loads((folder / "tasks.json").read_text())
    for names, message in ((["NN", "NN", "DT"], "different tags"), (["NN"], r"word_tags.weight has shape \[4, 32\]")):
        tasks["word_tags"]["names"] = names
        (folder / "tasks.json").write_text(json.dumps(tasks))
        with pytest.raises(UserError, match=message):
            load_bundle(folder)
