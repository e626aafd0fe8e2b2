"""Explanations: a word's value is the change of the probability without it, and the text is shown safely."""

import re
from pathlib import Path

import pytest

from polytask import Classes, Explanation, Finished, Prediction, UserError, fit, load
from polytask.serving.explanation import explain

TEXT = "The <b>battery</b> died; don't buy it."


def test_values_are_differences_of_predictions(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    found = model.explain(TEXT, task="opinion")
    (whole,) = model.predict("opinion", TEXT)
    assert found.label == found.prediction.label == whole.label
    assert [word.word for word in found.words] == ["The", "b", "battery", "b", "died", "don't", "buy", "it"]
    for word in found.words:
        assert TEXT[word.start : word.end] == word.word
        (without,) = model.predict("opinion", TEXT[: word.start] + TEXT[word.end :])
        assert whole.probabilities is not None
        assert without.probabilities is not None
        difference = whole.probabilities[str(whole.label)] - without.probabilities[str(whole.label)]
        assert word.value == pytest.approx(difference, abs=1e-5)


def test_another_class_pairs_and_scores(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    assert model.explain("fine", task="opinion", label="neutral").label == "neutral"
    pair = model.explain("Is it?", "It is not!", task="question")
    assert [(word.text, word.word) for word in pair.words] == [(0, "Is"), (0, "it"), (1, "It"), (1, "is"), (1, "not")]
    score = model.explain("Is it?", "It is not!", task="similarity")
    assert isinstance(score.label, float)
    with pytest.raises(UserError, match="task similarity has scores instead of classes; leave label out"):
        model.explain("a", "b", task="similarity", label="yes")
    with pytest.raises(UserError, match="explain: label"):
        model.explain("a", task="opinion", label="neutrl")
    with pytest.raises(UserError, match=r"takes 1 text\(s\) per example, found 2"):
        model.explain("a", "b", task="opinion")
    with pytest.raises(UserError, match="explain: word: task opinion has one label for the text"):
        model.explain("a", task="opinion", word="a")
    with pytest.raises(UserError, match="explain: `task` must be given: one of opinion, question, similarity"):
        model.explain("a")
    with pytest.raises(UserError, match="explain: the text is empty"):
        model.explain(" ", task="opinion")


def test_the_task_can_be_left_out_if_there_is_only_one(tmp_path: Path) -> None:
    rows = [{"text": f"{name} number {i}", "label": name} for i in range(4) for name in ("one", "two")]
    task = Classes(rows, text="text", label="label", dev=rows)
    tiny = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32}
    model = fit({"name": task}, tiny, run=tmp_path / "run", train={"epochs": 1, "device": "cpu"}).model
    assert model.explain("number one") == model.explain("number one", task="name")


def by_word(examples: object) -> list[Prediction]:
    """A model that reads one word: good."""
    return [
        Prediction(
            "t",
            "yes" if "good" in text else "no",
            {"no": 0.9 - 0.8 * ("good" in text), "yes": 0.1 + 0.8 * ("good" in text)},
        )
        for (text,) in examples  # type: ignore[attr-defined]
    ]


def test_the_word_that_matters_is_found_and_shown() -> None:
    found = explain("t", ("all good & <well>",), by_word)
    assert isinstance(found, Explanation)
    assert found.method == "occlusion"
    (top,) = found.top(1)
    assert (top.word, top.start, top.end) == ("good", 4, 8)
    assert top.value == pytest.approx(0.8)
    assert str(found).splitlines()[:2] == ["t: yes (90.0%)", "+0.800  good"]
    page = found._repr_html_()
    assert "&amp; &lt;<span" in page
    assert "<well>" not in page
    assert re.search(r'rgba\(46, 125, 50, 0.60\)" title="\+0.8000">good<', page)


def test_twice_the_same_evidence_has_no_effect() -> None:
    assert all(word.value == 0 for word in explain("t", ("good good",), by_word).words)


def test_of_several_classes_the_most_probable_predicted_one_is_explained() -> None:
    shares = {"a": 0.6, "b": 0.3, "c": 0.2}  # the threshold of a may be higher than 0.6
    assert explain("t", ("x y",), lambda examples: [Prediction("t", ("b", "c"), shares)] * len(examples)).label == "b"
    assert explain("t", ("x y",), lambda examples: [Prediction("t", (), shares)] * len(examples)).label == "a"
