"""Tasks that join a finished run: what stays as it was, what is measured, what is refused, and going on."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import polytask
from polytask import (
    TABLES,
    UserError,
    add_task,
    combine,
    compare_runs,
    evaluate_run,
    export_adapter,
    read_recipe,
    start_adding,
    train,
)
from polytask.adapters import ADAPTERS
from polytask.model import MultiTaskModel, Pass
from polytask.regularizers.base import Regularizer
from polytask.runs.bundle import save_bundle

RECIPES = Path(__file__).parent.parent.parent / "recipes"
SMALL = {
    "pal": "{name: pal, size: 12, heads: 3}",
    "houlsby": "{name: houlsby, size: 4}",
    "low_rank": "{name: low_rank, size: 4}",
    "stack": "{name: stack, adapters: [{name: pal, size: 12, heads: 3}, conditional_norm]}",
}
FROZEN, MEASURED = (RECIPES / "adding" / f"{name}.yaml" for name in ("similarity", "similarity-replay"))
SHORT = ["train.epochs=1", "train.steps_per_epoch=4", "train.save_every=2", "optimizer.lr=3e-3"]
ROOM = "add.max_drop=100"
TEXTS = [
    "Fine by me.",
    "Never again, not even for money.",
    "It was",
    "Two hours of my life that I want back, and then some!",
]
MakeFirst = Callable[..., Path]


@pytest.fixture(scope="module")
def make_first(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> MakeFirst:
    """make_first(*settings): a finished run of opinion and question. Tests look at it and leave it as it is."""
    made: dict[tuple[str, ...], Path] = {}

    def make(*settings: str) -> Path:
        if settings not in made:
            folder = tmp_path_factory.mktemp("first") / "run"
            train(RECIPES / "adding" / "two-tasks.yaml", folder, [*tiny_settings, *SHORT, *settings])
            made[settings] = folder
        return made[settings]

    return make


@pytest.fixture
def first(make_first: MakeFirst) -> Path:
    return make_first()


def outputs(run: Path, task: str) -> torch.Tensor:
    """What a saved model says of texts that are in no file."""
    model = polytask.load(run)
    pairs = len(model.spec(task).text) == 2
    return torch.cat(list(model.outputs(task, [(text, TEXTS[0]) if pairs else (text,) for text in TEXTS])))


def weights(run: Path) -> bytes:
    return b"".join((run / "model" / f"{name}.safetensors").read_bytes() for name in ("model", "parts"))


QUICK = ("none", "pal", "stack")


# --- frozen -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("adapter", "precision"),
    [
        *((name, "float32") for name in ("none", "pal", "stack")),
        ("houlsby", "bf16"),
        *(
            pytest.param(name, "float32", marks=pytest.mark.slow)
            for name in ADAPTERS
            if name not in ("none", "pal", "stack")
        ),
        *(pytest.param(name, "bf16", marks=pytest.mark.slow) for name in ("own_encoder", "stack")),
    ],
)
def test_frozen_leaves_every_old_answer_as_it_was(
    adapter: str, precision: str, tmp_path: Path, make_first: MakeFirst
) -> None:
    first = make_first(f"adapter={SMALL.get(adapter, adapter)}")
    settings = [*SHORT, "tasks.similarity.head=cross", f"train.precision={precision}"]
    adding = start_adding(first, FROZEN, tmp_path / "run", settings)
    start = {name: tensor.clone() for name, tensor in adding.session.model.state_dict().items()}
    assert all(set(report.losses) == {"similarity"} for report in adding.steps())
    finished = adding.finish()
    after = adding.session.model.state_dict()
    moved = {name for name in start if not torch.equal(start[name], after[name])}
    own = {id(p) for p in adding.session.model.adapter.task_parameters("similarity")}
    names = {name for name, p in adding.session.model.named_parameters() if id(p) in own}
    assert {name for name in moved if not name.startswith("heads.similarity.")} <= names
    assert bool(moved & names) == (adapter != "none")  # it learned
    assert any(name.startswith("heads.similarity.") for name in moved)
    assert {id(p) for p in adding.session.optimizer.state} <= own | {
        id(p) for p in adding.session.model.head("similarity").parameters()
    }

    added = finished.summary.added
    assert added is not None
    assert added.tasks == ("similarity",)
    before = json.loads((first / "summary.json").read_text())["evaluations"]["dev"]
    for task in ("opinion", "question"):
        assert torch.equal(outputs(first, task), outputs(finished.folder, task))
        told = added.old[task]
        assert told["identical"]
        assert told["before"] == told["after"]
        assert [told["difference"][end] for end in ("value", "low", "high")] == [0.0, 0.0, 0.0]
        if precision == "float32":  # as the first run was scored
            assert told["before"] == before[task]["metrics"]["accuracy"]
            said = [(run / "predictions" / f"{task}-dev.jsonl").read_bytes() for run in (first, finished.folder)]
            assert said[0] == said[1]
    assert finished.summary.saved
    assert "they are bit-identical" in finished.report.read_text()


def test_frozen_holds_with_averages_of_weights_and_every_penalty(tmp_path: Path, first: Path) -> None:
    more = ["train.ema=0.9", "train.average_best=2", "train.evaluate_every=2", "regularizers=[smart, bregman, l2_sp]"]
    finished = add_task(first, FROZEN, tmp_path / "run", [*SHORT, *more])
    assert all(task["identical"] for task in finished.summary.added.old.values())
    assert torch.equal(outputs(first, "opinion"), outputs(finished.folder, "opinion"))


@pytest.mark.parametrize("where", ["encoder", "head"])
def test_frozen_saves_nothing_if_an_old_weight_has_moved(
    where: str, tmp_path: Path, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adding = start_adding(first, FROZEN, tmp_path / "run", SHORT)
    list(adding.steps())
    adding.session.load_best()
    monkeypatch.setattr(adding.session, "load_best", lambda: None)
    with torch.no_grad():
        if where == "encoder":  # a word that is in no row of the dev files: only the weights can tell
            adding.session.model.encoder.words.weight[0] += 1e-3
        else:
            next(adding.session.model.head("opinion").parameters()).mul_(1 + 1e-6)
    what = "weights of the encoder" if where == "encoder" else "weights of task opinion, answers of opinion on dev"
    with pytest.raises(UserError, match=f"guarantee: frozen was not kept, so no model is saved: {what} have changed"):
        adding.finish()
    assert not (tmp_path / "run" / "model").exists()


def test_frozen_needs_no_old_training_files_and_chooses_by_the_new_tasks(tmp_path: Path, own_files: Path) -> None:
    (own_files / "train.csv").unlink()
    finished = add_task(own_files / "run", FROZEN, tmp_path / "run", SHORT)
    score = finished.evaluations["dev"].tasks["similarity"]
    assert finished.summary.best.value == score.value
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert {task for line in lines if line["kind"] == "evaluation" for task in line["tasks"]} == {"similarity"}
    assert set(finished.summary.tasks["mood"].data) == {"dev"}


@pytest.fixture
def own_files(tmp_path: Path, tiny_settings: list[str]) -> Path:
    """A folder with a finished run of one task, whose files lie beside it."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "train.csv").write_text("words,mood\n" + "a fine day,good\na foul day,bad\n" * 10)
    (folder / "dev.csv").write_text("words,mood\n" + "a fine night,good\na foul night,bad\n" * 5)
    task = {"kind": "classes", "text": "words", "label": "mood", "train": "train.csv", "dev": "dev.csv"}
    content = {"tasks": {"mood": task}, "max_length": 32, "adapter": {"name": "houlsby", "size": 4}}
    settings = [*tiny_settings, *SHORT, "train.steps_per_epoch=20"]
    finished = train(polytask.recipe_from(content, settings, folder=folder), folder / "run")
    assert finished.evaluations["dev"].mean == 1.0
    return folder


# --- measured ---------------------------------------------------------------------------------------------------------
METHODS = {
    "a_gem": ["policy=a_gem"],
    "distill": ["add.distill=1", "train.interference_every=3"],
    "ewc": ["policy=sum", "regularizers=[{name: ewc, samples: 20}]"],
    "gem": ["policy=gem"],
    "lwf": ["policy=sum", "regularizers=[lwf]"],
    "replay": [],
    "sum": ["policy=sum"],
}


@pytest.mark.parametrize("method", METHODS)
def test_measured_trains_the_encoder_and_reports_the_change_of_old_tasks(
    method: str, tmp_path: Path, first: Path
) -> None:
    finished = add_task(first, MEASURED, tmp_path / "run", [*SHORT, *METHODS[method], ROOM])
    assert finished.refused is None
    before = json.loads((first / "summary.json").read_text())["evaluations"]["dev"]
    for task in ("opinion", "question"):
        told = finished.summary.added.old[task]
        assert told["before"] == before[task]["metrics"]["accuracy"]
        after = finished.evaluations["dev"].tasks[task].metrics["accuracy"]
        assert told["after"] == vars(after)
        assert told["difference"]["value"] == pytest.approx(after.value - told["before"]["value"])
        assert told["difference"]["low"] < told["difference"]["value"] < told["difference"]["high"]
        assert not told["identical"]
    assert finished.summary.best.value == pytest.approx(finished.evaluations["dev"].mean)
    steps = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    learned = {task for line in steps if line["kind"] == "step" for task in line["losses"]}
    assert learned == ({"opinion", "question", "similarity"} if method in ("replay", "distill") else {"similarity"})
    page = finished.report.read_text()
    assert "Old tasks, before and after" in page
    assert "none dropped further" in page


def test_memories_are_examples_of_the_old_tasks_only(tmp_path: Path, first: Path) -> None:
    adding = start_adding(first, MEASURED, tmp_path / "run", [*SHORT, "policy.size=40", "policy.batch=7"])
    feed = adding.session.feed
    assert feed.memory is not None
    kept = {task: list(indices) for task, indices in feed.memory.kept.items()}
    assert {task: len(set(indices)) for task, indices in kept.items()} == {
        "opinion": 40,
        "question": 40,
        "similarity": 0,
    }
    for task in ("opinion", "question"):
        size = len(adding.prepared.tasks[task].splits["train"])
        assert max(kept[task]) < size
        assert kept[task] != sorted(kept[task])  # drawn, not the first ones
    list(adding.steps())
    assert {task: feed.memory.kept[task] for task in ("opinion", "question")} == {
        t: kept[t] for t in feed.given if t in ("opinion", "question")
    }
    assert len(feed.memory.kept["similarity"]) == 40  # of the new task, as in any run
    other = start_adding(first, MEASURED, tmp_path / "other", [*SHORT, "policy.size=40", "seed=1"])
    assert other.session.feed.memory is not None
    assert other.session.feed.memory.kept["opinion"] != kept["opinion"]


def test_distilling_has_no_gradient_for_an_unchanged_model(tmp_path: Path, first: Path) -> None:
    """At the first step the model answers as the old one, so its answers pull at no old head; labels do."""
    still = ["dropout=0", "attention_dropout=0", "tasks.similarity.head=cross", "train.clip=null"]
    sizes = {}
    for distill in (0.0, 0.5, 1.0):
        adding = start_adding(first, MEASURED, tmp_path / str(distill), [*SHORT, *still, f"add.distill={distill}"])
        for module in adding.session.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # the heads' own
        next(adding.steps())
        heads = [p for task in ("opinion", "question") for p in adding.session.model.head(task).parameters()]
        sizes[distill] = sum(float(p.grad.square().sum()) for p in heads if p.grad is not None) ** 0.5
    assert sizes[1.0] < 1e-4 * sizes[0.0]
    assert sizes[0.5] == pytest.approx(0.5 * sizes[0.0], rel=1e-3)


def test_old_tasks_whose_memories_only_constrain_keep_their_heads(tmp_path: Path, first: Path) -> None:
    adding = start_adding(first, MEASURED, tmp_path / "run", [*SHORT, "policy=gem"])
    old = polytask.load(first).bundle.model
    list(adding.steps())
    assert not torch.equal(adding.session.model.encoder.words.weight, old.encoder.words.weight)
    for name, tensor in old.head("opinion").state_dict().items():
        assert torch.equal(adding.session.model.head("opinion").state_dict()[name], tensor)


def test_a_model_that_forgot_too_much_is_not_saved(tmp_path: Path, own_files: Path) -> None:
    """At such a rate everything is lost. More room, given later, saves the same weights."""
    run, first = tmp_path / "run", own_files / "run"
    settings = [*SHORT, "max_length=32", "policy=sum", "optimizer.lr=0.3", "train.select=similarity"]
    finished = add_task(first, MEASURED, run, [*settings, "add.max_drop=10"])
    told = finished.summary.added.old["mood"]
    assert told["after"]["value"] < 0.9 < told["before"]["value"]
    assert finished.refused is not None
    fall = 100 * (told["before"]["value"] - told["after"]["value"])
    assert finished.refused.startswith(f"mood fell by {fall:.2f} points (accuracy 1.000 before, ")
    assert finished.refused.endswith(", and add.max_drop allows 10")
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["finished"], summary["saved"], summary["refused"]) == (True, False, finished.refused)
    assert not (run / "model").exists()
    assert (run / "checkpoints").is_dir()  # a larger drop may be allowed later
    assert (run / "predictions" / "mood-dev.jsonl").is_file()
    assert "No model was saved: mood fell by" in (run / "report.html").read_text()
    loaders: list[Callable[[], Any]] = [
        lambda: polytask.load(run),
        lambda: evaluate_run(run),
        lambda: export_adapter(run, "mood"),
        lambda: add_task(run, FROZEN, tmp_path / "more"),
        lambda: combine(run, [export_adapter(first, "mood", tmp_path / "mood")], tmp_path / "two"),
    ]
    for load in loaders:
        with pytest.raises(UserError, match="run: no trained model here: it was not saved, because mood fell by"):
            load()

    with pytest.raises(UserError, match="the run was started with another recipe"):
        add_task(first, MEASURED, run, [*settings, "add.max_drop=99", "seed=3"], resume=True)
    steps = (run / "metrics.jsonl").read_bytes()
    allowed = add_task(first, MEASURED, run, [*settings, "add.max_drop=99"], resume=True)
    assert allowed.refused is None
    assert (run / "metrics.jsonl").read_bytes() == steps
    assert allowed.evaluations == finished.evaluations
    written = read_recipe(run / "recipe.yaml").add
    assert written is not None
    assert written.max_drop == 99
    assert polytask.load(run).tasks == ("mood", "similarity")
    assert not (run / "checkpoints").exists()
    with pytest.raises(UserError, match=r"(?s)the run has finished .*add.max_drop: was 99.0, is 0.0"):
        add_task(first, MEASURED, run, [*settings, "add.max_drop=0"], resume=True)


def test_old_plain_text_is_measured_and_never_refused(tmp_path: Path, make_first: MakeFirst) -> None:
    plain = "{kind: text, text: text, train: 'sample:opinions-train', dev: 'sample:opinions-dev'}"
    first = make_first(f"tasks.words={plain}")
    frozen = add_task(first, FROZEN, tmp_path / "frozen", SHORT)
    assert frozen.summary.added.old["words"]["identical"]
    fast = [*SHORT, "optimizer.lr=0.1", "add.distill=0.5"]
    told = add_task(first, MEASURED, tmp_path / "measured", fast).summary.added.old["words"]
    assert told["difference"]["value"] == pytest.approx(told["after"]["value"] - told["before"]["value"])
    assert told["difference"]["low"] <= told["difference"]["value"] <= told["difference"]["high"]
    assert not told["greater_is_better"]
    refused = json.loads((tmp_path / "measured" / "summary.json").read_text())["refused"]
    assert "words fell" not in (refused or "")


# --- regularizers that look back --------------------------------------------------------------------------------------
class Remembering(Regularizer):
    """Counts how often it was started, and what it was given of old tasks."""

    needs_examples = True
    starts: list[tuple[tuple[str, ...], dict[str, list[int]]]] = []  # noqa: RUF012

    def start(self, model: MultiTaskModel) -> None:
        assert self.context.examples is not None
        given = {
            task: [sum(stream.layout.lengths) for stream in self.context.examples(task, 3)]
            for task in self.context.learned
        }
        self.starts.append((self.context.learned, given))

    def penalty(self, model: MultiTaskModel, done: Pass) -> torch.Tensor:
        return torch.zeros((), device=model.device)


def test_regularizers_get_the_tasks_learned_before(
    tmp_path: Path, first: Path, own_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TABLES["regularizer"], "remembering", Remembering)  # type: ignore[index]
    Remembering.starts.clear()
    settings = [*SHORT, "policy=sum", "regularizers=[remembering]"]
    adding = start_adding(first, MEASURED, tmp_path / "run", settings)
    ((learned, given),) = Remembering.starts
    assert learned == ("opinion", "question")
    assert {task: len(found) for task, found in given.items()} == {"opinion": 3, "question": 3}
    list(itertools.islice(adding.steps(), 3))
    start_adding(first, MEASURED, tmp_path / "run", settings, resume=True)
    assert len(Remembering.starts) == 1  # the checkpoint has what it needs
    (own_files / "train.csv").unlink()
    with pytest.raises(UserError, match=r"own/run: its task mood needs its train file for regularizers: remembering: "):
        start_adding(own_files / "run", MEASURED, tmp_path / "other", settings)


# --- runs like any other ----------------------------------------------------------------------------------------------
RESUMED = {
    "frozen": (FROZEN, []),
    "gem": (MEASURED, ["policy={name: gem, size: 30}", "train.accumulate=2"]),
    "distill": (MEASURED, ["add.distill=0.5", "policy.size=30"]),
    "ewc": (MEASURED, ["policy=sum", "regularizers=[{name: ewc, samples: 20}, lwf]"]),
}


@pytest.mark.parametrize(
    "method", ["frozen", "gem", *(pytest.param(name, marks=pytest.mark.slow) for name in ("distill", "ewc"))]
)
def test_a_stopped_run_ends_with_the_same_bits(method: str, tmp_path: Path, first: Path) -> None:
    recipe, settings = RESUMED[method]
    settings = [*SHORT, *settings, *([ROOM] if recipe == MEASURED else [])]
    straight = add_task(first, recipe, tmp_path / "straight", settings)
    list(itertools.islice(start_adding(first, recipe, tmp_path / "stopped", settings).steps(), 3))
    resumed = start_adding(first, recipe, tmp_path / "stopped", settings, resume=True)
    assert resumed.session.step == 2
    list(resumed.steps())
    finished = resumed.finish()
    assert weights(straight.folder) == weights(finished.folder)
    assert straight.summary.added == finished.summary.added


def test_resuming_needs_the_run_it_started_from(tmp_path: Path, first: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(first, old)
    list(itertools.islice(start_adding(old, FROZEN, tmp_path / "run", SHORT).steps(), 3))
    bundle = polytask.load(old).bundle
    with torch.no_grad():
        bundle.model.encoder.pooler.bias.add_(1)
    save_bundle(bundle, old / "model")
    with pytest.raises(UserError, match=r"started with other data:\n  add.run: .*old: its weights have changed"):
        start_adding(old, FROZEN, tmp_path / "run", SHORT, resume=True)


def test_adding_twice_and_using_the_result(tmp_path: Path, first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = {"kind": "yes_no", "text": ["question1", "question2"], "label": "duplicate"}
    again = {"tasks": {"again": {**task, "train": "sample:questions-train", "dev": "sample:questions-dev"}}}
    second = add_task(first, again, settings=SHORT)
    assert second.folder == Path("runs/two-tasks-again")
    measured = add_task(second.folder, MEASURED, "third", [*SHORT, ROOM])
    assert list(measured.summary.added.old) == ["opinion", "question", "again"]
    third = add_task(second.folder, FROZEN, "fourth", SHORT)
    assert polytask.load(third.folder).tasks == ("opinion", "question", "again", "similarity")
    for name in ("opinion", "question", "again"):
        assert torch.equal(outputs(third.folder, name), outputs(second.folder, name))
    assert torch.equal(outputs(third.folder, "opinion"), outputs(first, "opinion"))
    report = evaluate_run(third.folder)
    assert {name: score.metrics for name, score in report} == {
        name: score.metrics for name, score in third.evaluations["dev"]
    }
    assert compare_runs(["third", "fourth"], "comparison")["comparisons"]
    # On a frozen encoder the adapters of all three runs fit together.
    files = [
        export_adapter(run, name, f"{name}.st") for run, name in [(first, "opinion"), (third.folder, "similarity")]
    ]
    both = combine(first, files, "both")
    assert torch.equal(outputs(both, "similarity"), outputs(third.folder, "similarity"))


def test_the_new_recipe_is_complete(tmp_path: Path, first: Path) -> None:
    """The run's copy says what it was added to, and which settings were the old run's."""
    adding = start_adding(first, FROZEN, tmp_path / "run", SHORT)
    written = read_recipe(tmp_path / "run" / "recipe.yaml")
    assert list(written.tasks) == ["opinion", "question", "similarity"]
    assert written.add is not None
    assert written.add.run == str(first.resolve())
    assert written.adapter.name == "houlsby"
    assert written.max_length == 64
    assert written.train.parts == "adapters"
    assert written == adding.recipe
    with pytest.raises(UserError, match=r"recipe\.yaml: add: this recipe adds to a finished run; use polytask"):
        train(tmp_path / "run" / "recipe.yaml", tmp_path / "again")


# --- refused ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["tasks.opinion={kind: yes_no}"], "tasks.opinion: .* already has a task of this name; use another name"),
        (["tasks={}"], "tasks: at least one new task is needed"),
        (["adapter=pal"], "adapter: the tasks of .* have houlsby .*size.*, found pal .*leave the field out"),
        (["adapter={name: houlsby, size: 8}"], "adapter: the tasks of .* all tasks of a model have the same adapter"),
        (["encoder=minilm"], "encoder: .* has .*layers.*, found 'minilm'; leave the field out"),
        (["max_length=32"], "max_length: .* has 64, found 32; leave the field out"),
        (["add.guarantee=none"], "add.guarantee: must be one of frozen, measured; found 'none'"),
        (["add.gate=1"], "add: there is no field 'gate'"),
        (["add.max_drop=-1"], "add.max_drop: must be at least 0, found -1"),
        (["add.distill=2"], r"add.distill: must be in \[0, 1\], found 2"),
        (["add.distill=1"], "add.distill: needs `guarantee: measured`"),
        (["add.guarantee=measured", "add.distill=1"], "add.distill: the policy sum remembers no examples"),
        (["add.run=elsewhere"], "add.run: must be .*, found 'elsewhere'; leave the field out"),
        (["add=frozen"], "add: must be a mapping"),
        (["train.norms=true"], "train.norms: the encoder's layer norms must not change"),
        (["train.select=opinion.f1"], "train.select: the score of an old task does not change"),
        (["teachers.opinion=nowhere"], "teachers.opinion: an old task does not learn"),
        (["train.select=opinon"], "train.select: there is no task 'opinon' .did you mean opinion"),
        (["policy=gme"], "policy: there is no policy 'gme' .did you mean gem"),
        (["tasks.similarity.metric=f1"], "tasks.similarity.metric: there is no metric 'f1' for kind score"),
        (["train.parts=heads"], "the head of task similarity has no parameters, so nothing of it would be trained"),
    ],
)
def test_refused_recipes(settings: list[str], message: str, tmp_path: Path, first: Path) -> None:
    with pytest.raises(UserError, match=message):
        start_adding(first, FROZEN, tmp_path / "run", [*SHORT, *settings])
    assert not (tmp_path / "run").exists()  # nothing is written before everything is right


def test_refused_runs(tmp_path: Path, first: Path, own_files: Path) -> None:
    def refused(message: str, run: Path, recipe: Path = FROZEN, *settings: str) -> None:
        with pytest.raises(UserError, match=message):
            start_adding(run, recipe, tmp_path / "run", [*SHORT, *settings])
        assert not (tmp_path / "run").exists()

    refused("nothing: there is no such run", tmp_path / "nothing")
    refused("own: not a run: it has no recipe.yaml", own_files)
    shutil.copytree(first, tmp_path / "unfinished", ignore=shutil.ignore_patterns("model", "summary.json"))
    refused("unfinished: no trained model here: the run has not finished", tmp_path / "unfinished")
    with pytest.raises(UserError, match="there is no run to resume"):
        start_adding(first, FROZEN, tmp_path / "run", SHORT, resume=True)
    (own_files / "train.csv").unlink()
    run = own_files / "run"
    refused(r"own/run: its task mood needs its train file for policy: replay: .*own/train\.csv", run, MEASURED)
    teacher = f"teachers.mood={run}"
    refused("needs its train file for teachers.mood: ", run, MEASURED, "policy=sum", teacher)
    (own_files / "dev.csv").unlink()
    refused(r"own/run: its task mood needs its dev file: .*own/dev\.csv", run)
