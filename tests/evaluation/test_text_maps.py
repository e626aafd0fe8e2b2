"""Attention and hidden states of one text: those of transformers, and those of adapters and word tags."""

from pathlib import Path

import numpy as np
import pytest
import torch

from polytask.build import make_model
from polytask.encoders.bert import Bert, BertShape
from polytask.evaluation.text_maps import TextMaps, text_maps
from polytask.pretrained.weights import load_encoder
from polytask.settings import MethodChoice, TaskSpec
from polytask.text.packing import Packer
from polytask.text.texts import Texts
from polytask.text.tokenizer import TextTokenizer
from polytask.types import YES_NO

TEXTS = ("The plot is thin, but nobody minded!", "Untranslatable jokes.")
SHAPE = BertShape(layers=3, hidden=32, heads=4, ffn=48, vocabulary=60, positions=32)
IDS = Texts.of([(np.arange(7, 12), np.arange(20, 23))])


def small_maps(adapter: MethodChoice | str, head: str = "cross", tags: int | None = None) -> tuple[TextMaps, ...]:
    choice = adapter if isinstance(adapter, MethodChoice) else MethodChoice(adapter)
    spec = TaskSpec("two", "yes_no", ("a", "b"), "label", "", "", head=MethodChoice(head))
    model = make_model({"two": spec}, {"two": YES_NO}, choice, lambda: Bert(SHAPE), tags=tags)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.adapter.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        if model.word_tags is not None:
            model.word_tags.weight[1:] += 0.1
            model.word_tags.weight[1, ::2] -= 0.3
    texts = IDS if tags is None else Texts(IDS.ids, IDS.starts_NW, IDS.lengths_NW, np.arange(8) % 3)
    packer = Packer(("two",), 2, 3, 16, tagged=tags is not None)
    maps = text_maps(model.train(), "two", texts, packer, str)
    assert model.training
    return maps


@pytest.mark.parametrize("pair", [False, True])
def test_the_arrays_are_those_of_transformers(minilm: Path, pair: bool) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = TextTokenizer.load(minilm)
    texts = TEXTS if pair else TEXTS[:1]
    spec = TaskSpec("t", "yes_no", texts, "label", "", "")
    model = make_model({"t": spec}, {"t": YES_NO}, MethodChoice("none"), lambda: load_encoder(minilm))
    packer = Packer(("t",), tokenizer.cls_id, tokenizer.sep_id, 64)
    ids = Texts.of([tuple(tokenizer.encode(list(texts)))])
    (maps,) = text_maps(model, "t", ids, packer, tokenizer.token)

    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    encoded = transformers.AutoTokenizer.from_pretrained(minilm)(*texts, return_tensors="pt")
    with torch.no_grad():
        out = theirs(**encoded, output_attentions=True, output_hidden_states=True)
    assert maps.tokens == maps.sources
    assert maps.tokens[:4] == ("[CLS]", "the", "plot", "is")
    np.testing.assert_allclose(maps.attention, torch.cat(out.attentions).numpy(), atol=2e-6)
    np.testing.assert_allclose(maps.hidden_states, torch.cat(out.hidden_states).numpy(), atol=2e-5)
    np.testing.assert_allclose(maps.activations, torch.cat(out.hidden_states).norm(dim=-1).numpy(), rtol=1e-5)


def test_a_head_that_reads_texts_separately_has_two_sequences() -> None:
    first, second = small_maps("none", "cosine")
    assert first.tokens == ("2", "7", "8", "9", "10", "11", "3")
    assert second.tokens == ("2", "20", "21", "22", "3")
    for maps in (first, second):
        size = len(maps.tokens)
        assert maps.attention.shape == (3, 4, size, size)
        assert maps.hidden_states.shape == (4, size, 32)
        np.testing.assert_allclose(maps.attention.sum(-1), 1, rtol=1e-5)


def test_a_joint_head_has_the_sequences_of_both_readings() -> None:
    both = small_maps("none", "joint")
    expected = (*small_maps("none", "cross"), *small_maps("none", "cosine"))
    assert [maps.tokens for maps in both] == [maps.tokens for maps in expected]
    for maps in both:
        np.testing.assert_allclose(maps.attention.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("adapter", ["lora", "houlsby", "conditional_norm", "own_encoder"])
def test_adapters_are_part_of_it(adapter: str) -> None:
    ((plain,), (changed,)) = small_maps("none"), small_maps(adapter)
    assert plain.attention.shape == changed.attention.shape
    assert not np.allclose(plain.attention[-1], changed.attention[-1], atol=1e-4)


def test_a_prefix_is_further_columns() -> None:
    (maps,) = small_maps(MethodChoice("prefix", {"length": 2, "layers": 2}))
    size = len(maps.tokens)
    assert maps.attention.shape == (3, 4, size, size + 2)
    assert maps.sources == ("prefix 1", "prefix 2", *maps.tokens)
    assert not maps.attention[0, :, :, :2].any()  # this layer has no prefix
    assert (maps.attention[1:, :, :, :2] > 0).all()
    np.testing.assert_allclose(maps.attention.sum(-1), 1, rtol=1e-5)


def test_word_tags_are_part_of_it() -> None:
    ((plain,), (tagged,)) = small_maps("none"), small_maps("none", tags=2)
    assert not np.allclose(plain.hidden_states[0], tagged.hidden_states[0], atol=1e-4)
    np.testing.assert_allclose(plain.hidden_states[0][[0, 6]], tagged.hidden_states[0][[0, 6]], atol=1e-6)
