"""Whole runs with pairs that belong together: predictions, search, resuming, comparing, adding, exporting, methods."""

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polytask
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
    read_recipe,
    rehearse,
    start_training,
    train,
)
from polytask.runs.tasks_file import read_tasks

from ..conftest import Page
from .conftest import prediction_lines

RECIPE = Path(__file__).parent.parent.parent / "recipes" / "match.yaml"
PAIRS = [("My hoover is loud", "A noisy Vento has a loose screw."), ("Is it white?", "The Lumo is made in white.")]
OTHERS = [
    "tasks.opinion={kind: classes, text: text, label: opinion, train: 'sample:opinions-train', "
    "dev: 'sample:opinions-dev'}",
    "tasks.similar={kind: score, text: [sentence1, sentence2], label: similarity, train: 'sample:similarity-train', "
    "dev: 'sample:similarity-dev', head: bi}",
    "tasks.topics={kind: multilabel, text: text, label: topics, train: 'sample:tickets-train', "
    "dev: 'sample:tickets-dev'}",
    "tasks.plain={kind: text, text: text, train: 'sample:opinions-train', dev: 'sample:opinions-dev'}",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, settings: list[str]) -> Finished:
    return train(RECIPE, tmp_path_factory.mktemp("match") / "run", settings)


def lines(run: Path, name: str = "articles-dev") -> list[dict[str, Any]]:
    return prediction_lines(run, name)


def test_the_scores_are_those_of_the_ranks_in_the_file_of_predictions(run: Finished) -> None:
    ranks = np.array([line["rank"] for line in lines(run.folder)])
    metrics = run.summary.evaluations["dev"]["articles"]["metrics"]
    assert metrics["mrr"]["value"] == pytest.approx(np.mean(1 / ranks))
    assert metrics["recall@10"]["value"] == pytest.approx(np.mean(ranks <= 10))
    assert run.summary.tasks["articles"].metric == "mrr"
    random_order = np.mean(1 / np.arange(1, 101))
    assert run.summary.baselines["articles"]["value"] == pytest.approx(random_order)
    assert metrics["mrr"]["value"] > random_order


def test_ranks_are_those_of_a_search_with_embeddings(run: Finished) -> None:
    model, rows = load(run.folder), lines(run.folder)
    questions, articles = ([row["text"][at] for row in rows] for at in (0, 1))
    candidates = sorted(set(articles))
    cosines = model.embed(questions, task="articles") @ model.embed(candidates, task="articles").T
    own = np.array([candidates.index(article) for article in articles])
    ranks = 1 + (cosines > cosines[np.arange(len(rows)), own][:, None] + 1e-6).sum(1)
    assert (ranks == [row["rank"] for row in rows]).mean() > 0.95  # but for ties by rounding
    predicted = [prediction.label for prediction in model.predict("articles", questions, articles)]
    assert predicted == pytest.approx(cosines[np.arange(len(rows)), own].tolist(), abs=1e-5)
    assert predicted == pytest.approx([row["prediction"] for row in rows], abs=1e-5)


def test_predicted_files_have_cosines(run: Finished, tmp_path: Path) -> None:
    source = tmp_path / "new.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([("question", "article"), *PAIRS])
    model = load(run.folder)
    predict_file(model, "articles", str(source), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        read = [float(row["predicted_articles"]) for row in csv.DictReader(file)]
    assert read == pytest.approx([p.label for p in model.predict("articles", PAIRS)], abs=1e-3)
    (empty,) = model.predict("articles", [("a", "")])
    assert empty.label is None


def test_evaluating_again_and_on_other_data(run: Finished) -> None:
    again = evaluate_run(run.folder)
    value = run.summary.evaluations["dev"]["articles"]["metrics"]["mrr"]["value"]
    assert again.tasks["articles"].value == pytest.approx(value)
    rows = [{"question": a, "article": b} for a, b in PAIRS]
    assert evaluate_run(run.folder, on={"articles": rows}).tasks["articles"].examples == 2


def test_a_killed_run_ends_with_the_same_model(run: Finished, tmp_path: Path, settings: list[str]) -> None:
    list(itertools.islice(start_training(read_recipe(RECIPE, settings), tmp_path / "run").steps(), 9))
    resumed = train(RECIPE, tmp_path / "run", settings, resume=True)
    for name in ("model.safetensors", "tasks.json"):
        assert (resumed.folder / "model" / name).read_bytes() == (run.folder / "model" / name).read_bytes()
    assert lines(resumed.folder) == lines(run.folder)


def test_the_report_and_the_card(run: Finished) -> None:
    page = Page((run.folder / "report.html").read_text(encoding="utf-8"))
    for words in ("texts that belong together", "Rows by the rank of their right candidate", "Worst ranks", "no label"):
        assert words in page.text, words
    assert "how well the two texts belong together" in (run.folder / "model" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_recipes_are_compared(run: Finished, tmp_path: Path, settings: list[str]) -> None:
    other = "tasks.articles.head={name: match, symmetric: true, temperature: 0.1, pooling: first}"
    runs = {}
    for name, more in {"plain": [], "symmetric": [other]}.items():
        runs[name] = [train(RECIPE, tmp_path / f"{name}{s}", [*settings, *more, f"seed={s}"]).folder for s in (0, 1)]
    (comparison,) = compare_runs([*runs["plain"], *runs["symmetric"]], tmp_path / "comparison")["comparisons"]
    assert comparison["task"] == "articles"
    assert comparison["low"] <= comparison["difference"] <= comparison["high"]
    model = load(runs["symmetric"][0])
    u, v = model.embed(list(PAIRS[0]), task="articles")
    assert float(u @ v) == pytest.approx(model.predict("articles", *PAIRS[0])[0].label, abs=1e-5)


def test_a_task_joins_a_run_and_stays_when_others_are_added(tiny_run: Finished, tmp_path: Path) -> None:
    content = {"kind": "match", "text": ["question", "article"]}
    content |= {"train": "sample:articles-train", "dev": "sample:articles-dev"}
    short = ["train.epochs=1", "train.steps_per_epoch=4"]
    new = {"tasks": {"articles": content}, "policy": "replay"}
    with pytest.raises(UserError, match=r"the head of task articles has no parameters.*guarantee: measured"):
        add_task(tiny_run.folder, {"tasks": {"articles": content}}, tmp_path / "frozen", short)
    measured = [*short, "add={guarantee: measured, max_drop: null}"]
    added = add_task(tiny_run.folder, new, tmp_path / "added", measured)
    assert read_tasks(added.folder / "model" / "tasks.json").tasks["articles"].label is None
    opinion = {"kind": "classes", "text": "text", "label": "opinion"}
    opinion |= {"train": "sample:opinions-train", "dev": "sample:opinions-dev"}
    replay = {"tasks": {"again": opinion}, "policy": "replay", "add": {"guarantee": "measured", "distill": 0.5}}
    more = add_task(added.folder, replay, tmp_path / "more", [*short, "add.max_drop=null"])
    assert more.summary.added is not None
    assert more.summary.added.old["articles"]["metric"] == "mrr"


def test_an_exported_task_answers_as_before(run: Finished, tmp_path: Path) -> None:
    file = export_adapter(run.folder, "articles", tmp_path / "articles.safetensors")
    model = load(combine(run.folder, [file], tmp_path / "combined"))
    expected = [p.label for p in load(run.folder).predict("articles", PAIRS)]
    assert [p.label for p in model.predict("articles", PAIRS)] == pytest.approx(expected)


@pytest.mark.parametrize(
    "methods",
    [
        ["sampler=mixed", "train.batch_size=12", "policy=gem"],
        ["sampler=round_robin", "adapter={name: pal, size: 8, heads: 2}", "regularizers=[smart, bregman]"],
        pytest.param(
            [
                "sampler=square_root",
                "adapter={name: lora, rank: 2}",
                "policy=uncertainty",
                "regularizers=[r_drop, lnsr]",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["sampler=mixed", "train.batch_size=12", "policy=pcgrad", "adapter=conditional_norm", "train.accumulate=2"],
            marks=pytest.mark.slow,
        ),
        ["sampler=in_order", "regularizers=[lwf]"],
        ["train.evaluate_train=20", "train.interference_every=2", "train.batch_tokens=300", "train.parts=adapters"],
    ],
    ids=lambda methods: methods[0],
)
def test_it_is_mixed_with_all_other_kinds_and_methods(
    methods: list[str], tmp_path: Path, tiny_settings: list[str]
) -> None:
    base = [setting for setting in tiny_settings if not setting.startswith("train.steps")]
    if "train.batch_tokens=300" in methods:
        methods = [*methods, "train.batch_size=32", "adapter={name: houlsby, size: 4}"]
    finished = train(RECIPE, tmp_path / "run", [*base, "train.steps_per_epoch=5", *OTHERS, *methods])
    scores = finished.summary.evaluations["dev"]
    assert scores.keys() == {"articles", "opinion", "similar", "topics", "plain"}
    assert all(np.isfinite(score["loss"]) for score in scores.values())


def test_a_step_of_one_pair_is_refused(settings: list[str]) -> None:
    few = [*settings, "train.batch_size=32", "train.batch_tokens=30"]
    with pytest.raises(
        UserError, match=r"batch_tokens: must be at least \d+, .* task articles of kind match.*found 30"
    ):
        rehearse(read_recipe(RECIPE, few))


def test_ewc_says_why_it_cannot_be_used(tmp_path: Path, tiny_settings: list[str]) -> None:
    with pytest.raises(UserError, match="ewc: cannot measure what task articles of kind match depends on: the loss"):
        train(RECIPE, tmp_path / "run", [*tiny_settings, *OTHERS, "sampler=in_order", "regularizers=[ewc]"])


def test_data_in_memory(tmp_path: Path) -> None:
    rows = [{"q": f"question number {n}", "a": f"answer number {n // 2}", "id": n} for n in range(40)]
    fitted = polytask.fit(
        {"t": polytask.Match(rows, ["q", "a"])},
        {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32},
        run=tmp_path / "run",
        train={"epochs": 1, "device": "cpu"},
    )
    assert fitted.scores["dev"].keys() == {"t"}
    predicted = fitted.model.predict([{"q": "question number 1", "a": "answer number 0"}])
    assert -1 <= predicted[0]["predicted_t"] <= 1


@pytest.mark.parametrize("row", [",an answer", "a question,"])
def test_an_empty_text_is_an_error_with_its_row(row: str, tmp_path: Path, tiny_settings: list[str]) -> None:
    (tmp_path / "pairs.csv").write_text("question,article\na,b\n" + row + "\n")
    with pytest.raises(UserError, match=r"pairs.csv, line 3, column .*: the text is empty"):
        train(RECIPE, tmp_path / "run", [*tiny_settings, f"tasks.articles.train={tmp_path / 'pairs.csv'}"])
