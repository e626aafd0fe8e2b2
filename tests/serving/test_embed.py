"""Embeddings are the mean of the encoder's last hidden states, as sentence-transformers computes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from polytask import Finished, Predictor, UserError, load, train

TEXTS = ["A cyclist is fixing a flat tyre.", "Who?", "The battery died within a week and nobody answered my emails."]


def reference(folder: Path, normalize: bool) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return (torch.nn.functional.normalize(mean) if normalize else mean).numpy()


@pytest.fixture(scope="module")
def untrained(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """minilm with a head that was trained for a step, and an encoder that is frozen."""
    task = {"kind": "classes", "text": "text", "label": "opinion"}
    task |= {"train": "sample:opinions-train", "dev": "sample:opinions-dev", "rows": "32"}
    settings = {"epochs": 1, "steps_per_epoch": 1, "parts": "heads", "device": "cpu", "batch_size": 4}
    recipe = {"tasks": {"opinion": {**task, "rows": 32}}, "train": settings}
    return train(recipe, tmp_path_factory.mktemp("embed") / "run")


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_equal_to_mean_pooling_of_transformers(untrained: Finished, minilm: Path, few: bool, normalize: bool) -> None:
    found = Predictor.load(untrained.folder, device="cpu", few=few).embed(TEXTS, normalize)
    assert found.shape == (3, 384)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reference(minilm, normalize), atol=2e-6)


def test_missing_texts_are_nan_and_one_text_is_a_row(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    found = model.embed(["a text", None, "", "another"])
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]
    np.testing.assert_allclose(np.linalg.norm(found[[0, 3]], axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(model.embed("a text"), found[:1], atol=1e-6)
    assert model.embed([]).shape == (0, 32)


def test_a_task_with_an_adapter_has_other_vectors(tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
    model = load(train(recipe, tmp_path / "run", [*tiny_settings, "adapter={name: houlsby, size: 4}"]).folder)
    shared, own = model.embed(TEXTS), model.embed(TEXTS, task="opinion")
    assert np.abs(shared - own).max() > 1e-4
    np.testing.assert_allclose(Predictor.load(tmp_path / "run").embed(TEXTS[::-1]), shared[::-1], atol=1e-6)
    with pytest.raises(UserError, match="did you mean opinion"):
        model.embed(TEXTS, task="opinon")
