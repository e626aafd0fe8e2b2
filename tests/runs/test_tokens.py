"""Whole runs with tags of words: files, windows, predictions, resuming, comparing, adding, exporting, teachers."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from seqeval.metrics import accuracy_score, f1_score

from polytask import (
    Finished,
    Tokens,
    UserError,
    add_task,
    combine,
    compare_runs,
    evaluate_run,
    export_adapter,
    fit,
    load,
    predict_file,
    prepare,
    read_recipe,
    recipe_from,
    start_training,
    train,
)
from polytask.cli.predict import mark_spans
from polytask.runs.tasks_file import read_tasks
from polytask.tasks.doctor import examine

from ..conftest import Page
from .conftest import prediction_lines

RECIPES = Path(__file__).parent.parent.parent / "recipes"
ENTITIES = RECIPES / "entities.yaml"
TEXTS = ["Ada Lovelace lived in London.", "Nothing happened on Tuesday, said Tom."]
LONG = " ".join(f"Ada met Tom in Lima on day {n}." for n in range(40))


@pytest.fixture(scope="module")
def settings(tiny_settings: list[str]) -> list[str]:
    return [*tiny_settings, "train.save_every=4", "train.epochs=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> Finished:
    return train(ENTITIES, tmp_path_factory.mktemp("entities") / "run", settings)


def lines(run: Path, name: str = "entities-dev") -> list[dict[str, Any]]:
    return prediction_lines(run, name)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_scores_of_a_run_are_those_of_its_predictions(run: Finished) -> None:
    rows = lines(run.folder)
    gold, predicted = ([row[key] for row in rows] for key in ("label", "prediction"))
    metrics = run.summary.evaluations["dev"]["entities"]["metrics"]
    assert metrics["f1"]["value"] == pytest.approx(f1_score(gold, predicted))
    assert metrics["accuracy"]["value"] == pytest.approx(accuracy_score(gold, predicted))
    for row in rows:
        text = row["text"][0]
        assert len(row["label"]) == len(row["prediction"]) == len(row["words"])
        assert all(text[span["start"] : span["end"]] == span["text"] for span in row["spans"])
    assert evaluate_run(run.folder).tasks["entities"].value == metrics["f1"]["value"]


def test_a_killed_run_ends_with_the_same_model(run: Finished, tmp_path: Path, settings: list[str]) -> None:
    list(itertools.islice(start_training(read_recipe(ENTITIES, settings), tmp_path / "run").steps(), 9))
    resumed = train(ENTITIES, tmp_path / "run", settings, resume=True)
    for name in ("model.safetensors", "parts.safetensors", "tasks.json"):
        assert (resumed.folder / "model" / name).read_bytes() == (run.folder / "model" / name).read_bytes()
    assert lines(resumed.folder) == lines(run.folder)


# --- predictions ------------------------------------------------------------------------------------------------------
def test_predictions_are_tags_and_spans(run: Finished) -> None:
    for text, prediction in zip(TEXTS, load(run.folder).predict("entities", TEXTS), strict=True):
        assert isinstance(prediction.label, tuple)
        assert prediction.words is not None
        assert prediction.word_texts is not None
        assert len(prediction.label) == len(prediction.words) == len(prediction.word_texts)
        assert prediction.word_probabilities is not None
        assert all(0 < share <= 1 for share in prediction.word_probabilities)
        for span in prediction.spans or ():
            assert text[span.start : span.end] == span.text
    (empty,) = load(run.folder).predict("entities", [" "])
    assert (empty.label, empty.spans) == (None, None)


def test_the_tag_of_one_word_is_explained(run: Finished) -> None:
    model = load(run.folder)
    text = "Ada Lovelace lived in London, and Ada's dog too."
    found = model.explain(text, task="entities", word="London")
    temperature = model.bundle.temperatures["entities"]

    def probability(text: str, index: int) -> float:
        (outputs,) = model.outputs("entities", [(text,)])
        tags = (outputs[0, index, :-1] / temperature).softmax(-1)
        return float(tags[model.bundle.labels["entities"].classes.index(str(found.label))])

    assert [word.word for word in found.words] == ["Ada", "Lovelace", "lived", "in", "and", "Ada's", "dog", "too"]
    assert all(text[word.start : word.end] == word.word for word in found.words)
    before, behind = found.words[1], found.words[-1]
    whole = probability(text, 4)
    assert before.value == pytest.approx(whole - probability(text.replace("Lovelace", ""), 3), abs=1e-5)
    assert behind.value == pytest.approx(whole - probability(text.replace("too", ""), 4), abs=1e-5)
    assert model.explain(text, task="entities", word=4, label="B-place").label == "B-place"
    assert "Ada's" not in [one.word for one in model.explain(text, task="entities", word=7).words]
    for word in ("Ada", "Rome", 99, None):
        with pytest.raises(UserError, match="`word` must be a word that occurs once, or the number of a word"):
            model.explain(text, task="entities", word=word)
    with pytest.raises(UserError, match="explain: label: there is no class 'B-river'"):
        model.explain(text, task="entities", word="London", label="B-river")


def test_one_text_is_marked_in_the_terminal(run: Finished) -> None:
    (prediction,) = load(run.folder, few=True).predict("entities", TEXTS[0])
    plain = mark_spans(prediction, TEXTS[0]).plain.removeprefix("entities: ")
    for span in prediction.spans or ():
        mark = f"[{span.text} {span.label} {span.probability:.2f}]"
        assert mark in plain
        plain = plain.replace(mark, span.text, 1)
    assert plain == TEXTS[0]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_files_get_spans_words_and_tags(run: Finished, tmp_path: Path, ending: str) -> None:
    source = tmp_path / "new.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, ""]))
    target = tmp_path / f"out.{ending}"
    done = predict_file(load(run.folder), "entities", str(source), target)
    assert (done.rows, done.without_text) == (3, {"entities": 1})
    if ending == "jsonl":
        rows = [json.loads(line) for line in target.read_text().splitlines()]
    elif ending == "parquet":
        rows = pq.read_table(target).to_pylist()
    else:
        return
    for row, prediction in zip(rows, load(run.folder).predict("entities", TEXTS), strict=False):
        assert row["tags_entities"] == list(prediction.label or ())  # type: ignore[arg-type]
        assert row["words_entities"] == list(prediction.word_texts or ())
        assert [s["start"] for s in row["predicted_entities"]] == [s.start for s in prediction.spans or ()]
    assert rows[2]["predicted_entities"] is None


def test_rows_of_words_are_predicted_as_they_are(run: Finished, tmp_path: Path) -> None:
    source = tmp_path / "new.jsonl"
    source.write_text(json.dumps({"text": ["Ada", "Lovelace", "isn't", "here", "."]}) + "\n")
    predict_file(load(run.folder), "entities", str(source), tmp_path / "out.jsonl")
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row["words_entities"] == ["Ada", "Lovelace", "isn't", "here", "."]
    assert len(row["tags_entities"]) == 5


def test_long_texts_are_read_in_windows_everywhere(tmp_path: Path, settings: list[str]) -> None:
    words, tags = LONG.split(), ["B-N" if w in ("Ada", "Tom") else "O" for w in LONG.split()]
    rows = [{"words": words[n:], "tags": tags[n:]} for n in range(0, 200, 20)]
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"kind": "tokens", "text": "words", "label": "tags", "train": str(path), "dev": str(path)}
    task["head"] = {"name": "tags", "stride": 9}
    finished = train({"tasks": {"t": task}}, tmp_path / "run", [*settings, "max_length=20"])
    predicted = lines(finished.folder, "t-dev")
    assert [len(row["prediction"]) for row in predicted] == [len(row["words"]) for row in rows]
    assert finished.summary.tasks["t"].data["train"]["lengths"]["truncated"] == 0
    (prediction,) = load(finished.folder).predict("t", " ".join(words))
    given = [tag for tag, word in zip(prediction.label or (), prediction.word_texts or (), strict=True) if word != "."]  # type: ignore[arg-type]
    assert len(given) == len(words)
    prepared = prepare(read_recipe(finished.folder / "recipe.yaml"))
    assert any("overlapping windows" in str(finding) for finding in examine(prepared.tasks, prepared.packer))


# --- reading ----------------------------------------------------------------------------------------------------------
def test_lengths_are_counted_and_nothing_is_truncated(run: Finished, tmp_path: Path, settings: list[str]) -> None:
    predictor = load(run.folder)
    tokenizer = predictor.bundle.tokenizer
    for text in (*TEXTS, LONG):
        (prediction,) = predictor.predict("entities", text)
        assert prediction.tokens == tokenizer.count(text) + 2
        assert not prediction.truncated
        assert len(prediction.label or ()) == len(prediction.word_texts or ())
    assert all(row["tokens"] > 2 and row["truncated"] is False for row in lines(run.folder))
    assert evaluate_run(run.folder).truncated == {"entities": 0}
    (tmp_path / "new.jsonl").write_text(json.dumps({"text": LONG}) + "\n")
    done = predict_file(predictor, "entities", str(tmp_path / "new.jsonl"), tmp_path / "out.jsonl")
    assert done.truncated == {"entities": 0}
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert row["tokens_entities"] == tokenizer.count(LONG) + 2
    assert row["truncated_entities"] is False


def test_windows_are_no_error_where_truncated_texts_are(tmp_path: Path, settings: list[str]) -> None:
    rows = [{"text": LONG, "spans": [{"start": 0, "end": 3, "label": label}], "long": label} for label in "ab" * 20]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"text": "text", "train": str(tmp_path / "rows.jsonl"), "dev": str(tmp_path / "rows.jsonl")}
    tasks = {"entities": {"kind": "tokens", "label": "spans", **files}}
    content = {"encoder": "minilm", "truncate": "error", "max_length": 32, "tasks": tasks}
    short = [*settings, "max_length=32", "train.epochs=1", "train.steps_per_epoch=1"]
    done = train(recipe_from(content, short), tmp_path / "run")
    (tmp_path / "new.jsonl").write_text(json.dumps({"text": LONG.split()}) + "\n")
    predict_file(load(done.folder), None, str(tmp_path / "new.jsonl"), tmp_path / "out.jsonl")
    tasks["long"] = {"kind": "classes", "label": "long", **files}
    with pytest.raises(UserError, match="longer than max_length"):
        prepare(recipe_from(content, short))


def test_probabilities_of_tags_are_calibrated(run: Finished) -> None:
    found = run.summary.calibration["entities"]
    predictor = load(run.folder)
    assert predictor.bundle.temperatures["entities"] == found["temperature"] != 1
    assert found["rows"] == sum(len(row["label"]) for row in lines(run.folder))
    (outputs,) = predictor.outputs("entities", [(TEXTS[0],)])
    expected = (outputs[0, :, :-1] / found["temperature"]).softmax(-1).amax(-1)
    (prediction,) = predictor.predict("entities", TEXTS[0])
    assert prediction.word_probabilities == pytest.approx(expected.tolist())
    assert evaluate_run(run.folder).calibration["entities"]["before"] == {
        key: pytest.approx(found["before"][key]) for key in ("log_loss", "calibration_error")
    }


def test_spans_that_are_not_sure_are_left_out(tmp_path: Path, settings: list[str]) -> None:
    settings = [*settings, "tasks.entities.loss={name: cross_entropy, class_weights: balanced}"]
    run = train(ENTITIES, tmp_path / "plain", settings)
    (plain,) = load(run.folder).predict("entities", LONG)
    assert plain.spans
    threshold = float(np.median([span.probability for span in plain.spans]))
    (sure,) = load(run.folder, abstain_below=threshold).predict("entities", LONG)
    assert sure.spans == tuple(span for span in plain.spans if span.probability >= threshold)
    assert sure.abstained
    assert mark_spans(sure, LONG).plain.endswith("(without spans whose probability is below the threshold)")
    assert not plain.abstained
    assert sum(tag.startswith("B-") for tag in sure.label or ()) == len(sure.spans)
    done = train(ENTITIES, tmp_path / "run", [*settings, f"tasks.entities.abstain_below={threshold}"])
    assert load(done.folder).predict("entities", LONG) == [sure]
    assert done.summary.evaluations["dev"] == run.summary.evaluations["dev"]  # scores count all spans
    (tmp_path / "new.jsonl").write_text(json.dumps({"text": LONG}) + "\n")
    written = predict_file(load(done.folder), "entities", str(tmp_path / "new.jsonl"), tmp_path / "out.jsonl")
    assert written.abstained == {"entities": 1}
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert len(row["predicted_entities"]) == len(sure.spans)
    assert row["abstained_entities"] is True
    rows = lines(done.folder)
    assert [row["prediction"] for row in rows] == [row["prediction"] for row in lines(run.folder)]
    unsure = [any(span["probability"] < threshold for span in row["spans"]) for row in rows]
    assert [row.get("abstained", False) for row in rows] == unsure
    chosen = done.summary.calibration["entities"]["coverage"]["chosen"]
    assert 0 < chosen["coverage"] < 1
    assert "Predicted spans that are kept" in (done.folder / "report.html").read_text()


def test_batches_of_tokens_and_tasks_that_stop(tmp_path: Path, settings: list[str]) -> None:
    more = [
        "train.batch_tokens=200",
        "train.batch_size=32",
        "train.stop=per_task",
        "train.patience=1",
        "train.evaluate_every=2",
    ]
    entities = "{kind: tokens, text: text, label: spans, train: sample:entities-train, dev: sample:entities-dev}"
    recipe = read_recipe(RECIPES / "quickstart.yaml", [*settings, *more, f"tasks.entities={entities}"])
    running = start_training(recipe, tmp_path / "run")
    own = [report.tokens for report in running.steps() if "entities" in report.losses]
    assert np.mean(own) == pytest.approx(200, rel=0.1)
    assert "entities" in running.finish().summary.task_bests


def test_every_way_of_writing_labels_trains_the_same_model(tmp_path: Path, settings: list[str]) -> None:
    sentences = [(["Ada", "Byron", "left", place, "."], ["B-P", "I-P", "O", "B-L", "O"]) for place in ("Rome", "Oslo")]
    sentences = [(words, tags) for words, tags in sentences for _ in range(6)]
    files = {
        "conll": "".join("".join(f"{w} x {t}\n" for w, t in zip(*s, strict=True)) + "\n" for s in sentences),
        "jsonl": "".join(json.dumps({"0": words, "2": tags}) + "\n" for words, tags in sentences),
        "csv": "0,2\n" + "".join(f"{' '.join(words)},{' '.join(tags)}\n" for words, tags in sentences),
    }
    spans = [{"0": " ".join(w), "2": [{"start": 0, "end": 9, "label": "P"}]} for w, _ in sentences]
    for row in spans:
        row["2"].append({"start": 15, "end": 19, "label": "L"})  # type: ignore[attr-defined]
    files["spans.jsonl"] = "".join(json.dumps(row) + "\n" for row in spans)
    losses = set()
    for name, content in files.items():
        path = tmp_path / f"data.{name}"
        path.write_text(content)
        task = {"kind": "tokens", "text": 0, "label": 2, "train": str(path), "dev": str(path)}
        finished = train({"tasks": {"t": task}}, tmp_path / name, [*settings, "train.steps_per_epoch=3"])
        assert finished.summary.tasks["t"].classes == ("O", "B-L", "I-L", "B-P", "I-P")
        assert [row["label"] for row in lines(finished.folder, "t-dev")] == [tags for _, tags in sentences]
        losses.add(finished.summary.evaluations["dev"]["t"]["loss"])
    assert len(losses) == 1


def test_parts_of_speech_are_plain_tags(tmp_path: Path, settings: list[str]) -> None:
    path = tmp_path / "pos.conllu"
    line = "{}\t{}\t_\t{}\t_\t_\t_\t_\t_\t_\n"
    sentence = [("dogs", "NOUN"), ("bark", "VERB"), ("loudly", "ADV")]
    path.write_text("\n".join("".join(line.format(i + 1, *w) for i, w in enumerate(sentence)) for _ in range(9)))
    task = {"kind": "tokens", "text": "FORM", "label": "UPOS", "train": str(path), "dev": str(path)}
    finished = train({"tasks": {"t": task}}, tmp_path / "run", [*settings, "train.steps_per_epoch=3"])
    assert read_tasks(finished.folder / "model" / "tasks.json").tasks["t"].scheme == "plain"
    metrics = finished.summary.evaluations["dev"]["t"]["metrics"]
    assert metrics["f1"]["value"] == metrics["accuracy"]["value"]
    assert finished.summary.evaluations["dev"]["t"]["primary"] == finished.summary.tasks["t"].metric == "accuracy"
    assert finished.summary.baselines["t"]["metric"] == "accuracy"
    (none,) = load(finished.folder, abstain_below=1.0).predict("t", "dogs bark")
    assert (none.label, none.spans, none.abstained) == (("", ""), (), True)
    assert finished.summary.tasks["t"].data["dev"]["labels"] == {"names": ["ADV", "NOUN", "VERB"], "counts": [9, 9, 9]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "Ada left", "label": [{"start": 0, "end": 9, "label": "P"}]}], "outside the text"),
        ([{"text": "Ada left", "label": [{"start": 1, "end": 3, "label": "P"}]}], "at the borders of words"),
        ([{"text": ["Ada", "left"], "label": ["B-P"]}], r"1 tag\(s\) for 2 word\(s\)"),
        ([{"text": ["Ada", ""], "label": ["B-P", "O"]}], "a word is empty or not a text"),
        ([{"text": [], "label": []}], "the text is empty"),
        ([{"text": "Ada", "label": None}], "no tags"),
        ([{"text": {"a": 1}, "label": ["O"]}], "a list or table; expected text"),
    ],
)
def test_rows_that_cannot_be_used_are_listed(
    rows: list[Any], message: str, tmp_path: Path, settings: list[str]
) -> None:
    good = {"text": ["Ada", "left"], "label": ["B-P", "O"]}
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [good, *rows]))
    task = {"kind": "tokens", "text": "text", "label": "label", "train": str(path), "dev": str(path), "scheme": "bio"}
    with pytest.raises(UserError, match=message):
        prepare(recipe_of(task, settings))
    kept = prepare(recipe_of({**task, "broken_rows": "skip"}, settings))
    assert len(kept.tasks["t"].splits["train"]) == 1


def recipe_of(task: dict[str, Any], settings: list[str]) -> Any:
    return recipe_from({"tasks": {"t": task}}, settings)


@pytest.mark.parametrize(
    ("settings_of_task", "message"),
    [
        (["scheme=iob"], "scheme: must be one of bio, bioes, plain"),
        (["text=[text, spans]"], "text: must be one column for kind tokens"),
        (["kind=classes", "scheme=bio"], "scheme: must be left out for kind classes"),
        (["head=linear"], "linear does not support kind tokens; choose one of: tags"),
        (["metrics=[seqeval.metrics:f1_score]"], "metrics: must be left out for kind tokens"),
        (["metric=matthews"], "no metric 'matthews' for kind tokens"),
        (["classes=[person, place]"], "is not one of the task's classes"),
        (["label=text"], "'Rosalind' is not among the labels of the training rows"),
        (["label=missing"], "no column 'missing'"),
    ],
)
def test_recipes_that_are_refused(settings_of_task: list[str], message: str, settings: list[str]) -> None:
    with pytest.raises(UserError, match=message):
        prepare(read_recipe(ENTITIES, [*settings, *(f"tasks.entities.{one}" for one in settings_of_task)]))


# --- with everything else ---------------------------------------------------------------------------------------------
def test_the_report_shows_classes_tags_and_mistakes(run: Finished) -> None:
    page = Page((run.folder / "report.html").read_text(encoding="utf-8"))
    for words in ("a tag for each word", "The table counts spans", "Confusion matrix", "one of 9 tags for each word"):
        assert words in page.text, words
    assert "a tag for each word: `O`" in (run.folder / "model" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("loss", ["{name: cross_entropy, smoothing: 0.1, class_weights: balanced}", "focal"])
def test_other_losses_learn_and_use_rows_without_labels(
    run: Finished, tmp_path: Path, settings: list[str], loss: str
) -> None:
    rows = "".join(json.dumps({"text": text, "spans": None}) + "\n" for text in (*TEXTS, LONG) * 4)
    (tmp_path / "more.jsonl").write_text(rows)
    more = [f"tasks.entities.unlabelled={tmp_path / 'more.jsonl'}", f"teachers.entities={run.folder}"]
    plain = train(ENTITIES, tmp_path / "plain", [*settings, f"tasks.entities.loss={loss}"])
    taught = train(ENTITIES, tmp_path / "taught", [*settings, f"tasks.entities.loss={loss}", *more])
    own = [one.summary.evaluations["dev"]["entities"]["loss"] for one in (run, plain, taught)]
    assert np.isfinite(own).all()
    assert len(set(own)) == 3


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("ordinal", "ordinal does not support kind tokens; choose one of: cross_entropy, focal"),
        ("{name: focal, class_weights: [1, 2]}", "class_weights: must be one number above 0 for each of the 9 classes"),
    ],
)
def test_losses_that_are_refused(tmp_path: Path, settings: list[str], loss: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        start_training(read_recipe(ENTITIES, [*settings, f"tasks.entities.loss={loss}"]), tmp_path / "run")


def test_two_recipes_are_compared(tmp_path: Path, settings: list[str]) -> None:
    runs = {}
    for name, more in {"plain": [], "dropout": ["tasks.entities.head={name: tags, dropout: 0.4}"]}.items():
        runs[name] = [train(ENTITIES, tmp_path / f"{name}{s}", [*settings, *more, f"seed={s}"]).folder for s in (0, 1)]
    (comparison,) = compare_runs([*runs["plain"], *runs["dropout"]], tmp_path / "comparison")["comparisons"]
    assert comparison["task"] == "entities"
    assert comparison["low"] <= comparison["difference"] <= comparison["high"]


def test_tags_join_a_run_and_are_remembered(tiny_run: Finished, tmp_path: Path) -> None:
    content = {"kind": "tokens", "text": "text", "label": "spans"}
    content |= {"train": "sample:entities-train", "dev": "sample:entities-dev"}
    short = ["train.epochs=1", "train.steps_per_epoch=4"]
    added = add_task(tiny_run.folder, {"tasks": {"entities": content}}, tmp_path / "added", short)
    opinion = {"kind": "classes", "text": "text", "label": "opinion"}
    opinion |= {"train": "sample:opinions-train", "dev": "sample:opinions-dev"}
    replay = {"tasks": {"again": opinion}, "policy": "replay", "add": {"guarantee": "measured", "distill": 0.5}}
    more = add_task(added.folder, replay, tmp_path / "more", [*short, "add.max_drop=null"])
    old = more.summary.added.old["entities"]  # type: ignore[union-attr]
    assert old["difference"]["low"] <= old["difference"]["value"] <= old["difference"]["high"]
    both = load(more.folder).predict_tasks(TEXTS[0], tasks=["opinion", "entities", "again"])
    assert isinstance(both["opinion"][0].label, str)
    assert both["entities"][0].spans is not None


def test_an_exported_task_answers_as_before(run: Finished, tmp_path: Path) -> None:
    file = export_adapter(run.folder, "entities", tmp_path / "entities.safetensors")
    model, before = load(combine(run.folder, [file], tmp_path / "combined")), load(run.folder)
    assert model.predict("entities", TEXTS) == before.predict("entities", TEXTS)
    assert model.bundle.labels["entities"] == before.bundle.labels["entities"]


@pytest.mark.parametrize("max_length", [64, 16])
def test_teachers_and_rows_without_labels(run: Finished, tmp_path: Path, settings: list[str], max_length: int) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text("".join(json.dumps({"text": f"{text} {n}"}) + "\n" for n in range(20) for text in TEXTS))
    named = [f"teachers.entities=[{run.folder}, {run.folder}]", f"tasks.entities.unlabelled={more}"]
    policy = ["policy=replay", "regularizers=[smart, r_drop, bregman]", "train.steps_per_epoch=4"]
    finished = train(ENTITIES, tmp_path / "student", [*settings, *named, *policy, f"max_length={max_length}"])
    assert np.isfinite(finished.summary.evaluations["dev"]["entities"]["loss"])
    assert finished.summary.tasks["entities"].data["unlabelled"]["rows"] == 40


def test_a_damaged_description_is_refused(run: Finished, tmp_path: Path) -> None:
    content = json.loads((run.folder / "model" / "tasks.json").read_text())
    content["tasks"]["entities"]["scheme"] = None
    (tmp_path / "tasks.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="scheme: must be given for kind tokens only, found None"):
        read_tasks(tmp_path / "tasks.json")


@pytest.mark.parametrize("kind", ["roberta", "modernbert", "distilbert"])
def test_other_encoders_tag_words(kind: str, tmp_path: Path, settings: list[str]) -> None:
    more = [f"encoder={{kind: {kind}, layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 128}}", "max_length=16"]
    finished = train(ENTITIES, tmp_path / "run", [*settings, *more, "train.steps_per_epoch=3"])
    predicted = load(finished.folder).predict("entities", TEXTS)
    assert [len(one.label or ()) for one in predicted] == [6, 8]  # type: ignore[arg-type]


def test_rows_in_memory_are_fitted_and_predicted(tmp_path: Path) -> None:
    rows = [{"words": ["Ada", "left", f"Rome{n}"], "tags": ["B-P", "O", "B-L"]} for n in range(20)]
    task = Tokens(rows, text="words", label="tags")
    encoder = {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "positions": 128}
    fitted = fit({"t": task}, encoder, run=tmp_path / "run", train={"epochs": 1, "device": "cpu"})
    assert fitted.evaluations["dev"].tasks["t"].examples == 4
    found = fitted.model.predict(rows[:2], task="t")
    assert [row["words_t"] for row in found] == [row["words"] for row in rows[:2]]
