"""Files put together answer as in the runs they come from; files that do not belong together are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import polytask
from polytask import Predictor, UserError, combine, export_adapter, load, train
from polytask.adapters import ADAPTERS
from polytask.export.adapter import KEY, read_adapter

SMALL = {"pal": "{name: pal, size: 12, heads: 3}", "stack": "{name: stack, adapters: [low_rank, lora, lhuc]}"}
TEXTS: dict[str, list[Any]] = {
    "opinion": ["Not bad at all.", "x", "A long and winding tale that never quite arrives anywhere, alas."],
    "question": [("How old is it?", "What is its age?"), ("Where?", "When does the last train leave on Sundays?")],
    "similarity": [("A dog runs.", "A dog is running."), ("Snow fell.", "He plays the flute in an old hall.")],
}


def answers(model: Predictor, task: str, name: str | None = None) -> list[tuple[Any, Any]]:
    return [(p.label, p.probabilities) for p in model.predict(name or task, TEXTS[task])]


def exported(run: Path, task: str) -> Path:
    return export_adapter(run, task, run.parent / f"{run.name}-{task}.safetensors")


@pytest.mark.parametrize("name", [name for name in ADAPTERS if name != "shared"])
def test_every_adapter_answers_as_before_in_another_place(name: str, tmp_path: Path, make_run: Any) -> None:
    settings = (f"adapter={SMALL.get(name, name)}",)
    run, other = make_run("run", settings), load(make_run("other", settings))
    files = [exported(run, task) for task in ("question", "opinion")]
    model, before = load(combine(run, files, tmp_path / "two")), load(run)
    assert model.tasks == ("question", "opinion")
    for task in model.tasks:
        assert answers(model, task) == answers(before, task)
        assert answers(model, task) != answers(other, task)


def test_runs_of_one_task_each_become_one_model(tmp_path: Path, tiny_settings: list[str]) -> None:
    """Really trained, apart from each other, with other data, on an encoder that stays as it was."""
    sample: dict[str, dict[str, Any]] = {
        "opinion": {"kind": "classes", "text": "text", "label": "opinion", "file": "opinions"},
        "question": {"kind": "yes_no", "text": ["question1", "question2"], "label": "duplicate", "file": "questions"},
    }
    settings = [*tiny_settings, "train.parts=adapters", "adapter=lora", "train.epochs=1"]
    runs = {}
    for task, entry in sample.items():
        file = entry.pop("file")
        recipe = {"tasks": {task: {**entry, "train": f"sample:{file}-train", "dev": f"sample:{file}-dev"}}}
        runs[task] = train(recipe, tmp_path / task, settings).folder
    files = [exported(run, task) for task, run in runs.items()]
    encoder = tmp_path / "encoder"
    shutil.copytree(runs["opinion"] / "model", encoder, ignore=lambda *_: {"tasks.json", "parts.safetensors"})
    for number, target in enumerate([*runs.values(), encoder]):
        model = polytask.load(combine(target, files, tmp_path / f"both-{number}"))
        assert model.tasks == ("opinion", "question")
        for task, run in runs.items():
            assert answers(model, task) == answers(load(run), task)


def test_a_combined_model_can_be_exported_again(tmp_path: Path, make_run: Any) -> None:
    run = make_run("run", ("adapter=lhuc",))
    file = exported(run, "question")
    folder = combine(run, [exported(run, "opinion"), ("same", file)], tmp_path / "both")
    again = export_adapter(folder, "same", tmp_path / "again.safetensors")
    before, after = load_file(file), load_file(again)
    assert before.keys() == after.keys()
    assert all(before[key].equal(after[key]) for key in before)
    assert read_adapter(again).about.task == read_adapter(file).about.task
    assert answers(load(folder), "question", "same") == answers(load(run), "question")


def test_another_encoder_is_refused(tmp_path: Path, make_run: Any) -> None:
    run, other = make_run("run"), make_run("other", ("seed=1",))
    file = exported(run, "opinion")
    shown = read_adapter(file).about.encoder_fingerprint[:12]
    with pytest.raises(
        UserError, match=rf"run-opinion\.safetensors was trained on another encoder: {shown} .*parts: ada"
    ):
        combine(other, [file], tmp_path / "new")
    with pytest.raises(UserError, match=r"other-question\.safetensors was trained on another encoder"):
        combine(run, [file, exported(other, "question")], tmp_path / "new")
    assert not [path for path in tmp_path.iterdir() if "new" in path.name]


def test_names(tmp_path: Path, make_run: Any) -> None:
    file = exported(make_run("run"), "opinion")
    run, other = tmp_path / "run", exported(make_run("another"), "opinion")
    with pytest.raises(UserError, match=r"another-opinion\.safetensors: .*run-opinion\.safetensors also has a task"):
        combine(run, [file, other], tmp_path / "new")
    assert load(combine(run, [file, ("newer", other)], tmp_path / "new")).tasks == ("opinion", "newer")
    for name in ("", "a.b", "mean", "../up"):
        with pytest.raises(UserError, match="a task's name must be 1 to 64 letters, digits"):
            combine(run, [(name, file)], tmp_path / "newer")


def test_one_model_has_one_adapter(tmp_path: Path, make_run: Any) -> None:
    short = make_run("short", ("adapter=low_rank",))
    long = make_run("long", ("adapter={name: low_rank, size: 100, gelu: false}",))
    other = make_run("other", ("adapter={name: low_rank, gelu: true}",))
    files = [exported(short, "opinion"), exported(long, "question")]
    assert load(combine(short, files, tmp_path / "both")).tasks == ("opinion", "question")
    with pytest.raises(
        UserError,
        match=r"other-question\.safetensors: the adapter must be the same in all files; it is low_rank .*true",
    ):
        combine(short, [files[0], exported(other, "question")], tmp_path / "new")


def test_lengths_that_differ_are_for_the_user_to_choose(tmp_path: Path, make_run: Any) -> None:
    short, long = make_run("short", ("max_length=16",)), make_run("long", ("max_length=32",))
    files = [exported(short, "opinion"), exported(long, "question")]
    with pytest.raises(UserError, match=r"differ in max_length \(opinion 16, question 32\)"):
        combine(short, files, tmp_path / "new")
    for wrong in (3, 129):
        with pytest.raises(UserError, match=rf"must be in \[4, 128\].* found {wrong}"):
            combine(short, files, tmp_path / "new", max_length=wrong)
    assert load(combine(short, files, tmp_path / "new", max_length=24)).bundle.packer.max_length == 24


def test_an_encoder_without_a_pooler(tmp_path: Path, make_run: Any) -> None:
    """Each seed makes another one: it matters to heads that use it, and to no others."""
    encoder = tmp_path / "encoder"
    shutil.copytree(make_run("start") / "model", encoder, ignore=lambda *_: {"tasks.json", "parts.safetensors"})
    tensors = load_file(encoder / "model.safetensors")
    save_file({k: t for k, t in tensors.items() if not k.startswith("pooler.")}, encoder / "model.safetensors")
    pooled = f"encoder={encoder}", "seed=1", "tasks.opinion.head={name: linear, pooling: pooler}"
    one, two = make_run("one", pooled), make_run("two", (f"encoder={encoder}", "seed=2"))
    by_pooler, by_mean = exported(one, "opinion"), exported(one, "question")
    model = load(combine(str(encoder), [by_mean, ("more", exported(two, "question"))], tmp_path / "means"))
    assert answers(model, "question", "more") == answers(load(two), "question")
    for target in (encoder, two):
        with pytest.raises(UserError, match=r"one-opinion\.safetensors: its head uses the pooler"):
            combine(target, [by_pooler], tmp_path / "new")
    assert answers(load(combine(one, [by_pooler], tmp_path / "new")), "opinion") == answers(load(one), "opinion")


def test_another_tokenizer_is_refused(tmp_path: Path, make_run: Any) -> None:
    run = make_run("run")
    file = exported(run, "opinion")
    path = run / "model" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"]["lowercase"] = not content["normalizer"]["lowercase"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="is not the one that the adapter was trained with"):
        combine(run, [file], tmp_path / "new")


def test_numbers_that_do_not_fit_their_record(tmp_path: Path, make_run: Any) -> None:
    run = make_run("run", ("adapter=lhuc",))
    file = exported(run, "opinion")
    with safe_open(file, framework="pt") as opened:
        record = opened.metadata()[KEY]
    tensors = load_file(file)
    for changed, message in [
        ({k: t for k, t in tensors.items() if k != "head.output.bias"}, r"head\.output\.bias: .*\[5\], found none"),
        (tensors | {"adapter.more": tensors["head.output.bias"].clone()}, r"adapter\.more: .* none, found \[5\]"),
        (tensors | {"head.output.bias": tensors["head.output.bias"][:4].clone()}, r"\[5\], found \[4\]"),
    ]:
        save_file(changed, file, metadata={KEY: record})
        with pytest.raises(UserError, match=rf"run-opinion\.safetensors: tensor .*{message}"):
            combine(run, [file], tmp_path / "new")
    assert not [path for path in tmp_path.iterdir() if "new" in path.name]


def test_places_that_are_wrong(tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("run")
    file = exported(run, "opinion")
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="there: already exists"):
        combine(run, [file], tmp_path / "there")
    with pytest.raises(UserError, match=r"run-opinion\.safetensors/new: cannot be written"):
        combine(run, [file], file / "new")
    with pytest.raises(UserError, match="pass at least one adapter file"):
        combine(run, [], tmp_path / "new")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="encoder 'no/such' was not found"):
        combine("no/such", [file], tmp_path / "new")
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "recipe.yaml").write_text("tasks: {}")
    with pytest.raises(UserError, match="unfinished: no trained model here: the run has not finished"):
        combine(tmp_path / "unfinished", [file], tmp_path / "new")
    assert not (tmp_path / "new").exists()
