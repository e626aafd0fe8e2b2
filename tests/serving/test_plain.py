"""The faster encoder for answering: the model's own numbers, each sequence once, whatever the threads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from polytask import Finished, Predictor, UserError, load
from polytask.build import make_model
from polytask.encoders.bert import Bert, BertShape
from polytask.heads import HEADS
from polytask.machine import multiplies_bf16
from polytask.serving import plain as module
from polytask.serving.plain import PlainEncoder
from polytask.settings import MethodChoice, TaskSpec
from polytask.types import YES_NO, LabelSpace

POOLINGS = ("first", "pooler", "mean")
SPECS = {
    f"{head}_{pooling}": TaskSpec(
        f"{head}_{pooling}",
        "yes_no",
        ("a", "b")[: HEADS[head].texts[-1]],
        "y",
        "",
        "",
        head=MethodChoice(head, {"pooling": pooling}),
    )
    for head in HEADS
    if "yes_no" in HEADS[head].kinds
    for pooling in POOLINGS
}
PAIRS = tuple(name for name, spec in SPECS.items() if spec.is_pair)
SINGLES = tuple(name for name, spec in SPECS.items() if not spec.is_pair)
WORDS = (
    "the",
    "film",
    "was",
    "long",
    "but",
    "not",
    "dull",
    "and",
    "its",
    "music",
    "stays",
    "with",
    "you",
    "for",
    "days",
)


def texts(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 40))) for _ in range(count)]


@pytest.fixture
def predictor(tiny_run: Finished) -> Predictor:
    return made(tiny_run, "none")


def made(tiny_run: Finished, adapter: str, precision: str = "float32", activation: str = "gelu") -> Predictor:
    """Every head that predicts, with every pooling, on an encoder of random weights that are larger than at a start."""
    bundle = load(tiny_run.folder).bundle
    shape = BertShape(2, 32, 4, 64, bundle.tokenizer.vocabulary, 64, activation=activation, initializer_range=0.2)
    labels: dict[str, LabelSpace] = dict.fromkeys(SPECS, YES_NO)
    model = make_model(SPECS, labels, MethodChoice(adapter), lambda: Bert(shape)).eval()
    with torch.no_grad():
        for parameter in model.adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    packer = replace(bundle.packer, tasks=tuple(SPECS), max_length=48)
    return Predictor(replace(bundle, model=model, packer=packer, specs=SPECS, labels=labels), precision)


def outputs(predictor: Predictor, tasks: Sequence[str], examples: list[tuple[str, ...]]) -> dict[str, Tensor]:
    return {task: torch.cat(list(predictor.outputs(task, examples))) for task in tasks}


def own_way(predictor: Predictor, task: str, examples: list[tuple[str, ...]]) -> Tensor:
    """What the model says of these examples one by one."""
    bundle = predictor.bundle
    tokens = [tuple(bundle.tokenizer.encode(example)) for example in examples]
    return torch.cat([bundle.model.answer(task, [one], bundle.packer) for one in tokens])


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("most", "many"), [(1024, 4096), (100, 4096), (100, 0)])
def test_every_head_and_pooling_has_the_models_own_outputs(
    tiny_run: Finished, threads: int, most: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", most)  # few in a batch: rows with and without padding
    monkeypatch.setattr(module, "MANY_TOKENS", many)  # 0: each core has its own batches
    predictor = made(tiny_run, "none")
    pairs = list(zip(texts(15, 1), texts(15, 2), strict=True))
    for tasks, examples in ((SINGLES, [(text,) for text in texts(15)]), (PAIRS, pairs)):
        for task, found in outputs(predictor, tasks, examples).items():
            torch.testing.assert_close(found, own_way(predictor, task, examples), atol=2e-5, rtol=1e-5)
    assert torch.get_num_threads() == threads


def test_another_activation(tiny_run: Finished) -> None:
    predictor = made(tiny_run, "none", activation="gelu_new")
    examples: list[tuple[str, ...]] = [(text,) for text in texts(5)]
    found = outputs(predictor, ["linear_mean"], examples)["linear_mean"]
    torch.testing.assert_close(found, own_way(predictor, "linear_mean", examples), atol=2e-5, rtol=1e-5)


@pytest.mark.skipif(not multiplies_bf16(torch.device("cpu")), reason="this processor has no native bf16")
@pytest.mark.parametrize("adapter", ["none", "lhuc"])
def test_bf16_is_near(tiny_run: Finished, adapter: str) -> None:
    examples: list[tuple[str, ...]] = [(text,) for text in texts(40)]
    torch.manual_seed(0)
    exact = outputs(made(tiny_run, adapter), SINGLES, examples)
    torch.manual_seed(0)
    near = outputs(made(tiny_run, adapter, "bf16"), SINGLES, examples)
    for task in SINGLES:
        assert not torch.equal(near[task], exact[task])
        torch.testing.assert_close(near[task], exact[task], atol=0.03 * exact[task].abs().max().item(), rtol=0)


def test_bf16_only_where_the_processor_has_it(tiny_run: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytask.serving.predictor.multiplies_bf16", lambda device: False)
    with pytest.raises(UserError, match="this processor does not support bf16 natively"):
        load(tiny_run.folder, device="cpu", precision="bf16")
    with pytest.raises(UserError, match="there is no precision 'fp8'"):
        load(tiny_run.folder, precision="fp8")


def test_tasks_that_share_the_encoder_take_one_pass(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    monkeypatch.setattr(
        PlainEncoder,
        "vectors",
        lambda self, sequences, *more, vectors=PlainEncoder.vectors: (
            passes.append(len(sequences)) or vectors(self, sequences, *more)
        ),
    )
    one = texts(20)
    found = predictor.predict_tasks(one)
    assert tuple(found) == SINGLES
    assert passes == [20]
    for task in SINGLES:
        alone = predictor.predict(task, one)
        assert [p.probabilities for p in alone] == [pytest.approx(p.probabilities, abs=1e-5) for p in found[task]]
    passes.clear()
    assert tuple(predictor.predict_tasks("is it?", "is it not?")) == PAIRS
    assert sorted(passes) == [1, 2, 3]  # both texts in one sequence, each in its own, and all of these


def test_tasks_with_their_own_parameters_take_a_pass_each(tiny_run: Finished) -> None:
    predictor = made(tiny_run, "lhuc")
    assert not predictor.bundle.model.is_plain
    assert len(predictor.bundle.model.passes(SINGLES)) == len(SINGLES)
    found = predictor.predict_tasks(texts(4))
    for task in SINGLES:
        assert [p.label for p in found[task]] == [p.label for p in predictor.predict(task, texts(4))]
    assert found["linear_first"] != found["linear_mean"]


def test_the_same_text_is_computed_once(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    encode = PlainEncoder._encode
    monkeypatch.setattr(
        PlainEncoder,
        "_encode",
        lambda self, batch, everywhere: rows.append(len(batch)) or encode(self, batch, everywhere),
    )
    examples = [("one question", other) for other in texts(10)] * 2
    found = outputs(predictor, ["cosine_mean"], list(examples))["cosine_mean"]
    assert sum(rows) == 11
    torch.testing.assert_close(found[:10], found[10:], atol=0, rtol=0)
    torch.testing.assert_close(found, own_way(predictor, "cosine_mean", list(examples)), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("enough", [16, 64, 1024])
def test_batches_have_every_sequence_once_and_similar_lengths(enough: int) -> None:
    lengths_S = np.random.default_rng(0).integers(2, 200, 300)
    batches = list(module._batches(lengths_S, enough))
    assert sorted(np.concatenate(batches)) == list(range(300))
    for batch in batches:
        own = lengths_S[batch]
        assert own.min() >= own.max() / 2
        assert len(own) == 1 or own.sum() <= module.MAX_TOKENS
        assert own.min() == own.max() or own.sum() <= enough
    of_same_length = list(module._batches(np.full(40, 64), enough))
    assert [len(batch) for batch in of_same_length] == [16, 16, 8]


def test_segments_distinguish_equal_ids() -> None:
    torch.manual_seed(0)
    encoder = PlainEncoder(Bert(BertShape(2, 32, 4, 64, 100, 64, initializer_range=0.2)).eval())
    ids = np.array([2, 7, 8, 9, 3])
    first = encoder.vectors([([ids], 2), ([ids], 4)], ["first"]).pool("first")
    assert not torch.allclose(first[0], first[1])
