"""Outputs of whole splits: equal to one example at a time for every kind of head, and packed once for each data set."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from polytask import model as model_module
from polytask.build import make_model
from polytask.encoders.bert import Bert, BertShape
from polytask.evaluation.evaluate import split_outputs
from polytask.evaluation.packed_splits import PackedSplits
from polytask.model import MultiTaskModel
from polytask.settings import MethodChoice, TaskSpec
from polytask.text.masking import Masker
from polytask.text.packing import Packer
from polytask.types import YES_NO, LabelSpace

SHAPE = BertShape(vocabulary=90, layers=2, hidden=32, heads=4, ffn=64, positions=48)
HEAD_OF = {
    "joined": "cross",
    "separate": "bi",
    "both": "joint",
    "single": "linear",
    "masked": "mlm",
    "copied": "simcse",
}
LABELS = {
    "joined": YES_NO,
    "separate": LabelSpace("score"),
    "both": LabelSpace("score"),
    "single": LabelSpace("classes", ("a", "b", "c")),
    "masked": LabelSpace("text", vocabulary=90),
    "copied": LabelSpace("text", vocabulary=90),
}
PACKER = Packer(tuple(HEAD_OF), 2, 3, 48, Masker(4, 90, (0, 1, 2, 3, 4)))


class Examples:
    """Texts of 0 to 40 random tokens, some of them too long for a sequence."""

    def __init__(self, task: str, count: int = 50, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.texts = [
            tuple(rng.integers(5, 90, size).astype(np.uint16) for size in sizes)
            for sizes in rng.integers(0, 40, (count, num_texts(task)))
        ]
        self.labels = np.zeros(count)

    def __len__(self) -> int:
        return len(self.texts)

    def tokens(self, index: int) -> tuple[np.ndarray, ...]:
        return self.texts[index]


def model_of(adapter: str = "none") -> MultiTaskModel:
    torch.manual_seed(0)
    specs = {
        task: TaskSpec(
            task, labels.kind, ("a", "b")[: num_texts(task)], "label", "", "", head=MethodChoice(HEAD_OF[task])
        )
        for task, labels in LABELS.items()
    }
    model = make_model(specs, LABELS, MethodChoice(adapter), lambda: Bert(SHAPE))
    with torch.no_grad():  # adapters that start as the identity would hide mistakes
        for parameter in model.adapter.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def num_texts(task: str) -> int:
    return 2 if task in ("joined", "separate", "both") else 1


@pytest.mark.parametrize("adapter", ["none", pytest.param("pal", marks=pytest.mark.slow), "prefix"])
@pytest.mark.parametrize("task", HEAD_OF)
def test_outputs_are_those_of_one_example_at_a_time(task: str, adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "TOKENS", 300)
    monkeypatch.setattr(model_module, "BATCHES_PER_COPY", 2)
    model, examples = model_of(adapter), Examples(task)
    outputs = split_outputs(model, {task: examples}, PACKER, packed=PackedSplits())[task]
    # As a batch of its own, with the mask of its index.
    batches = [batch for i in range(len(examples)) for batch in alone(model, task, examples, i)]
    one_by_one = torch.cat([model.answer_batches([task], [batch])[task] for batch in batches])
    torch.testing.assert_close(outputs, one_by_one, atol=1e-5, rtol=0)


def alone(model: MultiTaskModel, task: str, examples: Examples, index: int) -> list[Any]:
    """The batch of a single example: those before it have a batch each too, so that it keeps its index."""
    texts = [examples.tokens(i) for i in range(len(examples))]
    return [b for b in model.batches(task, texts, PACKER, token_budget=1) if b.indices.tolist() == [index]]


@pytest.mark.parametrize("task", HEAD_OF)
def test_no_examples_have_no_outputs(task: str) -> None:
    model = model_of()
    assert len(model.answer(task, [], PACKER)) == 0
    assert len(split_outputs(model, {task: Examples(task, 0)}, PACKER, packed=PackedSplits())[task]) == 0
    assert model.answer("single", [], PACKER).shape == (0, 3)


def test_a_split_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, packed = model_of(), PackedSplits()
    splits: dict[str, Any] = {"joined": Examples("joined"), "masked": Examples("masked")}
    first = split_outputs(model, splits, PACKER, packed=packed)
    monkeypatch.setattr(Packer, "pack", None)
    again = split_outputs(model, splits, PACKER, packed=packed)
    assert all(torch.equal(first[task], again[task]) for task in splits)
    with torch.no_grad():  # the batches are kept, never the outputs
        model.encoder.norm.bias += 1
    assert not torch.equal(split_outputs(model, splits, PACKER, packed=packed)["joined"], first["joined"])


def test_other_data_are_packed_again() -> None:
    model, packed, examples = model_of(), PackedSplits(), Examples("joined")
    shorter = Packer(PACKER.tasks, 2, 3, 20, PACKER.masker)
    for split, packer in (
        (examples, PACKER),
        (Examples("joined", seed=1), PACKER),
        (examples, PACKER),
        (examples, shorter),
    ):
        outputs = split_outputs(model, {"joined": split}, packer, packed=packed)["joined"]
        assert torch.equal(outputs, split_outputs(model, {"joined": split}, packer)["joined"])


def test_an_evaluation_that_is_broken_off_keeps_nothing() -> None:
    model, packed, examples = model_of(), PackedSplits(), Examples("joined")
    next(iter(packed.batches(model, "joined", examples, PACKER)))
    outputs = split_outputs(model, {"joined": examples}, PACKER, packed=packed)["joined"]
    assert len(outputs) == len(examples)


def test_no_more_tokens_are_kept_than_allowed() -> None:
    model, packed = model_of(), PackedSplits(max_tokens=3000)
    splits: dict[str, Any] = {task: Examples(task) for task in ("joined", "separate", "single")}
    first = split_outputs(model, splits, PACKER, packed=packed)
    again = split_outputs(model, splits, PACKER, packed=packed)
    assert all(torch.equal(first[task], again[task]) for task in splits)
    kept = sum(packed_split.tokens for packed_split in packed._kept.values())
    assert 0 < kept <= 3000
    assert len(packed._kept) < len(splits)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("task", ["joined", "separate", "both", "single", "copied"])
def test_a_gpu_is_waited_for_once_however_many_batches(task: str, bf16: bool) -> None:
    model, examples = model_of().cuda(), Examples(task)
    texts = [examples.tokens(i) for i in range(len(examples))]

    def waits(token_budget: int) -> int:
        batches = model.batches(task, texts, PACKER, token_budget=token_budget)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                model.answer_batches([task], batches, bf16)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("called a synchronizing" in str(warning.message) for warning in caught)

    waits(10**6)  # whatever is done only once
    assert waits(100) == waits(10**6) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("adapter", ["none", "pal", "houlsby", "conditional_norm", "lora", "prefix"])
@pytest.mark.parametrize("task", HEAD_OF)
def test_a_gpu_gives_the_outputs_of_the_cpu(task: str, adapter: str) -> None:
    model, examples = model_of(adapter), Examples(task)
    expected = split_outputs(model, {task: examples}, PACKER)[task]
    model.cuda()
    outputs = split_outputs(model, {task: examples}, PACKER)[task]
    torch.testing.assert_close(outputs, expected, atol=1e-3, rtol=1e-3)
    half = split_outputs(model, {task: examples}, PACKER, bf16=True)[task]
    torch.testing.assert_close(half, expected, atol=0.05, rtol=0.05)
