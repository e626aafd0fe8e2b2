"""Properties of heads, on a tiny encoder and twelve examples."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext
from polytask.contracts.claims import require, require_close, require_finite
from polytask.encoders.bert import Bert, BertShape
from polytask.heads.base import Head
from polytask.methods import find_method
from polytask.model import MultiTaskModel
from polytask.stream import Encoded, Stream
from polytask.text.masking import Masker
from polytask.text.packing import Packer, Part
from polytask.text.texts import Texts
from polytask.types import YES_NO, LabelSpace, Prediction, UserError

Method = Callable[[str, LabelSpace, int], Head]
EXAMPLES = 12
SPACES = {
    "classes": LabelSpace("classes", ("a", "b", "c")),
    "yes_no": YES_NO,
    "score": LabelSpace("score", low=1, high=5),
    "multilabel": LabelSpace("multilabel", ("a", "b", "c"), separator="|", thresholds=(0.5, 0.4, 0.6)),
    "match": LabelSpace("match"),
    "choice": LabelSpace("choice"),
    "tokens": LabelSpace("tokens", ("O", "B-a", "I-a"), scheme="bio"),
    "text": LabelSpace("text", vocabulary=100),
}
OPTIONS = 4
"""The most options of an example; every third example has one less."""
MOST_TEXTS = 3
STANDARDIZED = LabelSpace("score", low=1, high=5, standardized_by=(2.5, 1.0))
WITHOUT_RANGE = LabelSpace("score", low=40, high=52, bounded=False)
PACKER = Packer(("other", "t"), 2, 3, 32, Masker(4, 100, (0, 1, 2, 3, 4)))
SHAPE = BertShape(
    layers=2, hidden=32, heads=4, ffn=64, vocabulary=100, positions=32, dropout=0.0, attention_dropout=0.0
)


@dataclass(frozen=True)
class Subject:
    """A head and the labels that it is tried with."""

    method: Method
    labels: LabelSpace


def subjects(kinds: Iterable[str], method: Method) -> dict[str, Subject]:
    """The head with each kind of label that it supports, and with all forms of scores."""
    named = {f"kind {kind}": Subject(method, SPACES[kind]) for kind in kinds if kind in SPACES}
    if "score" in kinds:
        named["standardized scores"] = Subject(method, STANDARDIZED)
        if not method("t", STANDARDIZED, SHAPE.hidden).needs_range:
            named["scores without a range"] = Subject(method, WITHOUT_RANGE)
    return named


def part_of(head: Head, gold: Any = None, count: int = EXAMPLES) -> Part:
    """Twelve examples, or the first `count` of them, in the head's input format."""
    rng = np.random.default_rng(0)
    width = 1 + OPTIONS if head.reading == "options" else min(head.texts[-1], MOST_TEXTS)
    texts = [tuple(rng.integers(5, 100, rng.integers(1, 12)) for _ in range(width)) for _ in range(EXAMPLES)]
    if head.reading == "options":
        texts = [(*text[:-1], text[-1][: i % 3]) for i, text in enumerate(texts)]
    texts = texts[:count]
    if head.mask_share is not None:
        return Part.masked("t", [PACKER.mask(text, head.mask_share, rng) for (text,) in texts], head.mask_share)
    if head.stride is not None:  # every token is a word
        words = Texts.of(texts)
        return Part("t", replace(words, words=np.ones(len(words.ids), bool)), head.reading, gold)
    return Part("t", [text * head.copies for text in texts], head.reading, gold)


def one_task(subject: Subject) -> tuple[MultiTaskModel, Stream]:
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    head = subject.method("t", subject.labels, SHAPE.hidden)
    context = AdapterContext(("t",), SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn, SHAPE.dropout)
    model = MultiTaskModel(Bert(SHAPE), ADAPTERS["none"](context), {"t": head})
    gold = {
        "classes": rng.integers(0, 3, EXAMPLES),
        "yes_no": rng.integers(0, 2, EXAMPLES).astype(np.float32),
        "score": rng.random(EXAMPLES).astype(np.float32),
        "multilabel": rng.integers(0, 2, (EXAMPLES, 3)).astype(np.float32),
        "match": np.arange(2 * EXAMPLES).reshape(EXAMPLES, 2) // 3,  # some texts occur twice
        "choice": np.stack([rng.integers(0, OPTIONS - 1, EXAMPLES), OPTIONS - (np.arange(EXAMPLES) % 3 == 0)], 1),
        "tokens": rng.integers(0, 3, (EXAMPLES, 12)),
        "text": np.zeros(EXAMPLES, np.int64),
    }[subject.labels.kind]
    return model, Packer(("t",), 2, 3, 32).pack([part_of(head, gold)])


# --- properties -------------------------------------------------------------------------------------------------------
def outputs_have_the_right_shape(subject: Subject) -> None:
    """Outputs are finite and have one row per example: [B, C] for classes and multilabel, [B, W, C + 1] for tags,
    [B, M] for options, else [B]."""
    model, stream = one_task(subject)
    outputs, kind = model(stream)["t"], subject.labels.kind
    require_finite(outputs, "outputs")
    require(len(outputs) == EXAMPLES, f"outputs must have a row per example ({EXAMPLES}), found {len(outputs)}")
    if kind not in ("match", "text"):
        wanted: tuple[int, ...] = (EXAMPLES,)
        if kind in ("classes", "multilabel"):
            wanted = (EXAMPLES, len(subject.labels.classes))
        if kind == "tokens":
            wanted = (EXAMPLES, stream.words["t"].shape[1], len(subject.labels.classes) + 1)
        if kind == "choice":
            wanted = (EXAMPLES, OPTIONS)
        found = tuple(outputs.shape)
        require(found == wanted, f"outputs for kind {kind} must have the shape {wanted}, found {found}")


def loss_falls(subject: Subject) -> None:
    """The loss is a finite scalar, and falls by a fifth within 30 steps on one batch."""
    model, stream = one_task(subject)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    while not losses or losses[-1] >= 0.8 * losses[0]:
        require(len(losses) < 30, f"the loss fell from {losses[:1]} to {losses[-1:]} in 30 steps only")
        optimizer.zero_grad()
        loss = model.head("t").loss(model(stream)["t"], stream.labels["t"])
        require(loss.shape == () and loss.requires_grad, "the loss must be a scalar with a gradient")
        require_finite(loss, "the loss")
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def predictions_are_valid(subject: Subject) -> None:
    """Decoded predictions are labels of the task, with probabilities that sum to 1."""
    model, stream = one_task(subject)
    outputs, head = model(stream)["t"], model.head("t")
    if subject.labels.kind == "text":
        try:
            head.decode(outputs)
        except UserError:
            return
        raise AssertionError("decode must raise a UserError: plain text has no labels")
    predictions = head.decode(outputs)
    if subject.labels.kind == "tokens":
        words = (stream.words["t"] >= 0).sum(1).tolist()
        tags = [prediction.label for prediction in predictions if isinstance(prediction.label, tuple)]
        require([len(own) for own in tags] == words, f"decode must return a tag for each word, found {tags}")
        require({tag for own in tags for tag in own} <= {*subject.labels.classes}, f"unknown tags among {tags}")
        return
    require(len(predictions) == EXAMPLES, f"decode must return {EXAMPLES} predictions, found {len(predictions)}")
    for prediction in predictions:
        _check_prediction(prediction, subject.labels)


def _check_prediction(prediction: Prediction, labels: LabelSpace) -> None:
    label, probabilities = prediction.label, prediction.probabilities
    if labels.kind in ("score", "match"):
        low, high = (labels.low, labels.high) if labels.kind == "score" else (-1.0, 1.0)
        in_range = isinstance(label, float) and (low <= label <= high or not labels.bounded)
        require(in_range, f"a predicted number must be in [{low}, {high}], found {label!r}")
        require(probabilities is None, "scores have no probabilities")
        return
    if labels.kind == "multilabel":
        assert probabilities is not None
        chosen = zip(probabilities.items(), labels.thresholds, strict=True)
        wanted = tuple(name for (name, p), threshold in chosen if p >= threshold)
        require(label == wanted, f"the classes that reach their threshold are {wanted}, found {label!r}")
        return
    if labels.kind == "choice":
        labels = replace(labels, classes=tuple(map(str, range(len(probabilities or ())))))
        require(len(labels.classes) in (OPTIONS - 1, OPTIONS), f"there are 3 or 4 options, found {probabilities}")
        require(str(prediction.index) == label, f"the index must be that of the label, found {prediction.index!r}")
    require(label in labels.classes, f"a predicted label must be one of {labels.classes}, found {label!r}")
    require(probabilities is not None, "predictions of classes must have probabilities")
    assert probabilities is not None
    require(tuple(probabilities) == labels.classes, f"probabilities must be those of {labels.classes}, in this order")
    total = sum(probabilities.values())
    require(abs(total - 1) < 1e-5, f"probabilities must sum to 1, found {total:.6f}")
    require(probabilities[str(label)] == max(probabilities.values()), "the label must be the most probable class")


class OnlyPooled:
    """The pooled vectors of a stream, whether options are given, and nothing else."""

    def __init__(self, encoded: Encoded) -> None:
        self.pool, self.given_options = encoded.pool, encoded.given_options


def it_declares_its_pooling(subject: Subject) -> None:
    """It reads of a sequence what `pooling` says: prediction gives such a head only pooled vectors."""
    model, stream = one_task(subject)
    head, pooler = model.head("t"), list(model.encoder.pooler.parameters())
    outputs = model(stream)["t"]
    gradients = torch.autograd.grad(outputs.float().sum(), pooler, allow_unused=True, retain_graph=True)
    uses = any(gradient is not None for gradient in gradients)
    declared = "uses" if uses else "does not use"
    require(uses == (head.pooling == "pooler"), f"it {declared} the pooler, but declares pooling {head.pooling!r}")
    if head.pooling is not None:
        encoded = Encoded(model.encoder.encode(stream, model.adapter), stream.layout, 0, model.encoder.pool)
        head.eval()
        try:
            found = head(cast("Encoded", OnlyPooled(encoded)))
        except AttributeError as error:
            raise AssertionError(f"it declares pooling {head.pooling!r}, but reads more: {error}") from None
        require_close(found, head(encoded), "it declares its pooling, but reads more", atol=1e-6, rtol=1e-5)


def it_sees_its_own_task_only(subject: Subject) -> None:
    """Sequences of another task in the stream change nothing."""
    model, alone = one_task(subject)
    head = model.head("t")
    heads = {"other": find_method("head", "linear", "here")("other", YES_NO, SHAPE.hidden), "t": head}
    both = MultiTaskModel(model.encoder, model.adapter, heads)
    rng = np.random.default_rng(0)
    other = [(rng.integers(5, 100, 9),) for _ in range(5)]
    mixed = PACKER.pack([part_of(head), Part("other", other)])
    both.eval()
    model.eval()
    require_close(both(mixed)["t"], model(alone)["t"], "its outputs change next to another task", atol=1e-6)
    require(set(both(mixed)) == {"other", "t"}, "outputs of another task are missing")
    require(set(both(PACKER.pack([Part("other", other)]))) == {"other"}, "it has outputs in a step without its task")


def it_reads_each_example_alone(subject: Subject) -> None:
    """The outputs of an example do not depend on the other examples of the batch, so that predictions do not."""
    model, stream = one_task(subject)
    head, count = model.head("t"), EXAMPLES // 3
    model.eval()
    few = model(Packer(("t",), 2, 3, 32).pack([part_of(head, count=count)]))["t"]
    same = tuple(map(slice, few.shape))  # few texts may have fewer words
    message = "its outputs for an example change with the other examples of the batch"
    require_close(few, model(stream)["t"][same], message, atol=1e-5, rtol=1e-4)


def save_and_load(subject: Subject) -> None:
    """A head that loads another's state_dict computes the same."""
    model, stream = one_task(subject)
    model.eval()
    torch.manual_seed(5)
    other = subject.method("t", subject.labels, SHAPE.hidden)
    other.load_state_dict({key: tensor.clone() for key, tensor in model.head("t").state_dict().items()})
    again = MultiTaskModel(model.encoder, model.adapter, {"t": other}).eval()
    require(torch.equal(again(stream)["t"], model(stream)["t"]), "after load_state_dict the outputs differ")


PROPERTIES = (
    outputs_have_the_right_shape,
    loss_falls,
    predictions_are_valid,
    it_declares_its_pooling,
    it_sees_its_own_task_only,
    it_reads_each_example_alone,
    save_and_load,
)
