"""Which words of a text a prediction depends on, measured by leaving out one word at a time (occlusion).

The effect of a word is p(label | text) - p(label | text without the word), or the difference of the predicted scores:
what the model itself computes, with no approximation. Its limits: words that say the same thing twice can both have no
effect, because each is enough; two words can matter together and not alone; and a text with a hole in it may be unlike
anything the model was trained on. A word is a run of letters and digits, so a sentence in a script without spaces is
one word. Each word needs one more prediction.
"""

import html
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from polytask.types import Label, Prediction, UserError, unknown

WORD = re.compile(r"\w+(?:['’-]\w+)*")  # noqa: RUF001  (both apostrophes)
COLORS = {True: "46, 125, 50", False: "198, 40, 40"}
"""Green for words that speak for the label, red for words that speak against it."""

Predict = Callable[[Sequence[tuple[str, ...]]], Sequence[Prediction]]
Method = Literal["occlusion", "integrated_gradients"]
PredictWord = Callable[[Sequence[tuple[str, int]]], Sequence[Prediction]]
"""Predicts the tag of one word of each text, which is given by its first character."""
Place = tuple[int, tuple[int, int]]
"""A word: the index of its text, its first character, and the one after its last."""


@dataclass(frozen=True)
class WordEffect:
    """A word, where it is, and what it contributes to the prediction."""

    word: str
    text: int
    """The index of its text in `Explanation.texts`: 0 for the first text, 1 for the second text of a pair."""
    start: int
    """Index of the word's first character in its text."""
    end: int
    """Index after the word's last character."""
    value: float
    """Occlusion: by how much the label's probability, or the score, falls without the word. Negative: it rises.
    Gradients: the word's share of the probability or score."""


@dataclass(frozen=True)
class Explanation:
    """A prediction and the effect of each word on it. Notebooks show it as the text with colored words."""

    prediction: Prediction
    label: Label
    """The class or option whose probability is explained; for scores, the predicted score."""
    texts: tuple[str, ...]
    """For kind choice: the text, followed by its options."""
    words: tuple[WordEffect, ...]
    """In the order of the texts."""
    method: Method = "occlusion"
    """How the effects were measured: by predicting again without each word, or by gradients (`Predictor.explain`)."""

    def top(self, count: int = 5) -> tuple[WordEffect, ...]:
        """The words with the largest effects, in either direction."""
        return tuple(sorted(self.words, key=lambda word: -abs(word.value))[:count])

    def __str__(self) -> str:
        lines = [f"{word.value:+.3f}  {word.word}" for word in self.top(len(self.words))]
        return "\n".join([f"{self.prediction.task}: {self._shown_label}", *lines])

    @property
    def _shown_label(self) -> str:
        if isinstance(self.label, float):
            return f"{self.label:.3f}"
        probabilities = self.prediction.probabilities or {}
        return f"{self.label} ({probabilities.get(str(self.label), 0.0):.1%})"

    def _repr_html_(self) -> str:
        largest = max((abs(word.value) for word in self.words), default=0.0) or 1.0
        parts = [f"<p><b>{html.escape(self.prediction.task)}: {html.escape(self._shown_label)}</b></p>"]
        for index, text in enumerate(self.texts):
            marked, end = "", 0
            for word in (word for word in self.words if word.text == index):
                color = f"rgba({COLORS[word.value >= 0]}, {abs(word.value) / largest * 0.6:.2f})"
                marked += html.escape(text[end : word.start])
                marked += f'<span style="background: {color}" title="{word.value:+.4f}">{html.escape(word.word)}</span>'
                end = word.end
            parts.append(f"<p>{marked}{html.escape(text[end:])}</p>")
        return "".join(parts)


def explain(task: str, texts: tuple[str, ...], predict: Predict, label: str | None = None) -> Explanation:
    """Measures the effect of each word on the probability of a class, by default the predicted one, or on a score."""
    places = _places(texts, range(len(texts)))
    without = [_without(texts, place) for place in places]
    return _effects(task, texts, places, predict([texts, *without]), label)


def explain_option(task: str, texts: tuple[str, ...], predict: Predict, label: str | None = None) -> Explanation:
    """Measures the effect of each word of a text and of one of its options, by default the predicted one, on the
    probability of that option.

    `texts` has the text and its options, and the predictions name options by their indices.
    """
    _, *options = texts
    (whole,) = predict([texts])
    if label is not None and label not in options:
        raise UserError(unknown("explain: label", label, options, "option"))
    index = whole.index if label is None else options.index(label)
    assert index is not None
    places = _places(texts, (0, 1 + index))
    # An option without any character would be a missing option, and " " is read as the unknown token.
    without = [tuple(text or " " for text in _without(texts, place)) for place in places]
    found = _effects(task, texts, places, [whole, *predict(without)], str(index))
    return replace(found, prediction=whole.with_options(options), label=options[index])


def explain_word(task: str, text: str, word: tuple[int, int], predict: PredictWord, label: str | None) -> Explanation:
    """Measures the effect of each other word on the probability of a word's tag, by default the predicted one.

    `word` has the first character of the word, and the one after its last.
    """
    spans = (match.span() for match in WORD.finditer(text))
    places = [(0, (start, end)) for start, end in spans if end <= word[0] or start >= word[1]]
    without = [
        (text[:start] + text[end:], word[0] - (end - start if end <= word[0] else 0)) for _, (start, end) in places
    ]
    return _effects(task, (text,), places, predict([(text, word[0]), *without]), label)


def choose_word(word: str | int | None, words: Sequence[str], task: str) -> int:
    """Returns the index of the word whose tag is explained: it is given as the word, or as its index."""
    if isinstance(word, str) and words.count(word) == 1:
        return words.index(word)
    if isinstance(word, int) and -len(words) <= word < len(words):
        return word % len(words)
    raise UserError(
        f"explain: task {task} has a tag for each word, and one of them is explained: `word` must be a word that "
        f"occurs once, or the number of a word (from 0 to {len(words) - 1}), found {word!r}; the words are "
        f"{', '.join(words)!r:.200}"
    )


def _places(texts: tuple[str, ...], indices: Iterable[int]) -> list[Place]:
    """The words of the texts with these indices."""
    return [(i, match.span()) for i in indices for match in WORD.finditer(texts[i])]


def _without(texts: tuple[str, ...], place: Place) -> tuple[str, ...]:
    i, (start, end) = place
    return (*texts[:i], texts[i][:start] + texts[i][end:], *texts[i + 1 :])


def _effects(
    task: str, texts: tuple[str, ...], places: Sequence[Place], predictions: Sequence[Prediction], label: str | None
) -> Explanation:
    """The effects of the words at these places, from the predictions of the whole text and of those without a word."""
    whole, *rest = predictions
    chosen = explained_label(task, whole, label)
    value = explained_value(whole, chosen)
    words = [
        WordEffect(texts[i][start:end], i, start, end, value - explained_value(prediction, chosen))
        for (i, (start, end)), prediction in zip(places, rest, strict=True)
    ]
    return Explanation(whole, chosen, texts, tuple(words))


def explained_label(task: str, whole: Prediction, label: str | None) -> Label:
    """The label to explain: the given one, or the predicted one."""
    if label is not None and label not in (whole.probabilities or {}):
        if whole.probabilities is None:
            raise UserError(f"explain: label: task {task} has scores instead of classes; leave label out")
        raise UserError(unknown("explain: label", label, whole.probabilities, "class"))
    chosen = whole.label if label is None else label
    if isinstance(chosen, tuple) and whole.probabilities:  # several classes per row: the most probable predicted one
        chosen = max(chosen or whole.probabilities, key=whole.probabilities.__getitem__)
    return chosen


def explained_value(prediction: Prediction, label: Label) -> float:
    """The number that is explained: the label's probability, or the score."""
    if prediction.probabilities is not None:
        return prediction.probabilities[str(label)]
    assert isinstance(prediction.label, float)
    return prediction.label
