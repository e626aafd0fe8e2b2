"""Methods by name: options come from the constructor, and what is unknown is an error that lists what there is."""

import inspect
import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file

import polytask
from polytask import read_recipe, start_training
from polytask.build import make, option
from polytask.encoders.bert import Bert, BertShape
from polytask.methods import TABLES, options_of
from polytask.pretrained.weights import save_encoder
from polytask.samplers.base import SamplerContext
from polytask.settings import MethodChoice
from polytask.types import UserError

QUICKSTART = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"

METHODS = [(table, name) for table, methods in TABLES.items() for name in methods]


@pytest.mark.parametrize(("table", "name"), METHODS)
def test_every_method_can_be_read_by_people(table: str, name: str) -> None:
    method = TABLES[table][name]
    first = (inspect.getdoc(method) or "").splitlines()[0]
    assert first.endswith((".", ":")) or len(first) > 20, f"{table} {name} opens with one sentence"
    for entry in options_of(method):
        assert entry.default is not inspect.Parameter.empty, f"{table} {name}: {entry.name} needs a default"


def test_tables_are_sorted() -> None:
    assert all(list(methods) == sorted(methods) for methods in TABLES.values())


def test_options_reach_the_method_with_their_types() -> None:
    import torch  # noqa: PLC0415

    groups = [{"params": [torch.nn.Parameter(torch.ones(1))]}]
    made = make("optimizer", MethodChoice("adamw", {"lr": "1e-3", "betas": [0.5, 0.9]}), "here", groups)
    assert made.defaults["lr"] == 1e-3
    assert made.defaults["betas"] == (0.5, 0.9)
    assert option("optimizer", MethodChoice("adamw"), "lr", "here") == 5e-5
    assert option("optimizer", MethodChoice("adamw", {"lr": "2e-5"}), "lr", "here") == 2e-5


def test_unknown_names_and_options() -> None:
    context = SamplerContext({"a": 1}, 1, 0, 1, 1)
    with pytest.raises(UserError, match=r"here: there is no sampler 'proportionl' .did you mean proportional"):
        make("sampler", MethodChoice("proportionl"), "here", context)
    with pytest.raises(UserError, match=r"'order' of round_robin, which has no options; write `{name: NAME, option:"):
        make("sampler", MethodChoice("round_robin", {"order": 1}), "here", context)
    with pytest.raises(UserError, match="there is no optimizer 'sgd'"):
        option("optimizer", MethodChoice("sgd"), "lr", "here")


def test_a_run_records_the_revision_of_its_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of the hub library has two commits of one encoder, and the branch main is at the first."""
    first, second = "a" * 40, "b" * 40
    repo = tmp_path / "hf" / "models--me--tiny"
    for commit in (first, second):
        save_encoder(Bert(BertShape(layers=1, hidden=16, heads=2, ffn=32, positions=128)), repo / "snapshots" / commit)
        shutil.copy(Path(polytask.__file__).parent / "text/small_vocabulary/vocab.txt", repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(first)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = ["train.epochs=1", "train.steps_per_epoch=1"]
    for encoder, commit in (("me/tiny", first), (f"me/tiny@{second}", second)):
        running = start_training(read_recipe(QUICKSTART, [*settings, f"encoder={encoder}"]), tmp_path / commit)
        assert read_recipe(tmp_path / commit / "recipe.yaml").encoder == encoder
        assert json.loads((tmp_path / commit / "environment.json").read_text())["encoder_revision"] == commit
        weights = load_file(repo / "snapshots" / commit / "model.safetensors")["embeddings.word_embeddings.weight"]
        assert torch.equal(running.prepared.model.encoder.words.weight, weights)
        list(running.steps())
        running.lock.release()
    summary = running.finish().summary
    assert (summary.encoder, summary.encoder_revision) == (f"me/tiny@{second}", second)
