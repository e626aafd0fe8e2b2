"""The joint head: its formula on the outputs of transformers' BertModel, and a run with a joint head of each kind."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from polytask import (
    Finished,
    Prediction,
    Predictor,
    UserError,
    combine,
    describe_task,
    evaluate_run,
    export_adapter,
    load,
    prepare,
    recipe_from,
    text_maps,
)
from polytask import train as train_recipe
from polytask.adapters import NoAdapter
from polytask.adapters.base import AdapterContext
from polytask.build import make_head
from polytask.encoders.bert import BertShape
from polytask.heads.joint import JointHead
from polytask.model import MultiTaskModel
from polytask.pretrained.config import config_of
from polytask.pretrained.weights import load_encoder
from polytask.settings import MethodChoice, TaskSpec
from polytask.stream import Encoded, Pooling, Stream
from polytask.text.packing import Packer, Part
from polytask.types import YES_NO, LabelSpace

SHAPE = BertShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=60, positions=32, initializer_range=0.2)
CLASSES = LabelSpace("classes", ("a", "b", "c"))
SCORE = LabelSpace("score", low=0, high=5)
STANDARDIZED = LabelSpace("score", low=0, high=5, standardized_by=(3.0, 1.5))
PACKER = Packer(("t",), 2, 3, 16)
RNG = np.random.default_rng(0)
PAIRS = [(RNG.integers(5, 60, a), RNG.integers(5, 60, b)) for a, b in ((4, 7), (1, 2), (12, 3), (9, 9))]
"""The last two are too long for one sequence of 16 tokens."""


def packed() -> Stream:
    return PACKER.pack([Part("t", PAIRS, JointHead.reading)])


@pytest.fixture
def theirs() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(**config_of(SHAPE), attn_implementation="eager")).eval()


def pooled(theirs: BertModel, pooling: Pooling, width: int) -> Tensor:
    """[3, B, D]: transformers' vectors of `[CLS] a [SEP] b [SEP]`, `[CLS] a [SEP]` and `[CLS] b [SEP]`, padded."""
    rows = []
    for a, b in PAIRS:
        a, b = a.tolist(), b.tolist()
        cut_a, cut_b = a, b
        while len(cut_a) + len(cut_b) > width - 3:  # the longer text first, on a tie the first one
            cut_a, cut_b = (cut_a[:-1], cut_b) if len(cut_a) >= len(cut_b) else (cut_a, cut_b[:-1])
        rows.append(([2, *cut_a, 3, *cut_b, 3], len(cut_a) + 2))
        rows += [([2, *text, 3], len(text) + 2) for text in (a, b)]
    batch = {name: torch.zeros(len(rows), width, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    batch["token_type_ids"] = torch.zeros(len(rows), width, dtype=torch.long)
    for at, (ids, second) in enumerate(rows):
        batch["input_ids"][at, : len(ids)] = torch.tensor(ids)
        batch["attention_mask"][at, : len(ids)] = 1
        batch["token_type_ids"][at, second : len(ids)] = 1
    outputs = theirs(**batch)
    if pooling == "pooler":
        vectors = outputs.pooler_output
    elif pooling == "first":
        vectors = outputs.last_hidden_state[:, 0]
    else:
        mask = batch["attention_mask"][..., None]
        vectors = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1)
    return vectors.view(len(PAIRS), 3, -1).transpose(0, 1)


def model_of(theirs: BertModel, folder: Path, labels: LabelSpace, **options: Any) -> MultiTaskModel:
    theirs.save_pretrained(folder)
    context = AdapterContext(("t",), SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn, 0.0)
    head = JointHead("t", labels, SHAPE.hidden, **options)
    with torch.no_grad():  # a head as it starts would hide mistakes
        for parameter in head.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return MultiTaskModel(load_encoder(folder), NoAdapter(context), {"t": head}).eval()


def formula(head: JointHead, p: Tensor, u: Tensor, v: Tensor) -> Tensor:
    weight, bias = head.output.weight, head.output.bias
    if head.labels.kind == "classes":
        return torch.cat([p, (u - v).abs(), u * v], 1) @ weight.T + bias
    cross = (p @ weight.T + bias)[:, 0]
    cos = (u * v).sum(1) / (u.norm(dim=1) * v.norm(dim=1))
    if head.labels.kind == "yes_no":
        return cross + head.scale * cos + head.shift
    if head.labels.standardized_by is not None:
        cross = (3.0 + 1.5 * cross) / 5
    g = 1 / (1 + (-head.gate).exp())
    mapped = {"linear": (1 + cos) / 2, "direct": cos, "sigmoid": 1 / (1 + (-cos).exp())}[head.map]
    return (1 - g) * cross + g * mapped


@pytest.mark.parametrize("pooling", ["first", "pooler", "mean"])
@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (CLASSES, {}),
        (YES_NO, {}),
        (SCORE, {}),
        (SCORE, {"map": "linear"}),
        (STANDARDIZED, {"map": "sigmoid"}),
    ],
)
def test_outputs_and_gradients_are_those_of_the_formula(
    theirs: BertModel, tmp_path: Path, labels: LabelSpace, options: dict[str, str], pooling: Pooling
) -> None:
    model = model_of(theirs, tmp_path, labels, pooling=pooling, **options)
    outputs = model(packed())["t"]
    expected = formula(model.head("t"), *pooled(theirs, pooling, 16))  # type: ignore[arg-type]
    torch.testing.assert_close(outputs, expected, atol=2e-5, rtol=1e-5)
    outputs.square().sum().backward()
    own = {name: parameter.grad for name, parameter in model.head("t").named_parameters()}
    assert all(gradient is not None and gradient.any() for gradient in own.values())
    model.head("t").zero_grad()
    expected.square().sum().backward()
    for name, parameter in model.head("t").named_parameters():
        torch.testing.assert_close(own[name], parameter.grad, atol=1e-4, rtol=1e-4)
    words = theirs.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(model.encoder.words.weight.grad, words, atol=1e-4, rtol=1e-4)


def test_sequences_are_the_pair_the_first_text_and_the_second_text() -> None:
    stream = PACKER.pack([Part("t", [(np.array([7, 8]), np.array([9]))], JointHead.reading)])
    assert stream.token_ids_T.tolist() == [2, 7, 8, 3, 9, 3, 2, 7, 8, 3, 2, 9, 3]
    assert stream.segment_ids_T.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert stream.layout.lengths == (6, 4, 3)


@pytest.mark.parametrize("labels", [CLASSES, YES_NO, SCORE, STANDARDIZED], ids=lambda labels: labels.kind)
def test_gradients_reach_every_sequence(theirs: BertModel, tmp_path: Path, labels: LabelSpace) -> None:
    model, stream = model_of(theirs, tmp_path, labels), packed()
    words_TD = model.embed_words(stream).detach().requires_grad_()
    model(stream, words_TD)["t"].square().sum().backward()
    assert words_TD.grad is not None
    assert all(gradient.any() for gradient in words_TD.grad.split(stream.layout.lengths))


@pytest.mark.parametrize("labels", [CLASSES, YES_NO, SCORE], ids=lambda labels: labels.kind)
def test_a_captured_step_has_the_same_outputs(theirs: BertModel, tmp_path: Path, labels: LabelSpace) -> None:
    """With filler behind the pairs, and without reading the lengths of the sequences."""
    model = model_of(theirs, tmp_path, labels)
    static = PACKER.pack([Part("t", PAIRS, JointHead.reading)], static_shape=True)
    outputs = model.head("t")(Encoded(model.encode(static), static.layout.for_capture(), 0, model.encoder.pool))
    torch.testing.assert_close(outputs, model(packed())["t"], atol=1e-6, rtol=1e-5)


def test_a_joint_head_starts_as_the_mean_of_its_readings() -> None:
    """The gate of scores starts in the middle; the logit of a cosine of 0.75 starts at 0."""
    score, yes_no = JointHead("t", SCORE, 4), JointHead("t", YES_NO, 4)
    assert score.gate.sigmoid().item() == 0.5
    assert (yes_no.scale * 0.75 + yes_no.shift).item() == 0


def test_one_text_is_refused() -> None:
    spec = TaskSpec("t", "yes_no", ("a",), None, "", "", head=MethodChoice("joint"))
    with pytest.raises(UserError, match=r"tasks\.t\.head: joint .*choose one of: linear"):
        make_head(spec, YES_NO, 8)


# --- a whole run ------------------------------------------------------------------------------------------------------
SAMPLE = Path(__file__).parents[2] / "src" / "polytask" / "tasks" / "sample"
PAIR = {"text": ["question1", "question2"], "train": "sample:questions-train", "dev": "sample:questions-dev"}
TASKS: dict[str, dict[str, Any]] = {
    "question": {"kind": "yes_no", "label": "duplicate", **PAIR},
    "relation": {"kind": "classes", "classes": ["no", "yes"], "label": "duplicate", **PAIR},
    "similarity": {
        "kind": "score",
        "range": [0, 5],
        "text": ["sentence1", "sentence2"],
        "label": "similarity",
        "train": "sample:similarity-train",
        "dev": "sample:similarity-dev",
    },
}


def train(folder: Path, tasks: list[str], settings: list[str]) -> Finished:
    given = {name: {**TASKS[name], "head": "joint"} for name in tasks}
    return train_recipe(recipe_from({"tasks": given, "max_length": 32}, settings, folder=folder), folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Finished:
    """Adapters, regularizers and a policy of per-task gradients included."""
    methods = ["adapter=lora", "regularizers=[smart, r_drop, in_batch_negatives]", "policy=pcgrad", "sampler=mixed"]
    short = ["train.steps_per_epoch=2", "train.batch_size=8"]
    return train(tmp_path_factory.mktemp("joint"), list(TASKS), [*tiny_settings, *methods, *short])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_learns(tmp_path: Path, tiny_settings: list[str]) -> None:
    finished = train(tmp_path, ["similarity"], [*tiny_settings, "train.steps_per_epoch=30"])
    losses = [line["losses"]["similarity"] for line in lines(finished.folder / "metrics.jsonl") if "losses" in line]
    assert len(losses) == 60
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) / 4
    assert finished.evaluations["dev"].tasks["similarity"].value > 0.2
    gate = load(finished.folder, "cpu").bundle.model.head("similarity").get_parameter("gate")
    assert gate.item() != 0


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_model_predicts_what_was_evaluated(run: Finished, task: str) -> None:
    loaded = load(run.folder, "cpu")
    written = lines(run.folder / "predictions" / f"{task}-dev.jsonl")
    assert written
    for line, prediction in zip(written, predictions(loaded, task), strict=True):
        if task == "similarity":
            assert prediction.label == pytest.approx(line["prediction"], abs=1e-4)
        else:
            assert prediction.label == line["prediction"]
    again = evaluate_run(run.folder).tasks[task].metrics
    assert again == run.evaluations["dev"].tasks[task].metrics


def predictions(predictor: Predictor, task: str) -> list[Prediction]:
    file = SAMPLE / f"{TASKS[task]['dev'].removeprefix('sample:')}.csv"
    with file.open(encoding="utf-8") as rows:
        first, second = TASKS[task]["text"]
        return predictor.predict(task, [(row[first], row[second]) for row in csv.DictReader(rows)])


def test_an_exported_task_predicts_the_same(run: Finished, tmp_path: Path) -> None:
    file = export_adapter(run.folder, "similarity", tmp_path / "similarity.safetensors")
    combined = load(combine(run.folder, [file], tmp_path / "model"), "cpu")
    assert predictions(combined, "similarity") == predictions(load(run.folder, "cpu"), "similarity")


def test_the_data_are_checked_as_those_of_a_cross_head(tmp_path: Path) -> None:
    """Its longest sequence is that of both texts: it is truncated where that of a cross head is."""

    def described(head: str) -> tuple[Any, Any]:
        encoder = {"layers": 1, "hidden": 8, "heads": 2, "ffn": 8, "positions": 32}
        tasks = {"similarity": {**TASKS["similarity"], "head": head}}
        prepared = prepare(recipe_from({"tasks": tasks, "max_length": 24, "encoder": encoder}, folder=tmp_path))
        return prepared.findings(), describe_task(prepared.tasks["similarity"], prepared)

    assert described("joint") == described("cross") != described("cosine")


def test_heat_maps_are_those_of_three_sequences(run: Finished) -> None:
    pair, first, second = text_maps(run.folder, "a film", "the film was long", "similarity")
    assert len(pair.tokens) == len(first.tokens) + len(second.tokens) - 1
