"""The model folder: what is saved comes back, and a folder with a part missing or altered is refused by name."""

import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import transformers

from polytask import Finished, UserError, load
from polytask.runs.bundle import load_bundle, save_bundle
from polytask.runs.folder import ModelFolder

FILES = tuple(file.name for file in ModelFolder(Path()).files)


def test_round_trip(tiny_run: Finished, tmp_path: Path) -> None:
    bundle = load(tiny_run.folder).bundle
    save_bundle(bundle, tmp_path / "copy")
    copy = load_bundle(tmp_path / "copy")
    assert copy.labels == bundle.labels
    assert copy.packer == bundle.packer
    assert copy.adapter == bundle.adapter
    weights = bundle.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in copy.model.state_dict().items())
    assert copy.labels["opinion"].classes[0] == "very negative"  # the recipe's order, not the alphabet's


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tiny_run: Finished, tmp_path: Path, name: str) -> None:
    shutil.copytree(tiny_run.folder / "model", tmp_path / "model")
    (tmp_path / "model" / name).unlink()
    with pytest.raises(UserError, match=name):
        load(tmp_path)


def test_parts_that_do_not_fit_and_other_formats_are_refused(tiny_run: Finished, tmp_path: Path) -> None:
    shutil.copytree(tiny_run.folder / "model", tmp_path / "model")
    path = tmp_path / "model" / "tasks.json"
    content = json.loads(path.read_text())
    content["tasks"]["extra"] = content["tasks"]["opinion"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"parts\.safetensors: does not fit tasks\.json: .*heads\.extra"):
        load(tmp_path)
    path.write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(UserError, match=r"tasks\.json: format 99 is unknown"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("task", "by"), [("similarity", [2.5, 0]), ("similarity", [9, 1]), ("similarity", [2.5, 6]), ("opinion", [2.5, 1])]
)
def test_scores_that_no_training_file_has_are_refused(
    tiny_run: Finished, tmp_path: Path, task: str, by: list[float]
) -> None:
    shutil.copytree(tiny_run.folder / "model", tmp_path / "model")
    path = tmp_path / "model" / "tasks.json"
    content = json.loads(path.read_text())
    content["tasks"][task]["standardized_by"] = by
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"tasks\.{task}\.standardized_by: must be the mean and the standard"):
        load(tmp_path)


def test_a_run_that_has_not_finished(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no trained model here"):
        load(tmp_path)
    with pytest.raises(UserError, match="there is no such run"):
        load(tmp_path / "nothing")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["cut short", "one bit", "empty"])
def test_a_damaged_file_is_named(tiny_run: Finished, tmp_path: Path, name: str, how: str) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_run.folder / "model", copy)
    content = bytearray((copy / name).read_bytes())
    content[0] ^= 1
    kept = {"cut short": content[: len(content) // 2], "one bit": content, "empty": b""}[how]
    (copy / name).write_bytes(bytes(kept))
    with pytest.raises(UserError, match=re.escape(str(copy / name)) + ": damaged"):
        load_bundle(copy)


def test_a_bit_in_the_middle_of_the_weights_is_noticed(tiny_run: Finished, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_run.folder / "model", copy)
    content = bytearray((copy / "parts.safetensors").read_bytes())
    content[-5] ^= 16
    (copy / "parts.safetensors").write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"parts\.safetensors: damaged: its SHA-256 differs"):
        load_bundle(copy)


def test_transformers_reads_the_encoder_and_refuses_to_classify(tiny_run: Finished) -> None:
    """The heads are polytask's own: a pipeline would answer from a classifier of random weights."""
    folder = str(tiny_run.folder / "model")
    _, info = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a classifier without classes
        classify = transformers.pipeline("text-classification", model=folder)
        with pytest.raises(ValueError, match="empty"):
            classify("a good day")
        fine = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    assert fine.classifier.out_features == 3  # whoever says how many classes there are can go on training
