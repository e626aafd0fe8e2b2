"""The head for options against transformers' BertForMultipleChoice, and its missing options."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMultipleChoice

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext
from polytask.encoders.bert import BertShape
from polytask.heads.choice import ChoiceHead
from polytask.kinds.choice import MISSING
from polytask.model import MultiTaskModel
from polytask.pretrained.weights import empty_encoder, hugging_face_name
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.types import LabelSpace

SHAPE = BertShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=50, positions=32, dropout=0.0, attention_dropout=0.0)
PACKER = Packer(("t",), 2, 3, 24)


@pytest.fixture
def theirs() -> Any:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    return BertForMultipleChoice(config)


def with_weights_of(theirs: Any) -> MultiTaskModel:
    encoder = empty_encoder(SHAPE)
    state = theirs.bert.state_dict()
    encoder.load_state_dict({name: state[hugging_face_name(name)] for name in encoder.state_dict()})
    context = AdapterContext(("t",), SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn, SHAPE.dropout)
    head = ChoiceHead("t", LabelSpace("choice"), SHAPE.hidden, pooling="pooler", dropout=0.0)
    model = MultiTaskModel(encoder, ADAPTERS["none"](context), {"t": head})
    head.output.load_state_dict(theirs.classifier.state_dict())
    return model


def rows(*counts: int, most: int) -> Part:
    """Examples with these numbers of options."""
    rng = np.random.default_rng(1)
    nothing = np.zeros(0, np.int64)
    texts = [
        tuple(rng.integers(5, 50, rng.integers(1, 14)) if m <= count else nothing for m in range(most + 1))
        for count in counts
    ]
    gold = np.array([[rng.integers(count), count] for count in counts])
    return Part("t", texts, "options", gold)


def padded(stream: Stream, options: int) -> dict[str, torch.Tensor]:
    """The sequences of a stream as [examples, options, length], as transformers takes them."""
    bounds = stream.layout.cu_seqlens_S1.tolist()
    parts = {"input_ids": stream.token_ids_T, "token_type_ids": stream.segment_ids_T}
    parts["attention_mask"] = torch.ones_like(stream.token_ids_T)
    return {
        name: torch.nn.utils.rnn.pad_sequence([values_T[a:b] for a, b in pairwise(bounds)], batch_first=True).unflatten(
            0, (-1, options)
        )
        for name, values_T in parts.items()
    }


def test_loss_and_gradients_are_those_of_transformers(theirs: Any) -> None:
    model, part = with_weights_of(theirs), rows(4, 4, 4, 4, 4, most=4)
    stream = PACKER.pack([part])
    outputs = model(stream)["t"]
    loss = model.head("t").loss(outputs, stream.labels["t"])
    loss.backward()
    expected = theirs(**padded(stream, 4), labels=stream.labels["t"][:, 0])
    expected.loss.backward()
    torch.testing.assert_close(outputs, expected.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, expected.loss, atol=1e-6, rtol=1e-6)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in model.encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[f"bert.{hugging_face_name(name)}"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.head("t").output.weight.grad, gradients["classifier.weight"], atol=1e-5, rtol=1e-4)


def test_missing_options_change_nothing(theirs: Any) -> None:
    model = with_weights_of(theirs)
    together = model(PACKER.pack([rows(2, 4, 3, most=4)]))["t"]
    wide = rows(2, 4, 3, most=4)
    for i, count in enumerate((2, 4, 3)):
        assert isinstance(wide.texts, list)
        one = Part("t", [wide.texts[i][: count + 1]], "options", np.array([[0, count]]))
        alone = model(PACKER.pack([one]))["t"]
        assert alone.shape == (1, count)
        torch.testing.assert_close(together[i, :count], alone[0], atol=1e-6, rtol=1e-6)
        assert together[i, count:].tolist() == [MISSING] * (4 - count)
    shares = together.softmax(-1)
    assert (shares[together == MISSING] == 0).all()


def test_missing_options_have_no_gradient(theirs: Any) -> None:
    model = with_weights_of(theirs)
    wide, narrow = rows(2, 2, most=5), rows(2, 2, most=5)
    assert isinstance(narrow.texts, list)
    narrow = Part("t", [text[:3] for text in narrow.texts], "options", narrow.labels)
    found = []
    for part in (wide, narrow):
        model.zero_grad()
        stream = PACKER.pack([part])
        model.head("t").loss(model(stream)["t"], stream.labels["t"]).backward()
        found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_decoded_options_get_their_texts(theirs: Any) -> None:
    head = with_weights_of(theirs).head("t")
    one, other = head.decode(torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, MISSING]]))
    assert (one.label, one.index) == ("1", 1)
    named = other.with_options(["yes", "no"])
    assert (named.label, named.index) == ("yes", 0)
    assert list(named.probabilities or {}) == ["yes", "no"]
    assert sum((named.probabilities or {}).values()) == pytest.approx(1)
