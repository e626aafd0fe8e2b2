"""Tasks for transformers and sentence-transformers: both libraries open the folders and answer as polytask does."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sentence_transformers
    import transformers

from polytask import Finished, UserError, load, prepare, recipe_from
from polytask.export.hugging_face import export_hugging_face
from polytask.kinds.tokens import repaired
from polytask.runs.bundle import save_bundle

TEXTS = ["Not bad at all.", "I want my money back!", "ok", "The Café's naïve owner doesn't answer. " * 20]
PAIRS = [("How old is it?", "What is its age?"), ("a", "b c d"), ("Where?", "A much longer text. " * 30)]
MakeRun = Callable[..., Path]
ROBERTA = "encoder={kind: roberta, layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 128}"


OPTIONS = ("When does the shop open?", ["At noon.", "It is blue.", "No, thank you very much. " * 20])
KINDS: dict[str, dict[str, Any]] = {
    "topics": {"kind": "multilabel", "text": "text", "label": "topics", "sample": "tickets"},
    "reply": {
        "kind": "choice",
        "text": "message",
        "options": ["reply_0", "reply_1", "reply_2", "reply_3"],
        "label": "best",
        "sample": "replies",
    },
    "entities": {"kind": "tokens", "text": "text", "label": "spans", "sample": "entities"},
    "articles": {"kind": "match", "text": ["question", "article"], "sample": "articles"},
    "pairs": {"kind": "yes_no", "text": ["question1", "question2"], "label": "duplicate", "sample": "questions"},
    "three": {
        "kind": "yes_no",
        "text": ["question1", "question2", "question1"],
        "label": "duplicate",
        "sample": "questions",
    },
    "decision": {
        "kind": "classes",
        "text": "report",
        "label": "decision",
        "sample": "inspections",
        "windows": {"most": 4},
    },
}
TEMPERATURE = 1.7


@pytest.fixture(scope="module")
def make_kinds(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> MakeRun:
    """make_kinds(task, head, settings): the model folder of one task, with a temperature where it has one."""

    def make(task: str, head: Any = None, *settings: str) -> Path:
        given = {key: value for key, value in KINDS[task].items() if key != "sample"}
        files = {name: f"sample:{KINDS[task]['sample']}-{name}" for name in ("train", "dev")}
        entry = {**given, **files, **({} if head is None else {"head": head})}
        recipe = recipe_from({"max_length": 64, "tasks": {task: entry}}, [*tiny_settings, *settings])
        bundle = prepare(recipe).bundle
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in (*bundle.model.heads.parameters(), *bundle.model.encoder.pooler.parameters()):
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        if bundle.model.head(task).kind.has_confidence:
            bundle = replace(bundle, temperatures={task: TEMPERATURE})
        folder = tmp_path_factory.mktemp(task) / "run"
        save_bundle(bundle, folder / "model")
        return folder

    return make


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
    assert "The score is 0 + 5 * (1 + cos) / 2, with" in written.notes[1]


@pytest.mark.parametrize("pooling", ["pooler", "mean"])
def test_several_classes_of_a_text(pooling: str, make_kinds: MakeRun) -> None:
    run = make_kinds("topics", {"name": "linear", "pooling": pooling})
    written = export_hugging_face(run, "topics")
    if pooling == "pooler":
        assert written.opened_by == "transformers.BertForSequenceClassification"
        assert transformers.AutoConfig.from_pretrained(written.folder).problem_type == "multi_label_classification"
        found = logits(written.folder, TEXTS)
    else:
        assert "BertForSequenceClassification does not use the mean" in written.notes[0]
        found = sentence_transformers.SentenceTransformer(str(written.folder)).encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(found.sigmoid(), probabilities(run, "topics", TEXTS), atol=1e-5, rtol=0)


def test_pairs_of_a_head_that_pools_the_mean(make_kinds: MakeRun) -> None:
    run = make_kinds("pairs", "cross")
    written = export_hugging_face(run, "pairs")
    model = sentence_transformers.SentenceTransformer(str(written.folder))
    found = model.encode(PAIRS, convert_to_tensor=True).softmax(-1)
    torch.testing.assert_close(found, probabilities(run, "pairs", PAIRS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("more", [(), (ROBERTA,)], ids=["bert", "roberta"])
def test_options_are_a_multiple_choice(more: tuple[str, ...], make_kinds: MakeRun) -> None:
    run = make_kinds("reply", {"name": "choice", "pooling": "pooler"}, *more)
    written = export_hugging_face(run, "reply")
    assert written.opened_by == f"transformers.{'Roberta' if more else 'Bert'}ForMultipleChoice"
    text, options = OPTIONS
    model = transformers.AutoModelForMultipleChoice.from_pretrained(written.folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(written.folder)
    batch = tokenizer([text] * len(options), options, return_tensors="pt", padding=True, truncation=True)
    with torch.inference_mode():
        found = model(**{name: values[None] for name, values in batch.items()}).logits[0].softmax(-1)
    (expected,) = load(run).predict("reply", text, options)
    np.testing.assert_allclose(found, list((expected.probabilities or {}).values()), atol=1e-5)


def test_options_of_a_head_that_pools_the_mean(make_kinds: MakeRun) -> None:
    run = make_kinds("reply")
    model = sentence_transformers.SentenceTransformer(str(export_hugging_face(run, "reply").folder))
    text, options = OPTIONS
    found = model.encode([(text, option) for option in options], convert_to_tensor=True)[:, 0].softmax(-1)
    (expected,) = load(run).predict("reply", text, options)
    np.testing.assert_allclose(found, list((expected.probabilities or {}).values()), atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_tags_are_a_token_classifier(kind: str, make_kinds: MakeRun) -> None:
    shape = f"encoder={{kind: {kind}, layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 128}}"
    run = make_kinds("entities", None, shape)
    written = export_hugging_face(run, "entities")
    names = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra"}
    assert written.opened_by == f"transformers.{names[kind]}ForTokenClassification"
    text = "Ada Lovelace lives near Cambridge with a zymurgist"
    (prediction,) = load(run).predict("entities", text)
    model = transformers.AutoModelForTokenClassification.from_pretrained(written.folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(written.folder)
    batch = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    starts = batch.pop("offset_mapping")[0, :, 0].tolist()
    with torch.inference_mode():
        shares_LC = model(**batch).logits[0].softmax(-1)
    words = [starts.index(start, 1) for start, _ in prediction.words or ()]
    found = [model.config.id2label[int(shares_LC[place].argmax())] for place in words]
    assert repaired(found, "bio") == list(prediction.label)  # type: ignore[arg-type]
    np.testing.assert_allclose(shares_LC[words].amax(-1), prediction.word_probabilities, atol=1e-5)


def test_a_modern_encoder_has_another_class_for_tags(make_kinds: MakeRun) -> None:
    shape = "encoder={kind: modernbert, layers: 3, hidden: 32, heads: 4, ffn: 64, positions: 128, window: 8}"
    with pytest.raises(UserError, match="that the head of task entities does not have; use --format onnx"):
        export_hugging_face(make_kinds("entities", None, shape), "entities")


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_match_is_the_cosine_of_embeddings(pooling: str, make_kinds: MakeRun) -> None:
    run = make_kinds("articles", {"name": "match", "pooling": pooling})
    written = export_hugging_face(run, "articles")
    assert "The prediction is the cosine of the two embeddings." in written.notes
    model = sentence_transformers.SentenceTransformer(str(written.folder))
    one, other = (model.encode(list(column)) for column in zip(*PAIRS, strict=True))
    expected = [float(prediction.label) for prediction in load(run).predict("articles", PAIRS)]  # type: ignore[arg-type]
    np.testing.assert_allclose((one * other).sum(1), expected, atol=1e-5)
    np.testing.assert_allclose(one, load(run).embed([pair[0] for pair in PAIRS], task="articles"), atol=1e-5)


def test_the_classifier_on_two_embeddings_is_left_out(make_kinds: MakeRun) -> None:
    run = make_kinds("pairs", "bi")
    written = export_hugging_face(run, "pairs")
    assert "The classifier on the two embeddings is not part of the folder: it has no place for it." in written.notes
    found = sentence_transformers.SentenceTransformer(str(written.folder)).encode(TEXTS)
    np.testing.assert_allclose(found, load(run).embed(TEXTS, normalize=False, task="pairs"), atol=1e-5)


def test_windows_are_left_out(make_kinds: MakeRun) -> None:
    run = make_kinds("decision", {"name": "linear", "pooling": "pooler"})
    written = export_hugging_face(run, "decision")
    assert "A text of more than 64 tokens is truncated; polytask reads it in windows." in written.notes
    found = logits(written.folder, TEXTS[:3]).softmax(-1)
    torch.testing.assert_close(found, probabilities(run, "decision", TEXTS[:3]), atol=1e-5, rtol=0)


def test_three_texts_have_no_tokenizer(make_kinds: MakeRun) -> None:
    with pytest.raises(UserError, match="task three reads 3 texts, and tokenizers of transformers take at most two"):
        export_hugging_face(make_kinds("three"), "three")


def test_without_a_task_the_encoder_for_embeddings(tiny_run: Finished, tmp_path: Path) -> None:
    written = export_hugging_face(tiny_run.folder, output=tmp_path / "embeddings")
    vectors = sentence_transformers.SentenceTransformer(str(written.folder)).encode(TEXTS)
    np.testing.assert_allclose(vectors, load(tiny_run.folder).embed(TEXTS), atol=1e-5)
    assert written.notes[-1].endswith("--task exports one of: opinion, question, similarity.")


def test_without_a_task_the_adapter_is_left_out(make_run: Any) -> None:
    run = make_run("run", ("adapter={name: pal, size: 12, heads: 3}",))
    written = export_hugging_face(run)
    assert "The adapter pal is not part of the folder, which has the shared encoder only." in written.notes
    vectors = sentence_transformers.SentenceTransformer(str(written.folder)).encode(TEXTS)
    np.testing.assert_allclose(vectors, load(run).embed(TEXTS), atol=1e-5)


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
