"""Tasks for transformers and sentence-transformers: both libraries open the folders and answer as polytask does."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sentence_transformers
    import transformers

from polytask import Finished, UserError, load
from polytask.export.hugging_face import export_hugging_face

TEXTS = ["Not bad at all.", "I want my money back!", "ok", "The Café's naïve owner doesn't answer. " * 20]
PAIRS = [("How old is it?", "What is its age?"), ("a", "b c d"), ("Where?", "A much longer text. " * 30)]
ROBERTA = "encoder={kind: roberta, layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 128}"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings of other libraries about each other are not errors here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def logits(folder: Path, *columns: list[str]) -> torch.Tensor:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        return model(**tokenizer(*columns, return_tensors="pt", padding=True, truncation=True)).logits


def probabilities(run: Path, task: str, texts: Any) -> torch.Tensor:
    return torch.tensor([list((one.probabilities or {}).values()) for one in load(run).predict(task, texts)])


@pytest.mark.parametrize("more", [(), (ROBERTA,), ("adapter=lora",)], ids=["bert", "roberta", "lora"])
def test_heads_on_the_pooler_are_sequence_classifiers(more: tuple[str, ...], make_run: Any) -> None:
    heads = ("tasks.opinion.head={name: linear, pooling: pooler}", "tasks.question.head={name: cross, pooling: pooler}")
    run = make_run("run", (*heads, *more))
    written = export_hugging_face(run, "opinion")
    assert written.folder == run / "hf-opinion"
    assert written.opened_by == f"transformers.{'Roberta' if ROBERTA in more else 'Bert'}ForSequenceClassification"
    found = logits(written.folder, TEXTS).softmax(-1)
    torch.testing.assert_close(found, probabilities(run, "opinion", TEXTS), atol=1e-5, rtol=0)
    config = transformers.AutoConfig.from_pretrained(written.folder)
    assert config.id2label[4] == "very positive"
    assert "ForSequenceClassification.from_pretrained(FOLDER)" in (written.folder / "README.md").read_text()
    written = export_hugging_face(run, "question")
    found = logits(written.folder, *map(list, zip(*PAIRS, strict=True))).softmax(-1)
    torch.testing.assert_close(found, probabilities(run, "question", PAIRS), atol=1e-5, rtol=0)


def test_scores_are_a_regression_in_the_tasks_range(make_run: Any) -> None:
    run = make_run("run", ("tasks.similarity.head={name: cross, pooling: pooler}",))
    folder = export_hugging_face(run, "similarity").folder
    found = logits(folder, *map(list, zip(*PAIRS, strict=True)))[:, 0].clamp(0, 5)
    expected = torch.tensor([float(one.label) for one in load(run).predict("similarity", PAIRS)])  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_other_poolings_are_logits_of_sentence_transformers(pooling: str, make_run: Any) -> None:
    run = make_run("run", (f"tasks.opinion.head={{name: linear, pooling: {pooling}}}",))
    written = export_hugging_face(run, "opinion")
    assert written.opened_by == "sentence_transformers.SentenceTransformer"
    assert "`encode` returns the logits of very negative, negative" in written.notes[0]
    found = sentence_transformers.SentenceTransformer(str(written.folder)).encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(found.softmax(-1), probabilities(run, "opinion", TEXTS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "first", "pooler"])
def test_heads_that_compare_two_texts_are_embeddings(pooling: str, make_run: Any) -> None:
    heads = (f"tasks.similarity.head={{name: cosine, map: linear, pooling: {pooling}}}", "adapter=lora")
    run = make_run("run", heads)
    written = export_hugging_face(run, "similarity")
    model = sentence_transformers.SentenceTransformer(str(written.folder))
    one, other = (model.encode(list(column)) for column in zip(*PAIRS, strict=True))
    cosines = model.similarity_pairwise(one, other).numpy()
    expected = [float(prediction.label) for prediction in load(run).predict("similarity", PAIRS)]  # type: ignore[arg-type]
    np.testing.assert_allclose(5 * (1 + cosines) / 2, expected, atol=1e-4)
    assert "The score is (1 + cos) / 2" in written.notes[1]


def test_without_a_task_the_encoder_for_embeddings(tiny_run: Finished, tmp_path: Path) -> None:
    written = export_hugging_face(tiny_run.folder, output=tmp_path / "embeddings")
    vectors = sentence_transformers.SentenceTransformer(str(written.folder)).encode(TEXTS)
    np.testing.assert_allclose(vectors, load(tiny_run.folder).embed(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("tasks.question.head=joint",), "it reads each pair both as one sequence and as two texts"),
        (("adapter={name: pal, size: 12, heads: 3}",), "cannot be merged into the encoder: it has a branch"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_a_reason(
    settings: tuple[str, ...], reason: str, make_run: Any
) -> None:
    run = make_run("run", settings)
    with pytest.raises(UserError, match=reason):
        export_hugging_face(run, "question")
    assert not (run / "hf-question").exists()
