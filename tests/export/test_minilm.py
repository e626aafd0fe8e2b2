"""The real encoder, exported: the other programs open it and answer as polytask does."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sentence_transformers
    import transformers

from polytask import export_hugging_face, export_onnx, load, load_onnx, train

RECIPE = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
SETTINGS = ["train.steps_per_epoch=3", "train.epochs=1", "train.precision=float32", "train.device=cpu"]
POOLER = "tasks.opinion.head={name: linear, pooling: pooler}"
TEXTS = ["Not bad at all.", "I want my money back!", "The Café's naïve owner doesn't answer. " * 20]
PAIRS = [("How old is it?", "What is its age?"), ("a", "b c d")]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def run(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(RECIPE, tmp_path_factory.mktemp("minilm") / "run", [*SETTINGS, POOLER]).folder


@pytest.mark.parametrize("int8", [False, True])
def test_onnxruntime(int8: bool, run: Path) -> None:
    done = export_onnx(run, int8=int8)
    for one in done.replays.values():
        assert one.is_inside
        assert int8 or one.largest < 1e-4
        assert int8 or not one.flipped
    expected, found = (
        [prediction.label for prediction in predictor.predict("similarity", PAIRS)]
        for predictor in (load(run), load_onnx(done.folder))
    )
    np.testing.assert_allclose(found, expected, atol=0.5 if int8 else 1e-3)  # type: ignore[arg-type]
    size = (done.folder / "model.onnx").stat().st_size
    assert size < (65e6 if int8 else 100e6), size  # the embeddings, 47 MB, stay in float32


def test_transformers(run: Path) -> None:
    folder = export_hugging_face(run, "opinion").folder
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        logits = model(**tokenizer(TEXTS, return_tensors="pt", padding=True, truncation=True)).logits
    expected = [list((one.probabilities or {}).values()) for one in load(run).predict("opinion", TEXTS)]
    np.testing.assert_allclose(logits.softmax(-1), expected, atol=1e-5)


def test_sentence_transformers(run: Path) -> None:
    folder = export_hugging_face(run).folder
    vectors = sentence_transformers.SentenceTransformer(str(folder)).encode(TEXTS)
    np.testing.assert_allclose(vectors, load(run).embed(TEXTS), atol=1e-5)
