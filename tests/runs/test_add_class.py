"""A class that joins a task of a finished run: what stays, what is measured, what is refused, and going on."""

import csv
import itertools
import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

import polytask
from polytask import UserError, add_class, add_task, compare_runs, evaluate_run, export_adapter, read_recipe, train
from polytask.kinds.multilabel import calibrated_thresholds
from polytask.runs.add import start_adding_class
from polytask.runs.bundle import task_tensors
from polytask.runs.new_class import last_row
from polytask.runs.tasks_file import read_tasks

RECIPES = Path(__file__).parent.parent.parent / "recipes"
PRIVACY = "sample:tickets-privacy"
NEW, DEV = (f"{part}.csv" for part in ("new", "new-dev"))
SHORT = ["train.epochs=1", "train.steps_per_epoch=4", "train.save_every=2", "add.max_drop=100"]
TEXTS = ["Fine by me.", "Never again, not even for money.", "Where is my parcel?"]


def write(path: Path, rows: list[tuple[str, ...]], columns: tuple[str, ...] = ("message", "team")) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def messages(team: str, count: int, start: int = 0) -> list[tuple[str, ...]]:
    words = {"billing": "invoice charge pay", "login": "password account enter", "refunds": "money back return"}
    return [(f"My {words.get(team, team)} number {i} is a problem", team) for i in range(start, start + count)]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Path:
    """A run of `team` (two classes) and `topics` (columns of 0 and 1), on files of its own, with an adapter."""
    place = tmp_path_factory.mktemp("first")
    for part, count in (("train", 24), ("dev", 12)):
        write(place / f"{part}.csv", [*messages("login", count), *messages("billing", count)])
        rows = [
            (f"text {i} about {'cats' * (i % 2)} {'dogs' * (i % 3)}", str(i % 2), str(min(i % 3, 1))) for i in range(24)
        ]
        write(place / f"topics-{part}.csv", rows, ("text", "cats", "dogs"))
    recipe = {
        "name": "desk",
        "max_length": 32,
        "adapter": {"name": "houlsby", "size": 4},
        "tasks": {
            "team": {"kind": "classes", "text": "message", "label": "team", "train": "train.csv", "dev": "dev.csv"},
            "topics": {
                "kind": "multilabel",
                "text": "text",
                "label": ["cats", "dogs"],
                "train": "topics-train.csv",
                "dev": "topics-dev.csv",
            },
            "mood": {
                "kind": "classes",
                "text": "text",
                "label": "opinion",
                "train": "sample:opinions-train",
                "dev": "sample:opinions-dev",
            },
        },
    }
    recipe["data"] = str(place)
    train(recipe, place / "run", [*tiny_settings, "train.epochs=1"])
    write(place / NEW, [*messages("refunds", 20), *messages("login", 2, 100)])
    write(place / DEV, messages("refunds", 6, 50))
    return place / "run"


@pytest.fixture
def new(first: Path) -> str:
    return str(first.parent / NEW)


def outputs(run: Path, task: str) -> torch.Tensor:
    return torch.cat(list(polytask.load(run).outputs(task, [(text,) for text in TEXTS])))


def weights(run: Path) -> bytes:
    return b"".join((run / "model" / f"{name}.safetensors").read_bytes() for name in ("model", "parts"))


# --- what is trained --------------------------------------------------------------------------------------------------
def test_frozen_trains_the_new_row_only(first: Path, new: str, tmp_path: Path) -> None:
    adding = start_adding_class(first, "team", "refunds", new, folder=tmp_path / "run", settings=SHORT)
    model = adding.session.model
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weight = start["heads.team.output.weight"]
    assert torch.equal(weight[-1], weight[:-1].mean(0))
    assert all(set(report.losses) == {"team"} for report in adding.steps())
    finished = adding.finish()
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, start[name])}
    assert moved == {"heads.team.output.weight", "heads.team.output.bias"}
    old, own = (task_tensors(polytask.load(run).bundle.model, "team") for run in (first, tmp_path / "run"))
    assert torch.equal(own["head.output.weight"][:-1], old["head.output.weight"])
    assert not torch.equal(own["head.output.weight"][-1], weight[-1])
    for other in ("topics", "mood"):
        assert torch.equal(outputs(tmp_path / "run", other), outputs(first, other))
    torch.testing.assert_close(outputs(tmp_path / "run", "team")[:, :2], outputs(first, "team"))
    added = finished.summary.added
    assert added is not None
    assert (added.tasks, added.new_class, list(added.old)) == (("team",), "refunds", ["team", "topics", "mood"])
    assert added.old["topics"]["identical"]
    assert added.old["mood"]["identical"]
    assert added.old["team"]["examples"] == 24


def test_only_the_last_row_of_a_gradient_is_left() -> None:
    assert last_row(torch.ones(3, 2)).tolist() == [[0, 0], [0, 0], [1, 1]]
    assert last_row(torch.ones(3)).tolist() == [0, 0, 1]


def test_before_training_no_prediction_changes(first: Path, new: str, tmp_path: Path) -> None:
    adding = start_adding_class(first, "team", "refunds", new, folder=tmp_path / "run", settings=SHORT)
    bundle = adding.prepared.bundle
    before = polytask.load(first).predict("team", TEXTS)
    texts = bundle.tokenize([(text,) for text in TEXTS])
    after = bundle.model.head("team").decode(bundle.model.answer("team", texts, bundle.packer))
    assert [one.label for one in after] == [one.label for one in before]


@pytest.mark.parametrize(
    "method",
    [
        [],
        pytest.param(["policy={name: replay, size: 20}", "add.distill=0.5"], marks=pytest.mark.slow),
        ["regularizers=[{name: ewc, samples: 10}, lwf]"],
        pytest.param(["train.parts=adapters"], marks=pytest.mark.slow),
    ],
)
def test_measured_trains_with_every_method(method: list[str], first: Path, new: str, tmp_path: Path) -> None:
    settings = [*SHORT, "add.guarantee=measured", "optimizer.lr=3e-3", *method]
    adding = start_adding_class(first, "team", "refunds", new, folder=tmp_path / "run", settings=settings)
    assert [set(report.losses) - {"topics", "mood"} for report in adding.steps()] == [{"team"}] * 4
    if "regularizers" in "".join(method):
        assert adding.session.objective.regularizers["lwf"].context.learned == ("team", "topics", "mood")
        rows = list(adding.session.feed.sample("team", 1000))
        assert all(int(stream.labels["team"]) != 2 for stream in rows)
        assert len(rows) == 48 + 2
    finished = adding.finish()
    assert finished.summary.added is not None
    assert not finished.summary.added.old["team"]["identical"]


# --- the data ---------------------------------------------------------------------------------------------------------
def test_the_new_run_has_all_rows_of_the_task(first: Path, new: str, tmp_path: Path) -> None:
    start_adding_class(first, "team", "refunds", new, folder=tmp_path / "run", settings=SHORT)
    recipe = read_recipe(tmp_path / "run" / "recipe.yaml")
    spec = recipe.tasks["team"]
    assert spec.classes == ("billing", "login", "refunds")
    assert spec.train is not None
    assert Path(spec.train).parent == tmp_path / "run" / "data"
    rows = [json.loads(line) for line in Path(spec.train).read_text().splitlines()]
    dev = [json.loads(line) for line in Path(spec.dev).read_text().splitlines()]
    assert (len(rows), len(dev)) == (48 + 18, 24 + 4)
    assert [row["team"] for row in dev[24:]] == ["refunds"] * 4
    assert not {row["message"] for row in rows} & {row["message"] for row in dev[24:]}
    assert recipe.add is not None
    assert (recipe.add.task, recipe.add.new_class, recipe.add.run) == ("team", "refunds", str(first.resolve()))
    with pytest.raises(UserError, match="use polytask add-task RUN RECIPE, or polytask add-class"):
        train(tmp_path / "run" / "recipe.yaml", tmp_path / "again")


def test_rows_to_evaluate_on_and_rows_to_rehearse_can_be_chosen(first: Path, new: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dev": first.parent / DEV, "folder": tmp_path / "run"}
    start_adding_class(first, "team", "refunds", new, settings=[*SHORT, "add.rehearse=10"], **options)
    spec = read_recipe(tmp_path / "run" / "recipe.yaml").tasks["team"]
    assert spec.train is not None
    assert len(Path(spec.train).read_text().splitlines()) == 10 + 22
    assert len(Path(spec.dev).read_text().splitlines()) == 24 + 6
    none = [*SHORT, "add.rehearse=0", "add.guarantee=measured"]
    rows = [{"message": f"m {i}", "team": "refunds"} for i in range(10)]
    with pytest.raises(UserError, match="regularizers: ewc: needs old training rows of task team"):
        start_adding_class(first, "team", "refunds", rows, settings=[*none, "regularizers=[ewc]"])


def test_without_the_old_training_file(first: Path, new: str, tmp_path: Path) -> None:
    shutil.copytree(first.parent, tmp_path / "moved")
    recipe = tmp_path / "moved" / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(first.parent / "train.csv"), str(tmp_path / "gone.csv")))
    with pytest.raises(UserError, match=r"its task team needs its train file: .*gone\.csv.*; without it, set add.r"):
        start_adding_class(recipe.parent, "team", "refunds", new, folder=tmp_path / "run", settings=SHORT)
    rows = [{"message": f"Money back {i}", "team": "refunds"} for i in range(10)]
    settings = [*SHORT, "add.rehearse=0"]
    finished = add_class(recipe.parent, "team", "refunds", rows, folder=tmp_path / "run", settings=settings)
    assert polytask.load(finished.folder).bundle.labels["team"].classes == ("billing", "login", "refunds")


# --- what is measured -------------------------------------------------------------------------------------------------
def test_scores_of_every_class_before_and_after(first: Path, new: str, tmp_path: Path) -> None:
    settings = [*SHORT, "train.epochs=20", "train.steps_per_epoch=10"]
    finished = add_class(first, "team", "refunds", new, folder=tmp_path / "run", settings=settings)
    added = finished.summary.added
    assert added is not None
    assert list(added.classes) == ["billing", "login", "refunds"]
    assert added.classes["refunds"]["before"] is None
    assert added.classes["refunds"]["after"]["support"] == 4
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "predictions" / "team-dev.jsonl").read_text().splitlines()
    ]
    chosen = [line for line in lines if line["prediction"] == "refunds"]
    right = [line for line in chosen if line["label"] == "refunds"]
    assert added.classes["refunds"]["after"]["recall"] == len(right) / 4
    assert added.classes["refunds"]["after"]["precision"] == len(right) / max(1, len(chosen))
    old = [line for line in lines if line["label"] != "refunds"]
    right = [line for line in old if line["label"] == line["prediction"]]
    assert added.old["team"]["after"]["value"] == pytest.approx(len(right) / len(old))
    before = evaluate_run(first, "dev")
    assert added.old["team"]["before"]["value"] == before.tasks["team"].value
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The class refunds of team was" in page
    assert "refunds (new)" in page
    assert "It adds the class refunds to the task team" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_task_whose_old_rows_drop_too_far_is_refused(first: Path, tmp_path: Path) -> None:
    rows = [{"message": f"My invoice charge pay number {i} is a problem", "team": "refunds"} for i in range(40)]
    settings = [*SHORT, "add.rehearse=0", "add.max_drop=0", "train.epochs=30", "optimizer.lr=1.0"]
    arguments = first, "team", "refunds", rows
    finished = add_class(*arguments, folder=tmp_path / "run", settings=settings)
    assert finished.refused is not None
    assert "team fell by" in finished.refused
    assert not (tmp_path / "run" / "model").exists()
    larger = [*settings, "add.max_drop=100"]
    again = add_class(*arguments, folder=tmp_path / "run", settings=larger, resume=True)
    assert again.refused is None
    assert (tmp_path / "run" / "model").exists()


def test_columns_of_classes_get_one_more(first: Path, tmp_path: Path) -> None:
    rows = [{"text": f"birds sing {i}", "cats": i % 2, "dogs": 0, "birds": 1} for i in range(20)]
    finished = add_class(first, "topics", "birds", rows, folder=tmp_path / "run", settings=SHORT)
    entry = read_tasks(finished.folder / "model" / "tasks.json").tasks["topics"]
    assert entry.label == entry.classes == ("cats", "dogs", "birds")
    assert len(entry.thresholds) == 3
    added = finished.summary.added
    assert added is not None
    assert added.old["topics"]["examples"] == 24 + 4
    assert added.classes["birds"]["after"]["support"] == 4
    assert evaluate_run(finished.folder).tasks["topics"].value == finished.evaluations["dev"].tasks["topics"].value


def test_a_list_of_classes_gets_one_more(tmp_path: Path, tiny_settings: list[str]) -> None:
    old = train(RECIPES / "tickets.yaml", tmp_path / "old", tiny_settings).folder
    finished = add_class(old, "topics", "privacy", PRIVACY, folder=tmp_path / "run", settings=SHORT)
    entry = read_tasks(finished.folder / "model" / "tasks.json").tasks["topics"]
    assert entry.classes[-1] == "privacy"
    assert entry.separator == "|"
    added = finished.summary.added
    assert added is not None
    assert added.old["topics"]["examples"] == 106 + 12
    shown = finished.summary.tasks["topics"].thresholds
    assert shown == calibrated_thresholds(entry.thresholds, entry.temperature)


def test_a_task_that_shared_its_rows_gets_files_of_its_own(tmp_path: Path, tiny_settings: list[str]) -> None:
    rows = [(f"note {i} on {'ab'[i % 2]}", "ab"[i % 2], ["x", "[]", "", "x|y"][i % 4]) for i in range(24)]
    write(tmp_path / "rows.csv", rows, ("text", "team", "topics"))
    file = str(tmp_path / "rows.csv")
    shared = {"text": "text", "train": file, "dev": file, "share_rows": "notes"}
    tasks = {
        "team": {"kind": "classes", "label": "team", **shared},
        "topics": {"kind": "multilabel", "label": "topics", **shared},
    }
    old = train({"name": "notes", "tasks": tasks}, tmp_path / "old", tiny_settings).folder
    new = [{"text": f"a new note {i}", "topics": ["z"]} for i in range(10)]
    finished = add_class(old, "topics", "z", new, folder=tmp_path / "run", settings=SHORT)
    assert finished.summary.added is not None
    assert finished.summary.added.old["topics"]["examples"] == 18 + 2  # rows without a label are still left out
    assert finished.summary.added.old["team"]["identical"]
    specs = read_recipe(finished.folder / "recipe.yaml").tasks
    assert (specs["team"].share_rows, specs["topics"].share_rows) == ("notes", None)
    trained = [json.loads(line)["topics"] for line in Path(specs["topics"].train).read_text().splitlines()]
    assert trained == [["x"], [], ["x", "y"]] * 6 + [["z"]] * 8


def test_the_name_of_the_run_keeps_the_letters_of_the_class(first: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"message": f"un ñandú {i}", "team": "ñandú"} for i in range(10)]
    assert start_adding_class(first, "team", "ñandú", rows, settings=SHORT).folder.name == "desk-nandu"


# --- a run like any other ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("guarantee", ["frozen", pytest.param("measured", marks=pytest.mark.slow)])
def test_a_stopped_run_ends_with_the_same_bits(guarantee: str, first: Path, new: str, tmp_path: Path) -> None:
    settings = [*SHORT, f"add.guarantee={guarantee}"]
    straight = add_class(first, "team", "refunds", new, folder=tmp_path / f"{guarantee}1", settings=settings)
    folder = tmp_path / f"{guarantee}2"
    stopped = start_adding_class(first, "team", "refunds", new, folder=folder, settings=settings)
    list(itertools.islice(stopped.steps(), 3))
    resumed = start_adding_class(first, "team", "refunds", new, folder=folder, settings=settings, resume=True)
    assert resumed.session.step == 2
    finished = resumed.complete()
    assert weights(straight.folder) == weights(finished.folder)
    assert straight.summary.added == finished.summary.added


def test_the_result_can_be_used_and_get_more(first: Path, new: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    second = add_class(first, "team", "refunds", new, settings=SHORT)
    assert second.folder == Path("runs/desk-refunds")
    rows = [{"message": f"Spam {i}", "team": "spam, or so"} for i in range(10)]
    third = add_class(second.folder, "team", "spam, or so", rows, settings=SHORT)
    assert third.folder == Path("runs/desk-refunds-spam-or-so")
    assert polytask.load(third.folder).bundle.labels["team"].classes == ("billing", "login", "refunds", "spam, or so")
    scores = {name: score.metrics for name, score in evaluate_run(third.folder)}
    assert scores == {name: score.metrics for name, score in third.evaluations["dev"]}
    opinions = {"kind": "classes", "text": "text", "label": "opinion"}
    task = {"again": {**opinions, "train": "sample:opinions-train", "dev": "sample:opinions-dev"}}
    fourth = add_task(third.folder, {"tasks": task}, "fourth", [*SHORT[:3]])
    assert torch.equal(outputs(fourth.folder, "team"), outputs(third.folder, "team"))
    assert export_adapter(third.folder, "team", "team.st").exists()
    assert compare_runs([third.folder, fourth.folder], "comparison")["comparisons"]


@pytest.mark.slow
def test_shared_adapters_are_no_obstacle(first: Path, new: str, tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = read_recipe(first / "recipe.yaml", ["adapter={name: shared, adapter: {name: houlsby, size: 4}}"])
    folder = polytask.start_training(recipe, tmp_path / "old").complete().folder
    finished = add_class(folder, "team", "refunds", new, folder=tmp_path / "run", settings=SHORT)
    assert torch.equal(outputs(finished.folder, "mood"), outputs(folder, "mood"))


# --- refused ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("task", "name", "message"),
    [
        ("taem", "refunds", "there is no task 'taem' .did you mean team"),
        ("team", "login", "task team already has the class 'login'; choose another name"),
        ("team", " login ", "task team already has the class 'login'"),
        ("team", "Login", "has the class 'login', which differs from 'Login' only in upper and lower case"),
        ("team", "  ", "the name of the new class is empty"),
        (
            "team",
            "nothing",
            "new.csv, line 2, column 'team': 'refunds': not one of the task's classes; expected billing, login, noth",
        ),
        ("team", "Refunds", "'refunds': not one of the task's classes; expected billing, login, Refunds"),
    ],
)
def test_refused_names(task: str, name: str, message: str, first: Path, new: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"(?s){message}"):
        add_class(first, task, name, new, folder=tmp_path / "run", settings=SHORT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["add.rehearse=-1"], "add.rehearse: must be in "),
        (["add.task=mood"], "add.task: must be team, found 'mood'; leave it out"),
        (["add.guarantee=none"], "add.guarantee: must be one of frozen, measured"),
        (["add=frozen"], "add: must be a mapping"),
        (["optimizer.weight_decay=0.1"], "optimizer.weight_decay: must be 0"),
        (["train.norms=true"], "train.norms: the encoder's layer norms must not change"),
        (["train.select=mood"], "train.select: the score of another task does not change"),
        (["teachers.mood=nowhere"], "teachers.mood: another task does not learn"),
        (["tasks.team.train=other.csv"], "tasks.team.train: cannot be changed; the new rows are those of --data"),
        (["adapter=pal"], "adapter: the tasks of .* have houlsby"),
        (["add.distill=1"], "add.distill: needs `guarantee: measured`"),
    ],
)
def test_refused_settings(settings: list[str], message: str, first: Path, new: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        add_class(first, "team", "refunds", new, folder=tmp_path / "run", settings=[*SHORT, *settings])
    assert not (tmp_path / "run").exists()


def test_refused_data(first: Path, new: str, tmp_path: Path, tiny_run: polytask.Finished) -> None:
    def refused(message: str, data: Any, **more: Any) -> None:
        with pytest.raises(UserError, match=message):
            add_class(first, "team", "refunds", data, folder=tmp_path / "run", settings=SHORT, **more)
        assert not (tmp_path / "run").exists()

    refused("nothing.csv: no such file", "nothing.csv")
    (tmp_path / "old.csv").write_text("message,team\na,login\nb,billing\n")
    refused("old.csv: no row has the class 'refunds' in column 'team'", str(tmp_path / "old.csv"))
    refused("old.csv: no row has the class 'refunds'", new, dev=str(tmp_path / "old.csv"))
    (tmp_path / "two.csv").write_text("message,team\na,refunds\nb,refunds\n")
    refused(
        "two.csv: 2 rows of the class 'refunds' are too few, or too similar, to hold back 20%", tmp_path / "two.csv"
    )
    (tmp_path / "other.csv").write_text("words,team\na,refunds\n")
    refused("no column 'message'", str(tmp_path / "other.csv"))
    (tmp_path / "none.csv").write_text("message,team\n")
    refused("none.csv", str(tmp_path / "none.csv"))
    for task, kind in (("similarity", "score"), ("question", "yes_no")):
        with pytest.raises(UserError, match=f"task {task} is of kind {kind}, which cannot get a new class"):
            add_class(tiny_run.folder, task, "new", new, folder=tmp_path / "run")


def test_the_sample_of_a_new_class_has_no_old_text() -> None:
    folder = resources.files("polytask.tasks") / "sample"

    def texts(name: str) -> list[str]:
        return [row["text"] for row in csv.DictReader((folder / name).read_text(encoding="utf-8").splitlines())]

    assert len(texts("tickets-privacy.csv")) == len(set(texts("tickets-privacy.csv"))) == 60
    for part in ("train", "dev"):
        assert not set(texts(f"tickets-{part}.csv")) & set(texts("tickets-privacy.csv"))
