"""Explanations by gradients: the values add up to a difference of predictions, and the model stays as it is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from polytask import Finished, Predictor, UserError, load
from polytask.serving.explanation import Method
from polytask.serving.gradients import label_value, pack, places_as_ids, token_effects, word_effects
from polytask.text.texts import Texts

PAIR = ("A man is cycling.", "Someone rides a bicycle.")
TEXTS = {
    "opinion": ("The 😀 battery died; don't buy it.",),
    "topics": ("The 😀 battery died; don't buy it.",),
    "size": ("How large is it?",),
    "decision": ("A long text is read in windows. " * 12,),
    **dict.fromkeys(("question", "similarity", "articles", "alike"), PAIR),
    "evidence": (*PAIR, "So it is."),
    "reply": ("Is it open?", "Yes, it is.", "No.", "Maybe tomorrow."),
}


@pytest.fixture(scope="module")
def mixed(make_mixed_run: Any) -> Predictor:
    """All kinds of tasks, with an adapter."""
    return load(make_mixed_run("{name: houlsby, size: 4}").folder, device="cpu")


def tokens_of(predictor: Predictor, task: str) -> Texts:
    return predictor.forward.encode((task,), [TEXTS[task]])[0]


@pytest.mark.parametrize("task", list(TEXTS))
def test_integrated_gradients_add_up_to_the_difference_from_padding(mixed: Predictor, task: str) -> None:
    bundle, tokens = mixed.bundle, tokens_of(mixed, task)
    value = label_value(bundle.labels[task], bundle.temperatures.get(task, 1.0), label=0)
    effects = token_effects(bundle, task, tokens, value)
    assert len(effects) == len(tokens.ids)
    stream, _ = pack(bundle, task, tokens, 1)
    places_T = pack(bundle, task, places_as_ids(tokens), 1)[0].token_ids_T
    assert {-1 - place for place in places_T.tolist() if place < 0} == set(range(len(tokens.ids)))
    padding = replace(stream, token_ids_T=torch.where(places_T < 0, bundle.tokenizer.pad_id, stream.token_ids_T))
    with torch.inference_mode():
        difference = float(value(bundle.model(stream)[task]) - value(bundle.model(padding)[task]))
    assert effects.sum() == pytest.approx(difference, abs=2e-4 + 0.01 * abs(difference))


def test_words_and_their_places(tiny_run: Finished) -> None:
    method: Method = "integrated_gradients"
    model = load(tiny_run.folder)
    (text,) = TEXTS["opinion"]
    found = model.explain(text, task="opinion", method=method)
    (whole,) = model.predict("opinion", text)
    assert (found.method, found.label) == (method, whole.label)
    assert [word.word for word in found.words] == ["The", "😀", "battery", "died", ";", "don't", "buy", "it", "."]
    assert all(text[word.start : word.end] == word.word for word in found.words)
    assert any(word.value != 0 for word in found.words)
    pair = model.explain(*PAIR, task="question", label="no", method=method)
    yes = model.explain(*PAIR, task="question", label="yes", method=method)
    assert {word.text for word in pair.words} == {0, 1}
    # The probability of no is 1 - that of yes.
    np.testing.assert_allclose([w.value for w in pair.words], [-w.value for w in yes.words], atol=1e-6)


def test_tags_of_words(mixed: Predictor) -> None:
    text = "Ada Lovelace lived in London."
    found = mixed.explain(text, task="entities", word="London", method="integrated_gradients")
    by_occlusion = mixed.explain(text, task="entities", word="London")
    assert found.label == by_occlusion.label
    assert [word.word for word in found.words] == ["Ada", "Lovelace", "lived", "in", "London", "."]
    long = mixed.explain("word " * 300 + "London", task="entities", word=300, method="integrated_gradients")
    values = np.array([word.value for word in long.words])
    assert np.isfinite(values).all()
    assert values[:200].tolist() == [0] * 200  # in windows that do not have the word
    assert values[-1] != 0


def test_options(mixed: Predictor) -> None:
    text, *options = TEXTS["reply"]
    found = mixed.explain(text, options, task="reply", label="No.", method="integrated_gradients")
    assert found.label == "No."
    assert [word.word for word in found.words if word.text == 2] == ["No", "."]
    assert {word.text for word in found.words} == {0, 1, 2, 3}


def test_what_is_cut_off_has_no_effect(tiny_run: Finished) -> None:
    found = load(tiny_run.folder).explain("good " * 100, task="opinion", method="integrated_gradients")
    values = [word.value for word in found.words]
    assert all(values[:62])
    assert not any(values[62:])


def test_the_model_stays_as_it_is(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    before = model.predict("opinion", "fine")
    with torch.inference_mode():
        model.explain("fine", task="opinion", method="integrated_gradients")  # also where gradients are switched off
    network = model.bundle.model
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not network.training
    assert model.predict("opinion", "fine") == before


def test_unknown_methods_are_refused(tiny_run: Finished) -> None:
    with pytest.raises(UserError, match="did you mean integrated_gradients"):
        load(tiny_run.folder).explain("fine", task="opinion", method="integrated_gradient")  # type: ignore[arg-type]


def test_tokens_are_summed_into_words() -> None:
    found = word_effects(["ab cde!"], [np.array([0, 1, 3, 6])], np.array([1.0, 2.0, 4.0, 8.0]))
    assert [(word.word, word.value) for word in found] == [("ab", 3), ("cde", 4), ("!", 8)]
