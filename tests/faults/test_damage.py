"""Files that were damaged after they were written: found out, named, and gone back behind. Hostile ones do nothing."""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from polytask import UserError, load, read_recipe, start_training
from polytask.training import checkpoint as ckpt

from .conftest import STEPS, ending

FILES = ["manifest.json", "state.json", "model.safetensors", "optimizer.safetensors", "methods.safetensors"]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """One bit, in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def delete(path: Path) -> None:
    path.unlink()


DAMAGES: list[Callable[[Path], None]] = [truncate, flip, delete]


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "run")


def test_the_run_that_is_damaged(stopped: Path) -> None:
    needs = {step: ckpt.check(stopped / "checkpoints" / f"step-{step}").needs for step in (5, 6)}
    assert needs == {5: ("best-3",), 6: ("best-6",)}
    assert {path.name for path in (stopped / "checkpoints" / "step-6").iterdir()} == set(FILES)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "file", [*(f"step-6/{name}" for name in FILES), "best-6/model.safetensors", "best-6/manifest.json"]
)
def test_a_damaged_checkpoint_is_skipped_with_a_message(
    run: Path, recipe: Path, file: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(run / "checkpoints" / file)
    running = start_training(read_recipe(recipe), run, resume=True)
    assert running.session.step == 5
    passed, going_on = caplog.messages
    assert passed.startswith("step-6 is damaged and ignored: ")
    # Where manifest and file disagree nobody can tell which of them changed.
    named = run / "checkpoints" / (Path(file).parent if damage is flip and "manifest" in file else file)
    assert str(named) in passed
    assert going_on == f"{run}: resuming from step-5"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_with_a_damaged_checkpoint_ends_as_if_it_were_whole(
    run: Path, recipe: Path, straight: dict[str, Any], damage: Callable[[Path], None]
) -> None:
    damage(run / "checkpoints" / "step-6" / "optimizer.safetensors")
    list(start_training(read_recipe(recipe), run, resume=True).steps())
    assert ending(run) == straight
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best-6", "best-8", "step-7", "step-8"}


def test_no_bit_of_a_manifest_can_change_unseen(stopped: Path, tmp_path: Path) -> None:
    """It is damaged, or says the same: one kind of space may become another."""
    folder = shutil.copytree(stopped / "checkpoints" / "best-6", tmp_path / "best-6")
    path = folder / "manifest.json"
    whole, before, unseen = path.read_bytes(), ckpt.check(folder), 0
    for bit in range(8 * len(whole)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with suppress(ckpt.Damaged):
            assert ckpt.check(folder) == before
            unseen += 1
    assert unseen < 0.02 * 8 * len(whole)


def test_if_every_checkpoint_is_damaged_each_is_named(run: Path, recipe: Path) -> None:
    for step in (5, 6):
        flip(run / "checkpoints" / f"step-{step}" / "state.json")
    with pytest.raises(
        UserError, match=r"(?s)no checkpoint is whole:\n  step-6: .*state.json.*\n  step-5: .*state.json"
    ):
        start_training(read_recipe(recipe), run, resume=True)
    assert {path.name for path in (run / "checkpoints").iterdir()} >= {"step-5", "step-6"}  # nothing was moved


def test_best_models_that_are_lost_can_be_given_up(
    run: Path, recipe: Path, straight: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for step in (3, 6):
        truncate(run / "checkpoints" / f"best-{step}" / "model.safetensors")
    with pytest.raises(UserError, match="pass --allow-change to resume from step-6 without the damaged best models"):
        start_training(read_recipe(recipe), run, resume=True)
    running = start_training(read_recipe(recipe), run, resume=True, allow_change=True)
    assert "best-6 is damaged" in caplog.text
    assert (running.session.step, running.session.progress.bests) == (6, [])
    list(running.steps())
    assert running.session.best_step == STEPS
    same = [key for key in straight if key.startswith(f"step-{STEPS}/")]
    assert {key: ending(run)[key] for key in same} == {key: straight[key] for key in same}


def test_a_finished_run_without_checkpoints_is_not_trained_again(run: Path, recipe: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="the run has finished, and its checkpoints were removed"):
        start_training(read_recipe(recipe), run, resume=True)


# --- the other files of a run -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_costs_lines_and_no_weights(
    run: Path, recipe: Path, straight: dict[str, Any], damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(run / "metrics.jsonl")
    list(start_training(read_recipe(recipe), run, resume=True).steps())
    found = ending(run)
    assert {key for key in straight if found[key] != straight[key]} <= {"lines", "steps"}
    assert found["steps"][-2:] == [7, 8]
    lost = STEPS - len(found["steps"])
    assert (f"the lines of {lost} of the 6 steps so far are missing" in caplog.text) == (lost > 0)


def test_a_missing_environment_file_is_reported(run: Path, recipe: Path, caplog: pytest.LogCaptureFixture) -> None:
    truncate(run / "environment.json")
    start_training(read_recipe(recipe), run, resume=True)
    assert "cannot check whether the data is still the same" in caplog.text


# --- hostile files ----------------------------------------------------------------------------------------------------
class Bomb:
    """What runs a command when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


def sign(folder: Path) -> None:
    """A manifest that agrees with whatever is in the folder, as an attacker would write it."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, "files": files}))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_pickle_under_another_name_is_not_unpickled(run: Path, recipe: Path, tmp_path: Path, name: str) -> None:
    folder = run / "checkpoints" / "step-6"
    for content in (pickle.dumps(Bomb(tmp_path / "boom")), b"\x80\x02" + pickle.dumps(Bomb(tmp_path / "boom"))):
        (folder / name).write_bytes(content)
        sign(folder)
        with pytest.raises(ckpt.Damaged, match=name):
            ckpt.read_checkpoint(folder)
    torch.save({"model": Bomb(tmp_path / "boom")}, folder / name)
    sign(folder)
    with pytest.raises(ckpt.Damaged, match=name):
        ckpt.read_checkpoint(folder)
    assert not (tmp_path / "boom").exists()


def test_pickles_next_to_the_files_are_ignored(run: Path, recipe: Path, tmp_path: Path) -> None:
    for name in ("model.bin", "pytorch_model.bin", "optimizer.pt", "rng_state.pth", "extra.safetensors"):
        (run / "checkpoints" / "step-6" / name).write_bytes(pickle.dumps(Bomb(tmp_path / "boom")))
    assert start_training(read_recipe(recipe), run, resume=True).session.step == 6
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 8 + b"{}",
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        b'\x4f\0\0\0\0\0\0\0{"w":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,399999999996]}}      ',
        b"",
    ],
)
def test_headers_that_lie_are_refused(run: Path, content: bytes) -> None:
    folder = run / "checkpoints" / "step-6"
    (folder / "model.safetensors").write_bytes(content)
    sign(folder)
    with pytest.raises(ckpt.Damaged, match=r"model\.safetensors"):
        ckpt.read_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": {"../../../secret.json": {"bytes": 1, "sha256": "0"}}}, "lists '../../../secret.json'"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": "0"}}}, "lists '/etc/passwd'"),
        ({"files": {}}, "does not list state.json"),
        ({"files": []}, "must be a mapping"),
        ({"needs": ["../other/best-6"]}, "lists '../other/best-6'"),
        ({"step": 5}, "belongs to step 5"),
        ({"step": float("inf")}, "must be an integer"),
        ({"format": 2}, "format 2 is unknown to this version, which reads 1"),
        ({"format": None}, "format None"),
        ({"more": 1}, "there is no field 'more'"),
    ],
)
def test_manifests_that_lie_are_refused(run: Path, change: dict[str, Any], message: str) -> None:
    path = run / "checkpoints" / "step-6" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ckpt.Damaged, match=message):
        ckpt.read_checkpoint(path.parent)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]", "null", '{"format": 1', "\udce4"])
def test_what_is_no_manifest_is_refused(run: Path, text: str) -> None:
    path = run / "checkpoints" / "step-6" / "manifest.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ckpt.Damaged, match=r"manifest\.json"):
        ckpt.read_checkpoint(path.parent)


def test_a_file_without_end_is_not_read(run: Path) -> None:
    path = run / "checkpoints" / "step-6" / "model.safetensors"
    for target in ("/dev/zero", str(run / "checkpoints" / "step-5" / "model.safetensors")):
        path.unlink()
        path.symlink_to(target)
        with pytest.raises(ckpt.Damaged, match="there is no such file"):
            ckpt.read_checkpoint(path.parent)


def test_tensors_of_another_shape_are_refused(run: Path, recipe: Path) -> None:
    """A checkpoint that is whole and of something else."""
    folder = run / "checkpoints" / "step-6"
    save_file({"w": torch.ones(2)}, folder / "model.safetensors")
    sign(folder)
    with pytest.raises(RuntimeError, match="Missing key"):
        start_training(read_recipe(recipe), run, resume=True)


def test_hostile_models_and_recipes(tiny_run: Any, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "boom"))
    for name in ("model.safetensors", "parts.safetensors", "tasks.json", "config.json", "tokenizer.json"):
        model = shutil.copytree(tiny_run.folder / "model", tmp_path / name / "model")
        (model / name).write_bytes(bomb)
        with pytest.raises(Exception, match=r"\S"):
            load(tmp_path / name)
    (tmp_path / "recipe.yaml").write_text(f"tasks: !!python/object/apply:os.system ['touch {tmp_path / 'boom'}']")
    with pytest.raises(UserError, match="not valid YAML"):
        read_recipe(tmp_path / "recipe.yaml")
    assert not (tmp_path / "boom").exists()
