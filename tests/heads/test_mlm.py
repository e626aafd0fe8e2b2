"""The masked language model against transformers', and its edge cases."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from polytask.adapters import NoAdapter
from polytask.adapters.base import AdapterContext
from polytask.encoders.bert import Bert, BertShape
from polytask.heads.mlm import MlmHead
from polytask.model import MultiTaskModel
from polytask.pretrained.weights import load_encoder, load_tensors
from polytask.stream import Stream
from polytask.text.masking import Masker
from polytask.text.packing import Packer, Part
from polytask.types import LabelSpace

SHAPE = BertShape(layers=2, hidden=32, heads=4, ffn=64, vocabulary=90, positions=32)
TEXT = LabelSpace("text", vocabulary=90)
PACKER = Packer(("t",), cls_id=2, sep_id=3, max_length=32, masker=Masker(4, 90, (0, 1, 2, 3, 4)))
TEXTS = [np.random.default_rng(n).integers(5, 90, length) for n, length in enumerate((7, 20, 1, 12, 28))]


def model_of(encoder: Bert, labels: LabelSpace = TEXT) -> MultiTaskModel:
    context = AdapterContext(("t",), SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn, SHAPE.dropout)
    return MultiTaskModel(encoder, NoAdapter(context), {"t": MlmHead("t", labels, SHAPE.hidden)})


def masked_stream(texts: list[np.ndarray] = TEXTS) -> Stream:
    return PACKER.pack([Part.masked("t", [PACKER.mask(t, 0.3, np.random.default_rng(9)) for t in texts], 0.3)])


@pytest.fixture(params=[1e-12, 1e-2])
def theirs(request: pytest.FixtureRequest) -> BertForMaskedLM:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=90,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
        layer_norm_eps=request.param,
    )
    model = BertForMaskedLM(config)
    with torch.no_grad():  # norms and biases that start at 1 and 0 would hide mistakes
        for parameter in model.cls.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def test_loss_and_gradients_are_those_of_transformers(theirs: BertForMaskedLM, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    model = model_of(load_encoder(tmp_path)).eval()
    model.head("t").load_state_dict(load_tensors(tmp_path, MlmHead.pretrained[0]))
    stream = masked_stream()
    rows = stream.token_ids_T.split(stream.layout.lengths)
    labels_T = torch.full_like(stream.token_ids_T, -100)
    labels_T[stream.labels["t"][0]] = stream.labels["t"][1]
    labels = labels_T.split(stream.layout.lengths)
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    wanted = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    expected = theirs(input_ids=padded, attention_mask=mask, labels=wanted)
    outputs = model(stream)["t"]
    loss = model.head("t").loss(outputs, stream.labels["t"])
    assert loss.item() == pytest.approx(expected.loss.item(), abs=1e-5)
    for text, (logits, asked) in enumerate(zip(expected.logits, wanted, strict=True)):
        alone = torch.nn.functional.cross_entropy(logits, asked, reduction="sum")
        assert outputs[text].tolist() == pytest.approx([alone.item(), (asked >= 0).sum().item()], abs=1e-4)
    # The word embeddings get gradients from both ends: as input, and as the tied decoder.
    loss.backward()
    expected.loss.backward()
    theirs_grad = theirs.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(model.encoder.words.weight.grad, theirs_grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        model.heads["t"].dense.weight.grad, theirs.cls.predictions.transform.dense.weight.grad, atol=1e-5, rtol=1e-4
    )


def test_a_text_with_nothing_to_guess_costs_nothing() -> None:
    torch.manual_seed(0)
    model = model_of(Bert(SHAPE)).eval()
    unknown = np.array([1, 1, 1])
    outputs = model(masked_stream([TEXTS[0], unknown, TEXTS[3]]))["t"]
    alone = model(masked_stream([TEXTS[0], TEXTS[3]]))["t"]
    torch.testing.assert_close(outputs[[0, 2]], alone, atol=1e-5, rtol=0)
    assert outputs[1].tolist() == [0, 0]
    nothing = masked_stream([unknown])
    loss = model.head("t").loss(model(nothing)["t"], nothing.labels["t"])
    loss.backward()
    assert loss.item() == 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_words_beyond_the_tokenizers_are_never_guessed() -> None:
    """Some encoders have more embedding rows than tokens."""
    torch.manual_seed(0)
    encoder = Bert(SHAPE)
    few = model_of(encoder, LabelSpace("text", vocabulary=80)).eval()
    texts = [np.minimum(text, 79) for text in TEXTS]
    before = few(masked_stream(texts))["t"]
    with torch.no_grad():
        encoder.words.weight[80:] += 100
    torch.testing.assert_close(few(masked_stream(texts))["t"], before)


def test_evaluation_masks_the_same_tokens_whatever_the_batches() -> None:
    torch.manual_seed(0)
    model = model_of(Bert(SHAPE))
    texts = [(text,) for text in TEXTS]
    one, many, again = (model.answer("t", texts, PACKER, token_budget=budget) for budget in (4096, 20, 4096))
    torch.testing.assert_close(one, many, atol=1e-5, rtol=0)
    assert torch.equal(one, again)
    assert one[:, 1].tolist() == [max(1, round(0.15 * len(text))) for text in TEXTS]
