"""Whole runs with options: predictions in all forms, other numbers of options, resuming, comparing, adding, mixing."""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from polytask import (
    Finished,
    UserError,
    add_task,
    compare_runs,
    evaluate_run,
    export_adapter,
    load,
    predict_file,
    prepare,
    read_recipe,
    recipe_from,
    rehearse,
    start_training,
    text_maps,
    train,
    write_text_maps,
)
from polytask.runs.tasks_file import read_tasks

from .conftest import prediction_lines

RECIPE = Path(__file__).parent.parent.parent / "recipes" / "choice.yaml"
QUICKSTART = RECIPE.with_name("quickstart.yaml")
TASK = "{kind: choice, text: message, options: [reply_0, reply_1, reply_2, reply_3], label: best, "
TASK += "train: 'sample:replies-train', dev: 'sample:replies-dev'}"
TEXT, OPTIONS = "My kettle never arrived.", ["I will trace it.", "Enjoy it!", "It is sold out."]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> Finished:
    return train(RECIPE, tmp_path_factory.mktemp("choice") / "run", settings)


def lines(run: Path, name: str = "reply-dev") -> list[dict[str, Any]]:
    return prediction_lines(run, name)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_run_and_its_files(run: Finished) -> None:
    entry = read_tasks(run.folder / "model" / "tasks.json").tasks["reply"]
    assert entry.options == ("reply_0", "reply_1", "reply_2", "reply_3")
    assert (entry.kind, entry.classes, entry.head.name) == ("choice", (), "choice")
    rows = lines(run.folder)
    assert len(rows) == 96
    for row in rows:
        options = row["text"][1:]
        assert list(row["probabilities"]) == options
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == options[row["index"]]
        assert row["label"] == options[row["label_index"]]
        assert row["probabilities"][row["prediction"]] == max(row["probabilities"].values())
    metrics = run.summary.evaluations["dev"]["reply"]["metrics"]
    assert metrics["accuracy"]["value"] == sum(row["index"] == row["label_index"] for row in rows) / 96
    assert set(metrics) == {"accuracy", "mrr", "log_loss", "calibration_error"}
    assert "one of the options of the row" in (run.folder / "report.html").read_text()
    assert 'predict("reply", "text", ["an option"' in (run.folder / "model" / "README.md").read_text()
    assert run.summary.baselines["reply"]["what"].startswith("always option")
    assert "reply" in run.summary.calibration


def test_evaluating_again_gives_the_same_scores(run: Finished, tmp_path: Path) -> None:
    again = evaluate_run(run.folder)
    assert again.tasks["reply"].value == run.summary.evaluations["dev"]["reply"]["metrics"]["accuracy"]["value"]
    rows = [
        {"message": TEXT, **{f"reply_{n}": text for n, text in enumerate([*OPTIONS, ""])}, "best": n} for n in range(3)
    ]
    assert evaluate_run(run.folder, on={"reply": rows}).tasks["reply"].examples == 3
    rows[1]["best"] = 3
    with pytest.raises(UserError, match="line 2, column 'best': '3': not one of the row's options, and not an index"):
        evaluate_run(run.folder, on={"reply": rows})


def test_a_killed_run_ends_with_the_same_model(run: Finished, tmp_path: Path, settings: list[str]) -> None:
    list(itertools.islice(start_training(read_recipe(RECIPE, settings), tmp_path / "run").steps(), 6))
    resumed = train(RECIPE, tmp_path / "run", settings, resume=True)
    for name in ("model.safetensors", "parts.safetensors", "tasks.json"):
        assert (resumed.folder / "model" / name).read_bytes() == (run.folder / "model" / name).read_bytes()
    assert lines(resumed.folder) == lines(run.folder)


# --- predictions ------------------------------------------------------------------------------------------------------
def test_predictions_do_not_depend_on_other_rows(run: Finished) -> None:
    model = load(run.folder)
    (one,) = model.predict("reply", TEXT, OPTIONS)
    assert one.index is not None
    assert one.label == OPTIONS[one.index]
    assert list(one.probabilities or {}) == OPTIONS
    many = [f"reply number {n}" for n in range(9)]  # more options than any training row has
    both = model.predict("reply", [TEXT, "Thank you", ""], [OPTIONS, many, OPTIONS])
    assert both[0].probabilities == pytest.approx(one.probabilities, abs=1e-5)
    assert len(both[1].probabilities or {}) == 9
    assert (both[2].label, both[2].index, both[2].probabilities) == (None, None, None)
    plain = load(run.folder, few=True)  # without the faster encoder
    assert plain.predict("reply", TEXT, OPTIONS)[0].probabilities == pytest.approx(one.probabilities, abs=1e-5)
    backwards = model.predict("reply", TEXT, OPTIONS[::-1])[0]
    assert backwards.label == one.label
    assert (one.tokens or 0) > 0
    assert not one.truncated
    assert model.predict("reply", "kettle " * 200, OPTIONS)[0].truncated
    (none,) = load(run.folder, abstain_below=0.99).predict("reply", TEXT, OPTIONS)
    assert (none.label, none.index, none.abstained) == (None, None, True)
    assert list(none.probabilities or {}) == OPTIONS


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TEXT, None, "kind choice takes a text and a list of options"),
        (TEXT, "one", "kind choice takes a text and a list of options"),
        ([TEXT], OPTIONS, "kind choice takes a text and a list of options"),
        (TEXT, ["one"], r"example 0 \(counted from 0\): 1 option\(s\); expected 2 to 256"),
        (TEXT, ["one", "one"], "are the same text"),
        (TEXT, ["one", "", "two"], "is empty"),
        ([TEXT, TEXT], [OPTIONS, ["x"]], r"example 1 \(counted from 0\): 1 option"),
    ],
)
def test_options_that_cannot_be_predicted(run: Finished, text: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(run.folder).predict("reply", text, options)


def test_one_text_without_options_is_not_enough(run: Finished) -> None:
    with pytest.raises(UserError, match=r"found 1 text\(s\), but the tasks take: reply 1 and options \(--option\)"):
        load(run.folder).predict_tasks(TEXT)


def test_a_task_that_is_named_says_how_options_are_given(run: Finished) -> None:
    with pytest.raises(UserError, match=r"task reply takes a text and two or more options \(--option, .*found .'Hm"):
        load(run.folder).predict_tasks("Hm.", tasks=["reply"])


def test_words_of_the_text_and_of_the_chosen_option_are_explained(run: Finished) -> None:
    model = load(run.folder)
    (whole,) = model.predict("reply", TEXT, OPTIONS)
    found = model.explain(TEXT, OPTIONS, task="reply")
    assert found.prediction == whole
    assert found.label == whole.label
    assert found.texts == (TEXT, *OPTIONS)
    assert whole.index is not None
    assert {word.text for word in found.words} == {0, 1 + whole.index}
    for word in found.words:
        without = list(found.texts)
        without[word.text] = without[word.text][: word.start] + without[word.text][word.end :]
        (changed,) = model.predict("reply", without[0], without[1:])
        shares = [list((one.probabilities or {}).values())[whole.index] for one in (whole, changed)]
        assert word.value == pytest.approx(shares[0] - shares[1], abs=1e-5)
    assert str(found).startswith(f"reply: {whole.label} (")


def test_the_words_of_another_option_are_explained(run: Finished) -> None:
    found = load(run.folder).explain(TEXT, ["Yes", "No"], task="reply", label="No")
    assert found.label == "No"
    assert [word.word for word in found.words if word.text == 2] == ["No"]  # without it, the option is still one
    assert not [word for word in found.words if word.text == 1]
    with pytest.raises(UserError, match="explain: label: there is no option 'Maybe'"):
        load(run.folder).explain(TEXT, ["Yes", "No"], task="reply", label="Maybe")
    for text, options in ((TEXT, None), (TEXT, "Yes"), ([TEXT], ["Yes", "No"])):
        with pytest.raises(UserError, match="explain: kind choice takes a text and a list of options; found"):
            load(run.folder).explain(text, options, task="reply")
    with pytest.raises(UserError, match="takes a text and two or more options"):
        load(run.folder).explain(TEXT, ["Yes"], task="reply")


def test_maps_of_a_text_with_each_option(run: Finished) -> None:
    maps = text_maps(run.folder, TEXT, options=OPTIONS)
    assert [one.tokens.count("[SEP]") for one in maps] == [2, 2, 2]
    page = write_text_maps(run.folder, TEXT, options=OPTIONS).read_text()
    assert "this text with each of its options" in page
    for number, option in enumerate(OPTIONS, 1):
        assert f"<h2>Option {number}: {option}</h2>" in page
    with pytest.raises(UserError, match=r"found 1 text\(s\), but the tasks take: reply 1 and options \(--option\)"):
        text_maps(run.folder, TEXT)
    with pytest.raises(UserError, match=r"report: task reply: 1 option\(s\); expected 2 to 256"):
        text_maps(run.folder, TEXT, options=["one"])


def test_files_and_tables(run: Finished, tmp_path: Path) -> None:
    model = load(run.folder)
    expected = model.predict("reply", [TEXT, "Thank you"], [OPTIONS, OPTIONS[:2]])
    names = [f"reply_{n}" for n in range(4)]
    rows = [dict.fromkeys(names, "") | {"message": text} for text in (TEXT, "Thank you", "")]
    rows[0] |= dict(zip(names, OPTIONS, strict=False))
    rows[1] |= dict(zip(names, OPTIONS[:2], strict=False))
    rows[2] |= dict(zip(names, OPTIONS[:2], strict=False))
    with (tmp_path / "new.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["message", *names])
        writer.writeheader()
        writer.writerows(rows)
    done = predict_file(model, None, str(tmp_path / "new.csv"), tmp_path / "out.csv", probabilities="all")
    assert (done.rows, done.without_text) == (3, {"reply": 1})
    found = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["predicted_reply"] for row in found] == [expected[0].label, expected[1].label, ""]
    assert [row["index_reply"] for row in found] == [str(expected[0].index), str(expected[1].index), ""]
    shares = json.loads(found[0]["probabilities_reply"])
    assert shares == pytest.approx(list((expected[0].probabilities or {}).values()), abs=1e-5)
    table = model.predict(rows[:2])
    assert [row["index_reply"] for row in table] == [expected[0].index, expected[1].index]
    lists = [{"q": TEXT, "answers": OPTIONS}, {"q": "Thank you", "answers": OPTIONS[:2]}]
    source = write_rows(tmp_path / "lists.jsonl", lists)
    predict_file(model, "reply", source, tmp_path / "out.jsonl", ["q", "answers"], probabilities="all")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["predicted_reply"] for row in written] == [expected[0].label, expected[1].label]
    assert written[0]["probabilities_reply"] == pytest.approx(shares, abs=1e-5)
    source = write_rows(tmp_path / "bad.jsonl", [lists[0], {"q": "x", "answers": ["one"]}])
    with pytest.raises(UserError, match=r"bad.jsonl, line 2, column 'answers': 1 option"):
        predict_file(model, "reply", source, tmp_path / "bad-out.jsonl", ["q", "answers"])
    with pytest.raises(UserError, match="must be the text column and the columns with options, found 'q'"):
        predict_file(model, "reply", source, tmp_path / "bad-out.jsonl", ["q"])


# --- data -------------------------------------------------------------------------------------------------------------
def recipe_of(tmp_path: Path, rows: list[dict[str, Any]], **more: Any) -> Any:
    file = write_rows(tmp_path / "rows.jsonl", rows)
    task = {"kind": "choice", "text": "q", "options": "answers", "label": "right", "train": file, "dev": file, **more}
    return recipe_from({"name": "x", "encoder": {"layers": 1, "hidden": 16, "heads": 2}, "tasks": {"t": task}})


def test_lists_and_columns_are_the_same_task(tmp_path: Path) -> None:
    rows = [
        {"q": f"question {n}", "answers": ["a b", "c", "d"][: 2 + n % 2], "right": n % 2, "x": "a b", "y": "c"}
        | ({"z": "d"} if n % 2 else {"z": None})
        for n in range(6)
    ]
    lists = prepare(recipe_of(tmp_path, rows)).tasks["t"].splits["dev"]
    columns = prepare(recipe_of(tmp_path, rows, options=["x", "y", "z"])).tasks["t"].splits["dev"]
    assert lists.labels.tolist() == columns.labels.tolist() == [[n % 2, 2 + n % 2] for n in range(6)]
    assert lists.store.width == columns.store.width == 4
    assert [example.texts for example in lists.examples()] == [example.texts for example in columns.examples()]
    assert [example.label for example in lists.examples()] == ["a b", "c"] * 3
    assert [tokens.tolist() for tokens in lists.tokens(0)] == [tokens.tolist() for tokens in columns.tokens(0)]


def test_broken_rows_are_named(tmp_path: Path) -> None:
    good = {"q": "q", "answers": ["a", "b"], "right": "a"}
    bad = [{"answers": ["a"]}, {"answers": "a"}, {"right": "c"}, {"answers": ["a", "a"]}, {"q": ""}, {"right": None}]
    rows = [good, *({**good, **fields} for fields in bad)]
    with pytest.raises(UserError) as refused:
        prepare(recipe_of(tmp_path, rows))
    said = str(refused.value)
    for line, problem in enumerate(
        [
            "column 'answers': \"['a']\": 1 option(s); expected 2 to 256",
            "column 'answers': 'a': must be a list such as",
            "column 'right': 'c': not one of the row's options, and not an index",
            "column 'answers': \"['a', 'a']\": options 0 and 1 (counted from 0) are the same text",
            "column 'q': the text is empty",
            "column 'right': the label is empty",
        ],
        start=2,
    ):
        assert f"line {line}, {problem}" in said
    assert len(prepare(recipe_of(tmp_path, rows, broken_rows="skip")).tasks["t"].splits["dev"]) == 1


def test_rows_with_a_blank_label_are_skipped(tmp_path: Path) -> None:
    rows = [{"q": f"q {n}", "answers": ["a", "b"], "right": [0, None, "b", ""][n % 4]} for n in range(8)]
    split = prepare(recipe_of(tmp_path, rows, blank_labels="skip")).tasks["t"].splits["train"]
    assert (len(split), split.num_blank) == (4, 4)
    assert split.labels.tolist() == [[0, 2], [1, 2]] * 2


def test_an_option_that_the_tokenizer_drops_is_an_option(tmp_path: Path) -> None:
    rows = [{"q": "q", "answers": ["a", "\u200b", "b"], "right": 1}, {"q": "r", "answers": ["a", "b"], "right": 1}]
    split = prepare(recipe_of(tmp_path, rows)).tasks["t"].splits["dev"]
    assert [len(tokens) > 0 for tokens in split.tokens(0)] == [True] * 4
    assert [len(tokens) > 0 for tokens in split.tokens(1)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": None}, "tasks.t.options: must be the column with lists of options, or a list of two or more"),
        ({"options": ["answers"]}, "tasks.t.options: must be the column with lists of options"),
        ({"options": ["x", "x"]}, "tasks.t.options: must be at most 256 different columns"),
        ({"options": ["q", "x"]}, "tasks.t.options: must be at most 256 different columns, without that of the text"),
        ({"text": ["q", "x"]}, "tasks.t.text: must be one column for kind choice"),
        ({"tags": ["x"]}, "tasks.t.tags: must be left out for kind choice"),
        (
            {"loss": "ordinal"},
            "tasks.t.loss: ordinal does not support kind choice; choose one of: cross_entropy, focal",
        ),
        ({"loss": {"name": "focal", "class_weights": "balanced"}}, "class_weights: must be left out for kind choice"),
        ({"share_rows": "g"}, "tasks.t.share_rows: must be left out for kind choice, which reads the text with each"),
        ({"classes": ["a", "b"]}, "tasks.t.classes: must be left out for kind choice"),
        ({"separator": "|"}, "tasks.t.separator: must be left out for kind choice"),
        ({"label": ["right", "x"]}, "tasks.t.label: must be one column for kind choice"),
        ({"kind": "yes_no"}, "tasks.t.options: must be left out for kind yes_no, found 'answers'"),
        ({"metric": "f1"}, "there is no metric 'f1' for kind choice"),
        ({"head": "linear"}, "linear does not support kind choice; choose one of: choice"),
        ({"options": "anwsers"}, "no column 'anwsers'; its columns are: q, answers, right; did you mean 'answers'"),
    ],
)
def test_bad_recipes(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rehearse(recipe_of(tmp_path, [{"q": "q", "answers": ["a", "b"], "right": 0}], **fields))


def test_the_data_check_reports_one_place_and_leaks(tmp_path: Path) -> None:
    rows = [{"q": f"q {n}", "answers": [f"a {n}", f"b {n}"], "right": 0} for n in range(30)]
    findings = {finding.what: finding for finding in prepare(recipe_of(tmp_path, rows)).findings()}
    assert findings["one_sided"].sentence.startswith("the right option has the index 0 in 100.0 % of the rows; shuffle")
    assert findings["leak"].count == 30
    assert "empty_texts" not in findings


# --- together with other tasks ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "methods",
    [
        ["sampler=mixed", "adapter={name: pal, size: 12, heads: 3}", "regularizers=[smart]"],
        pytest.param(["sampler=mixed", "policy=gem", "adapter={name: houlsby, size: 8}"], marks=pytest.mark.slow),
        ["sampler=round_robin", "policy=pcgrad", "regularizers=[r_drop]", "adapter={name: prefix, length: 3}"],
        pytest.param(["sampler=in_order", "regularizers=[lwf]", "train.ema=0.9"], marks=pytest.mark.slow),
    ],
)
def test_options_are_mixed_with_other_tasks(tmp_path: Path, tiny_settings: list[str], methods: list[str]) -> None:
    finished = train(QUICKSTART, tmp_path / "run", [*tiny_settings, f"tasks.reply={TASK}", *methods])
    assert set(finished.summary.evaluations["dev"]) == {"opinion", "question", "similarity", "reply"}
    predictor = load(finished.folder)
    assert predictor.predict("reply", TEXT, OPTIONS)[0].label in OPTIONS
    assert predictor.predict("opinion", "fine")[0].label is not None


def test_a_teacher_adding_exporting_and_comparing(run: Finished, tmp_path: Path, settings: list[str]) -> None:
    taught = train(RECIPE, tmp_path / "taught", [*settings, f"teachers.reply={run.folder}", "seed=5"])
    text = compare_runs([run.folder, taught.folder], tmp_path / "comparison")
    assert "reply" in str(text)
    new = tmp_path / "add.yaml"
    new.write_text(
        "tasks:\n  opinion: {kind: classes, text: text, label: opinion, train: 'sample:opinions-train', "
        "dev: 'sample:opinions-dev'}\ntrain: {epochs: 1, steps_per_epoch: 2, batch_size: 4}\n"
    )
    added = add_task(run.folder, new, tmp_path / "added")
    before, after = (load(one.folder).predict("reply", TEXT, OPTIONS) for one in (run, added))
    assert before == after
    file = export_adapter(run.folder, "reply", tmp_path / "reply.safetensors")
    assert Path(str(file)).exists()
