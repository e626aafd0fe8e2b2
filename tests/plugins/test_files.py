"""Plug-in files in recipes: trust, training, resuming, prediction, studies and added tasks."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import polytask
from polytask import UserError, methods, read_recipe, start_training
from polytask.plugins.files import read_plugins, use_plugins, using_plugins
from polytask.runs.prepare import prepare
from polytask.studies.cells import cell_key

from .conftest import RECIPE, TASK

Change = Callable[[str], Path]


def trained(folder: Path) -> "polytask.Finished":
    return polytask.train(folder / "recipe.yaml", folder / "run", trust_plugins=True)


# --- trust ------------------------------------------------------------------------------------------------------------
def test_a_plug_in_does_not_run_before_it_is_trusted(folder: Path) -> None:
    (folder / "my_adapter.py").write_text("open('ran', 'w')")
    for file in sorted(folder.glob("*.py"))[1:]:
        polytask.trust_plugin(file)
    for use in (polytask.train, lambda path: polytask.rehearse(read_recipe(path))):
        with pytest.raises(UserError, match=r"my_adapter.py: this plug-in is not trusted \(SHA-256 \w{64}\)") as e:
            use(folder / "recipe.yaml")
        for part in ("Python program", "less ", "--trust-plugins", "polytask.trust_plugin("):
            assert part in str(e.value)
    assert not (folder / "ran").exists()
    assert not Path("ran").exists()


def test_all_files_that_are_not_trusted_are_named_at_once(folder: Path) -> None:
    """--trust-plugins trusts all of them, so the user must see all of them first."""
    (folder / "own.py").write_text("def half(gold, predicted):\n    return 0.5\n")
    recipe = read_recipe(folder / "recipe.yaml", ["tasks.mood.metrics=[own:half]"])
    with pytest.raises(UserError, match="plug-ins are not trusted") as e:
        polytask.rehearse(recipe)
    for name in ("my_adapter.py", "my_loss.py", "own.py"):
        assert f"{folder / name} (SHA-256 " in str(e.value)
    for part in ("Python programs", f"less {folder}", "--trust-plugins", "polytask.trust_plugin("):
        assert part in str(e.value)


def test_trust_is_remembered_by_hash_for_this_user_only(folder: Path, tmp_path: Path) -> None:
    digest = polytask.trust_plugin(folder / "my_adapter.py")
    marker = tmp_path / "config" / "trusted-plugins" / digest
    assert stat.S_IMODE(marker.stat().st_mode) == 0o600
    assert stat.S_IMODE(marker.parent.stat().st_mode) == 0o700
    copy = shutil.copy(folder / "my_adapter.py", tmp_path / "elsewhere.py")
    assert [plugin.sha256 for plugin in read_plugins([copy])] == [digest]
    marker.parent.chmod(0o777)  # anybody could have put markers there
    with pytest.raises(UserError, match="not trusted"):
        read_plugins([copy])
    marker.parent.chmod(0o700)
    marker.unlink()
    with pytest.raises(UserError, match="not trusted"):
        read_plugins([copy])


def test_a_changed_plug_in_must_be_trusted_again(folder: Path, change: Change) -> None:
    polytask.trust_plugin(folder / "my_adapter.py")
    read_plugins([folder / "my_adapter.py"])
    with pytest.raises(UserError, match="not trusted"):
        read_plugins([change("my_adapter.py")])


def test_a_model_folder_from_elsewhere_runs_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(folder)
    copy = tmp_path / "received"
    shutil.copytree(folder / "run" / "model", copy)
    assert polytask.load(copy).predict("mood", "the book was dull")[0].label in ("glad", "sad")
    monkeypatch.setenv("POLYTASK_CONFIG", str(tmp_path / "another-user"))
    with pytest.raises(UserError, match=r"not trusted:\n.*received/plugins/my_adapter.py \(SHA-256 \w{64}\)"):
        polytask.load(copy)
    for use in (polytask.evaluate_run, lambda run: polytask.export_adapter(run, "mood", tmp_path / "file")):
        with pytest.raises(UserError, match="not trusted"):
            use(folder / "run")
    predictor = polytask.load(copy, trust_plugins=True)
    assert predictor.predict("mood", "the book was dull")[0].label in ("glad", "sad")
    assert polytask.load(copy).tasks == ("mood", "other")  # remembered


def test_a_damaged_or_missing_copy_is_named(folder: Path) -> None:
    model = trained(folder).folder / "model"
    plugin = model / "plugins" / "my_loss.py"
    plugin.write_text(plugin.read_text() + "\n")
    with pytest.raises(UserError, match=r"my_loss.py: damaged: its SHA-256 differs from the one in tasks.json"):
        polytask.load(model)
    plugin.unlink()
    with pytest.raises(UserError, match=r"my_loss.py: the plug-in cannot be read: No such file"):
        polytask.load(model)
    content = json.loads((model / "tasks.json").read_text())
    (model / "tasks.json").write_text(json.dumps({**content, "plugins": {"../my_loss.py": "0" * 64}}))
    with pytest.raises(UserError, match=r"plugins: must be file names, found '../my_loss.py'"):
        polytask.load(model)


# --- runs -------------------------------------------------------------------------------------------------------------
def test_a_run_has_copies_and_works_without_the_recipes_folder(folder: Path, tmp_path: Path) -> None:
    finished = trained(folder)
    assert finished.evaluations["dev"].tasks["mood"].metrics.keys() >= {"accuracy", "first_class"}
    assert yaml.safe_load((folder / "run" / "recipe.yaml").read_text())["plugins"] == [
        "plugins/my_adapter.py",
        "plugins/my_loss.py",
    ]
    run = tmp_path / "moved"
    (folder / "run").rename(run)
    for name in ("my_adapter.py", "my_loss.py"):
        assert (run / "plugins" / name).read_bytes() == (folder / name).read_bytes()
        (folder / name).unlink()
    evaluated = polytask.evaluate_run(run)
    assert (
        evaluated.tasks["mood"].metrics["first_class"]
        == finished.evaluations["dev"].tasks["mood"].metrics["first_class"]
    )
    assert polytask.export_adapter(run, "mood", tmp_path / "mood.safetensors").is_file()
    again = polytask.train(run / "recipe.yaml", tmp_path / "again")
    assert again.summary.evaluations == finished.summary.evaluations


def test_a_run_resumes_with_the_same_plug_ins_only(folder: Path, change: Change) -> None:
    recipe = read_recipe(folder / "recipe.yaml")
    running = start_training(recipe, folder / "run", trust_plugins=True)
    for report in running.steps():
        if report.step == 5:
            running.save()
            break
    running.lock.release()
    polytask.trust_plugin(change("my_loss.py"))
    with pytest.raises(UserError, match=r"plugins: my_loss.py: its code has changed\nUndo the change"):
        start_training(recipe, folder / "run", resume=True)
    changed = start_training(recipe, folder / "run", resume=True, allow_change=True)
    assert changed.session.step == 5
    assert "CHANGED" in (folder / "run" / "plugins" / "my_loss.py").read_text()
    changed.lock.release()
    resumed = start_training(recipe, folder / "run", resume=True)  # the change was accepted
    finished = resumed.complete()
    whole = polytask.train(recipe, folder / "whole")
    assert finished.summary.evaluations == whole.summary.evaluations


def test_a_cells_key_depends_on_the_content_and_not_on_the_place(folder: Path, tmp_path: Path, change: Change) -> None:
    def key(place: Path) -> str:
        prepared = prepare(read_recipe(place / "recipe.yaml"))
        return cell_key(prepared.recipe, prepared)

    for name in ("my_adapter.py", "my_loss.py"):
        polytask.trust_plugin(folder / name)
    first = key(folder)
    recipe = read_recipe(folder / "recipe.yaml")
    moved = tmp_path / "moved"
    moved.mkdir()
    copies = tuple(str(shutil.copy(path, moved)) for path in recipe.plugins)
    prepared = prepare(replace(recipe, plugins=copies))
    assert cell_key(prepared.recipe, prepared) == first
    polytask.trust_plugin(change("my_loss.py"))
    assert key(folder) != first


def test_a_file_of_metric_functions_counts_as_code(folder: Path, change: Change) -> None:
    (folder / "my_metric.py").write_text("def half(gold, predicted):\n    return 0.5\n")
    tasks = {"mood": {**TASK, "metrics": ["my_metric:half"]}}
    recipe = polytask.recipe_from({**RECIPE, "plugins": [], "adapter": "none", "tasks": tasks}, folder=folder)
    polytask.trust_plugin(folder / "my_metric.py")

    def key() -> str:
        prepared = prepare(recipe)
        return cell_key(prepared.recipe, prepared)

    first = key()
    assert key() == first
    running = start_training(recipe, folder / "run")
    for report in running.steps():
        if report.step == 4:
            running.save()
            break
    running.lock.release()
    polytask.trust_plugin(change("my_metric.py"))
    assert key() != first
    with pytest.raises(UserError, match=r"plugins: metrics my_metric.py: its code has changed\nUndo the change"):
        start_training(recipe, folder / "run", resume=True)
    start_training(recipe, folder / "run", resume=True, allow_change=True).lock.release()


@pytest.mark.slow
def test_worker_processes_load_trusted_plug_ins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = {
        "base": "recipe.yaml",
        "set": {"train.epochs": 1},
        "seeds": [0, 1],
        "variants": {"scale": {}, "plain": {"adapter": "none"}},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match="not trusted"):
        polytask.StudyRunning(polytask.read_study("study.yaml"), folder / "study", 2)
    running = polytask.StudyRunning(polytask.read_study("study.yaml"), folder / "study", 2, trust_plugins=True)
    assert [report.error for report in running.reports() if report.state == "failed"] == []
    content = running.finish()
    assert [cell["state"] for variant in content["variants"].values() for cell in variant["cells"]] == ["done"] * 4


def test_finished_runs_are_compared_by_the_content_of_their_plug_ins(folder: Path) -> None:
    for name, settings in {"a": [], "b": ["seed=1"], "c": ["adapter=none"]}.items():
        polytask.train(folder / "recipe.yaml", folder / name, [*settings, "train.epochs=1"], trust_plugins=True)
    content = polytask.compare_runs([folder / name for name in "abc"], folder / "comparison")
    assert {variant: len(known["cells"]) for variant, known in content["variants"].items()} == {"a": 2, "c": 1}
    assert content["differences"].keys() == {"adapter", "adapter.strength"}


def test_a_search_loads_trusted_plug_ins(folder: Path) -> None:
    pytest.importorskip("optuna")
    options = {"vary": ["optimizer.lr=1e-4,1e-3"], "folder": folder / "tuning"}
    with pytest.raises(UserError, match="not trusted"):
        polytask.start_tuning(folder / "recipe.yaml", "1m", **options)
    tuning = polytask.start_tuning(folder / "recipe.yaml", "1m", **options, trust_plugins=True)
    assert tuning.plan.fields[0].field == "optimizer.lr"


def test_tasks_are_added_with_the_plug_ins_of_both_recipes(folder: Path) -> None:
    old = {**RECIPE, "plugins": ["my_adapter.py"], "tasks": {"mood": TASK, "other": TASK}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(old))
    trained(folder)
    new = {"tasks": {"third": {**TASK, "loss": "confident"}}, "plugins": "my_loss.py", "train": RECIPE["train"]}
    (folder / "new.yaml").write_text(yaml.safe_dump(new))
    with pytest.raises(UserError, match=r"my_loss.py: this plug-in is not trusted"):
        polytask.add_task(folder / "run", folder / "new.yaml", folder / "three")
    polytask.add_task(folder / "run", folder / "new.yaml", folder / "three", trust_plugins=True)
    assert {path.name for path in (folder / "three" / "plugins").iterdir()} == {"my_adapter.py", "my_loss.py"}
    assert polytask.load(folder / "three").tasks == ("mood", "other", "third")
    polytask.add_task(folder / "run", folder / "new.yaml", folder / "three", resume=True)  # has finished: same plug-ins


# --- several versions in one process ----------------------------------------------------------------------------------
def test_the_tables_have_the_version_that_is_in_use(folder: Path, change: Change) -> None:
    first = read_plugins([folder / "my_adapter.py"], trust=True)
    second = use_plugins([change("my_adapter.py")], trust=True)
    in_use = methods.TABLES["adapter"]["scale"]
    assert in_use is second[0].methods[0].method
    with using_plugins(first):
        assert methods.TABLES["adapter"]["scale"] is first[0].methods[0].method
    assert methods.TABLES["adapter"]["scale"] is in_use
    use_plugins([])
    assert "scale" not in methods.TABLES["adapter"]
    with using_plugins(first):
        assert "scale" in methods.TABLES["adapter"]
    assert "scale" not in methods.TABLES["adapter"]


# --- files that are wrong ---------------------------------------------------------------------------------------------
IMPORT = "from polytask import register; "


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", "the plug-in cannot be loaded: ZeroDivisionError"),
        ("def (", "the plug-in cannot be loaded: SyntaxError"),
        ("raise SystemExit", "the plug-in cannot be loaded: SystemExit"),
        ("x = 1", "the plug-in registers nothing"),
        (f"{IMPORT}register('adapter', 'mine', 3)", r"my_adapter.py: register\('adapter', .*: must be a class"),
        (f"{IMPORT}[register('metric', 'm', lambda a, b: 0.0) for _ in 'ab']", "registers this name twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(folder: Path, source: str, message: str) -> None:
    (folder / "my_adapter.py").write_text(source)
    with pytest.raises(UserError, match=message):
        polytask.rehearse(read_recipe(folder / "recipe.yaml"), trust_plugins=True)


def test_a_plug_in_that_imports_its_neighbour_is_told_so(folder: Path) -> None:
    for source, message in (
        ("import my_loss", "No module named 'my_loss'; a plug-in cannot import other files"),
        ("import none", "'none'$"),
    ):
        (folder / "my_adapter.py").write_text(source)
        with pytest.raises(UserError, match=message):
            use_plugins([folder / "my_adapter.py"], trust=True)


def test_two_files_of_one_name_or_with_one_method_are_refused(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "my_adapter.py").write_text((folder / "my_loss.py").read_text())
    with pytest.raises(UserError, match="another plug-in has the same file name"):
        use_plugins([folder / "my_adapter.py", folder / "inner" / "my_adapter.py"], trust=True)
    (folder / "copy.py").write_text((folder / "my_adapter.py").read_text())
    with pytest.raises(UserError, match=r"the name is taken by plug-in my_adapter.py, and plug-in copy.py"):
        use_plugins([folder / "my_adapter.py", folder / "copy.py"], trust=True)


def test_a_recipe_names_python_files(folder: Path) -> None:
    with pytest.raises(UserError, match=r"plugins: must be Python files, whose names end in .py; found 'x.txt'"):
        read_recipe(folder / "recipe.yaml", ["plugins=[x.txt]"])
    with pytest.raises(UserError, match=r"none.py: the plug-in cannot be read"):
        polytask.train(read_recipe(folder / "recipe.yaml", ["plugins=[none.py]"]), trust_plugins=True)
    assert read_recipe(folder / "recipe.yaml").plugins[0] == os.path.join(folder, "my_adapter.py")
