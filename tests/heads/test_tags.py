"""The head for tags of words against transformers' BertForTokenClassification, with several tokens per word."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForTokenClassification

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext
from polytask.encoders.bert import BertShape
from polytask.heads.tags import TagsHead
from polytask.model import MultiTaskModel
from polytask.pretrained.config import config_of
from polytask.pretrained.weights import empty_encoder, hugging_face_name
from polytask.text.packing import Packer, Part
from polytask.text.texts import Texts
from polytask.types import NO_LABEL, LabelSpace

SHAPE = BertShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=50, positions=32, dropout=0.0, attention_dropout=0.0)
CLS, SEP = 2, 3
PACKER = Packer(("t",), CLS, SEP, 24)
LABELS = LabelSpace("tokens", ("O", "B-A", "I-A"), scheme="bio")
TOKENS_OF_WORDS = ((1, 3, 1, 2), (2,), (1, 1, 4))
"""Of the words of three texts."""
TAGS = ((0, 1, 2, NO_LABEL), (1,), (0, NO_LABEL, 1))


@pytest.fixture
def theirs() -> Any:
    torch.manual_seed(5)
    config = BertConfig(**(config_of(SHAPE) | {"id2label": dict(enumerate(LABELS.classes)), "initializer_range": 0.2}))
    return BertForTokenClassification(config)


def with_weights_of(theirs: Any) -> MultiTaskModel:
    encoder = empty_encoder(SHAPE)
    state = theirs.bert.state_dict()
    known = {name: state.get(hugging_face_name(name), value) for name, value in encoder.state_dict().items()}
    encoder.load_state_dict(known)  # transformers has no pooler here, and the head reads none
    context = AdapterContext(("t",), SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn, SHAPE.dropout)
    head = TagsHead("t", LABELS, SHAPE.hidden, dropout=0.0)
    head.output.load_state_dict(theirs.classifier.state_dict())
    return MultiTaskModel(encoder, ADAPTERS["none"](context), {"t": head})


def rows() -> tuple[Part, dict[str, torch.Tensor]]:
    """The texts as a part of a stream, and as transformers takes them: the first token of a word has its label."""
    rng = np.random.default_rng(1)
    ids = [rng.integers(5, 50, sum(counts)) for counts in TOKENS_OF_WORDS]
    is_first = np.concatenate([np.arange(count) == 0 for counts in TOKENS_OF_WORDS for count in counts])
    width = max(map(len, TOKENS_OF_WORDS))
    gold = np.array([[*tags, *[NO_LABEL] * (width - len(tags))] for tags in TAGS])
    part = Part("t", replace(Texts.of([(text,) for text in ids]), words=is_first), labels=gold)
    length = max(map(len, ids)) + 2
    batch = {name: torch.zeros(len(ids), length, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    batch["labels"] = torch.full((len(ids), length), -100)
    for i, (text, counts, tags) in enumerate(zip(ids, TOKENS_OF_WORDS, TAGS, strict=True)):
        batch["input_ids"][i, : len(text) + 2] = torch.tensor([CLS, *text, SEP])
        batch["attention_mask"][i, : len(text) + 2] = 1
        firsts = 1 + np.cumsum([0, *counts[:-1]])
        batch["labels"][i, firsts] = torch.tensor([-100 if tag == NO_LABEL else tag for tag in tags])
    return part, batch


def test_outputs_loss_and_gradients_are_those_of_transformers(theirs: Any) -> None:
    model, (part, batch) = with_weights_of(theirs), rows()
    stream = PACKER.pack([part])
    outputs = model(stream)["t"]
    loss = model.head("t").loss(outputs, stream.labels["t"])
    loss.backward()
    expected = theirs(**batch)
    expected.loss.backward()
    for i, counts in enumerate(TOKENS_OF_WORDS):
        firsts = 1 + np.cumsum([0, *counts[:-1]])
        torch.testing.assert_close(outputs[i, : len(counts), :-1], expected.logits[i, firsts], atol=1e-5, rtol=1e-5)
        assert outputs[i, :, -1].tolist() == [1.0] * len(counts) + [0.0] * (outputs.shape[1] - len(counts))
    torch.testing.assert_close(loss, expected.loss, atol=1e-6, rtol=1e-6)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in model.encoder.named_parameters():
        if parameter.grad is not None:
            expected_grad = gradients[f"bert.{hugging_face_name(name)}"]
            torch.testing.assert_close(parameter.grad, expected_grad, atol=1e-5, rtol=1e-4)
    for name, parameter in model.head("t").output.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[f"classifier.{name}"], atol=1e-5, rtol=1e-4)


def test_decoded_tags_are_the_most_probable_ones_of_each_word(theirs: Any) -> None:
    model, (part, batch) = with_weights_of(theirs), rows()
    with torch.no_grad():
        decoded = model.head("t").decode(model(PACKER.pack([part]))["t"])
        shares = theirs(**batch).logits.softmax(-1)
    for i, (counts, prediction) in enumerate(zip(TOKENS_OF_WORDS, decoded, strict=True)):
        highest = shares[i, 1 + np.cumsum([0, *counts[:-1]])].amax(-1).tolist()
        assert prediction.word_probabilities == pytest.approx(highest, abs=1e-5)
        assert isinstance(prediction.label, tuple)
        assert len(prediction.label) == len(counts)


def test_without_words_every_token_has_an_output(theirs: Any) -> None:
    model, (part, batch) = with_weights_of(theirs), rows()
    with torch.no_grad():
        outputs = model(PACKER.pack([Part("t", list(part.texts))]))["t"]
        expected = theirs(**batch).logits[batch["attention_mask"] > 0]
    torch.testing.assert_close(outputs[:, 0, :-1], expected, atol=1e-5, rtol=1e-5)
    assert (outputs[..., -1] == 1).all()
