"""Every head of the table: its loss decreases on one batch, predictions are valid, other kinds of label are refused."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from polytask.adapters import NoAdapter
from polytask.adapters.base import AdapterContext
from polytask.build import make_head
from polytask.encoders.bert import Bert, BertShape
from polytask.heads import HEADS
from polytask.heads.base import Head
from polytask.model import MultiTaskModel
from polytask.settings import MethodChoice, TaskSpec
from polytask.stream import Encoded, Stream
from polytask.text.masking import Masker
from polytask.text.packing import Packer, Part
from polytask.text.texts import Texts
from polytask.types import YES_NO, LabelKind, LabelSpace, UserError

SPACES = {
    "classes": LabelSpace("classes", ("a", "b", "c")),
    "yes_no": YES_NO,
    "score": LabelSpace("score", low=1, high=5),
    "multilabel": LabelSpace("multilabel", ("a", "b", "c"), separator="|", thresholds=(0.5, 0.4, 0.6)),
    "tokens": LabelSpace("tokens", ("O", "B-a", "I-a"), scheme="bio"),
    "text": LabelSpace("text", vocabulary=100),
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "linear": [{"pooling": p} for p in ("first", "pooler", "mean")],
    "cross": [{"pooling": p} for p in ("first", "pooler", "mean")],
    "bi": [{"form": f} for f in ("concat", "difference", "product")] + [{"pooling": "first"}],
    "cosine": [{"map": m} for m in ("linear", "direct", "sigmoid")] + [{"pooling": "pooler"}],
    "joint": [{"map": m} for m in ("linear", "direct", "sigmoid")] + [{"pooling": p} for p in ("first", "pooler")],
    "mlm": [{}, {"share": 0.5}],
    "simcse": [{"pooling": p} for p in ("first", "pooler", "mean")] + [{"temperature": 0.5}],
}
"""Heads that are not named here are tested with their defaults."""
STANDARDIZED = LabelSpace("score", low=1, high=5, standardized_by=(2.5, 1.0))
CASES = [
    (name, options, kind, labels)
    for name in HEADS
    for options in OPTIONS.get(name, [{}])
    for kind in HEADS[name].kinds
    for labels in (SPACES[kind], *([STANDARDIZED] if kind == "score" else []))
]
PACKER = Packer(("other", "t"), 2, 3, 32, Masker(4, 100, (0, 1, 2, 3, 4)))
SHAPE = BertShape(
    layers=2, hidden=32, heads=4, ffn=64, vocabulary=100, positions=32, dropout=0.0, attention_dropout=0.0
)


def part_of(head: Head, gold: Any = None) -> Part:
    """Twelve examples in the head's input format."""
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(5, 100, rng.integers(1, 12)) for _ in range(head.texts[-1])) for _ in range(12)]
    if head.mask_share is not None:
        return Part.masked("t", [PACKER.mask(text, head.mask_share, rng) for (text,) in texts], head.mask_share)
    if head.stride is not None:
        words = Texts.of(texts)
        return Part("t", replace(words, words=np.ones(len(words.ids), bool)), head.reading, gold)
    return Part("t", [text * head.copies for text in texts], head.reading, gold)


def one_task(name: str, options: dict[str, Any], labels: LabelSpace) -> tuple[MultiTaskModel, Stream]:
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    head = HEADS[name]("t", labels, SHAPE.hidden, **options)
    context = AdapterContext(("t",), SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn, SHAPE.dropout)
    model = MultiTaskModel(Bert(SHAPE), NoAdapter(context), {"t": head})
    gold = {
        "classes": rng.integers(0, 3, 12),
        "yes_no": rng.integers(0, 2, 12).astype(np.float32),
        "score": rng.random(12).astype(np.float32),
        "multilabel": rng.integers(0, 2, (12, 3)).astype(np.float32),
        "tokens": rng.integers(0, 3, (12, 12)),
        "text": np.zeros(12, np.int64),
    }[labels.kind]
    return model, Packer(("t",), 2, 3, 32).pack([part_of(head, gold)])


@pytest.mark.parametrize(("name", "options", "kind", "labels"), CASES)
def test_loss_falls_and_predictions_are_valid(
    name: str, options: dict[str, Any], kind: LabelKind, labels: LabelSpace
) -> None:
    model, stream = one_task(name, options, labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    while not losses or losses[-1] >= 0.8 * losses[0]:
        assert len(losses) < 30, losses
        optimizer.zero_grad()
        loss = model.head("t").loss(model(stream)["t"], stream.labels["t"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    outputs = model(stream)["t"]
    assert len(outputs) == 12  # a step counts its examples by this
    if kind == "text":
        with pytest.raises(UserError, match="task t is plain text: it has no labels"):
            model.head("t").decode(outputs)
        return
    if kind == "tokens":
        words = [len(text) for (text,) in part_of(model.head("t")).texts]
        assert outputs.shape == (12, max(words), 4)
        predictions = model.head("t").decode(outputs)
        assert [len(prediction.label) for prediction in predictions] == words  # type: ignore[arg-type]
        assert {tag for prediction in predictions for tag in prediction.label} <= {*labels.classes}  # type: ignore[union-attr]
        return
    assert outputs.shape == ((12, 3) if kind in ("classes", "multilabel") else (12,))
    for prediction in model.head("t").decode(outputs):
        if kind == "score":
            assert isinstance(prediction.label, float)
            assert 1 <= prediction.label <= 5
            assert prediction.probabilities is None
        elif kind == "multilabel":
            assert prediction.probabilities is not None
            chosen = zip(prediction.probabilities.items(), labels.thresholds, strict=True)
            assert prediction.label == tuple(name for (name, p), threshold in chosen if p >= threshold)
        else:
            assert prediction.probabilities is not None
            assert tuple(prediction.probabilities) == labels.classes
            assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)
            assert prediction.probabilities[str(prediction.label)] == max(prediction.probabilities.values())


class OnlyPooled:
    """The pooled vectors of a stream, and nothing else."""

    def __init__(self, encoded: Encoded) -> None:
        self.pool = encoded.pool


@pytest.mark.parametrize(("name", "options"), [(name, o) for name in HEADS for o in OPTIONS.get(name, [{}])])
def test_a_head_declares_its_pooling(name: str, options: dict[str, Any]) -> None:
    """Export includes the pooler only if a head declares it; prediction gives heads that pool only pooled vectors."""
    model, stream = one_task(name, options, SPACES[HEADS[name].kinds[-1]])
    head, pooler = model.head("t"), list(model.encoder.pooler.parameters())
    outputs = model(stream)["t"]
    gradients = torch.autograd.grad(outputs.float().sum(), pooler, allow_unused=True, retain_graph=True)
    assert any(gradient is not None for gradient in gradients) == (head.pooling == "pooler")
    if head.pooling is not None:
        encoded = Encoded(model.encoder.encode(stream, model.adapter), stream.layout, 0, model.encoder.pool)
        head.eval()
        torch.testing.assert_close(head(OnlyPooled(encoded)), head(encoded))


@pytest.mark.parametrize("name", HEADS)
def test_a_head_sees_its_own_task_only(name: str) -> None:
    """Sequences of another task in the stream change nothing."""
    model, alone = one_task(name, {}, SPACES[HEADS[name].kinds[-1]])
    head = model.head("t")
    both = MultiTaskModel(
        model.encoder, model.adapter, {"other": HEADS["linear"]("other", YES_NO, SHAPE.hidden), "t": head}
    )
    rng = np.random.default_rng(0)
    other = [(rng.integers(5, 100, 9),) for _ in range(5)]
    mixed = PACKER.pack([part_of(head), Part("other", other)])
    both.eval()
    model.eval()
    torch.testing.assert_close(both(mixed)["t"], model(alone)["t"], atol=1e-6, rtol=0)
    assert set(both(mixed)) == {"other", "t"}
    assert set(both(PACKER.pack([Part("other", other)]))) == {"other"}


@pytest.mark.parametrize(("name", "kind"), [(n, kind) for n in HEADS for kind in SPACES if kind not in HEADS[n].kinds])
def test_a_head_refuses_kinds_that_are_not_its_own(name: str, kind: LabelKind) -> None:
    spec = TaskSpec("t", kind, ("a", "b")[: HEADS[name].texts[-1]], None, "", "", head=MethodChoice(name))
    with pytest.raises(
        UserError, match=f"tasks.t.head: {name} does not support kind {kind}; choose one of: "
    ) as refused:
        make_head(spec, SPACES[kind], 32)
    suggested(spec, refused.value)


def suggested(spec: TaskSpec, refused: UserError) -> None:
    """The heads that an error suggests are exactly those that are accepted."""
    names = str(refused).rpartition("choose one of: ")[2]
    accepted = []
    for name in HEADS:
        with suppress(UserError):
            make_head(replace(spec, head=MethodChoice(name)), SPACES[spec.kind], 32)
            accepted.append(name)
    assert names == (", ".join(accepted) or "none")


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("texts", [("a",), ("a", "b")])
@pytest.mark.parametrize("name", HEADS)
def test_a_hint_suggests_heads_that_are_accepted(name: str, texts: tuple[str, ...], kind: LabelKind) -> None:
    spec = TaskSpec("t", kind, texts, None, "", "", head=MethodChoice(name))
    try:
        make_head(spec, SPACES[kind], 32)
    except UserError as error:
        suggested(spec, error)
