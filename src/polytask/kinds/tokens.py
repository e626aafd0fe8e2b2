"""A tag for each word of a text: entities, other spans of words, or parts of speech.

Targets are [N, W] numbers of tags, with NO_LABEL for words without a label and behind the last word of a text. Outputs
are [B, W, C + 1]: the scores of C tags for each word, and 1 for a word, or 0 behind the last word of a text. So outputs
of texts with different numbers of words have one shape, which a captured step needs, and every formula that compares
two outputs knows which words there are.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kinds.base import Array, ClassScores, Form, Kind, LabelReader, Meta
from polytask.kinds.names import ClassNumbers, LabelProblem, check_number_of_classes, is_empty, sorted_classes
from polytask.kinds.schemes import (
    WORDS,
    TagSpan,
    all_tags,
    find_spans,
    fits,
    guess_scheme,
    is_span_list,
    span_classes,
    tag_spans,
    written_spans,
    written_tags,
)
from polytask.settings import TaskSpec
from polytask.types import NO_LABEL, Label, LabelSpace, Prediction, Span, TagScheme

Words = Sequence[tuple[int, int]]
"""The first character of each word, and the one after its last."""


class Tokens(Kind):
    """A tag per word. A stored label is a tag's number, in order of appearance; rows have different numbers of them."""

    name = "tokens"
    per_word = True
    has_confidence = is_calibrated = True

    # --- labels in files ----------------------------------------------------------------------------------------------
    def reader(self, spec: TaskSpec, known: LabelSpace | None = None, values: Iterable[object] = ()) -> LabelReader:
        scheme = spec.scheme or (None if known is None else known.scheme) or _guess(values)
        if spec.classes is not None:
            spec = replace(spec, classes=all_tags(spec.classes, scheme))
        return _Reader(ClassNumbers(spec, known), scheme)

    def space(self, spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
        scheme: TagScheme = meta["scheme"]
        classes = spec.classes or sorted_classes(span_classes(meta["names"], scheme))
        tags = all_tags(classes, scheme)
        check_number_of_classes(spec, tags)
        return LabelSpace("tokens", tags, scheme=scheme)

    def targets(self, labels: LabelSpace, meta: Meta, stored: Array) -> Array:
        index = {name: number for number, name in enumerate(labels.classes)}
        numbers = np.array([*(index[name] for name in meta["names"]), NO_LABEL], dtype=np.int64)
        return numbers[stored.astype(np.int64)]  # NO_LABEL is -1, the last number

    def label(self, meta: Meta, stored: Any) -> Label:
        return tuple(meta["names"][number] for number in stored if number != NO_LABEL)

    def class_counts(self, labels: LabelSpace, targets: Array) -> tuple[int, ...]:
        """Counts the words of each tag."""
        return tuple(np.bincount(targets[targets != NO_LABEL], minlength=len(labels.classes)).tolist())

    # --- outputs of heads ---------------------------------------------------------------------------------------------
    def num_outputs(self, labels: LabelSpace) -> int:
        return len(labels.classes)

    def squeeze(self, outputs_BC: Tensor) -> Tensor:
        return outputs_BC

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean over all words that have a label."""
        losses_B, words_B = self.terms(outputs, targets)
        return losses_B.sum() / words_B.sum().clamp(min=1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses_B, words_B = self.terms(outputs, targets)
        return losses_B / words_B.clamp(min=1)

    def terms(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the sum of the losses of each example's words, and the number of its words that have a label."""
        targets_BW = with_width(targets, outputs.shape[1])
        logits_BCW = outputs[..., :-1].movedim(-1, 1)
        losses_BW = F.cross_entropy(logits_BCW, targets_BW, reduction="none", ignore_index=NO_LABEL)
        is_word_BW = outputs[..., -1] * (targets_BW != NO_LABEL)
        return (losses_BW * is_word_BW).sum(-1), is_word_BW.sum(-1)

    def num_items(self, outputs: Tensor) -> Tensor:
        """Returns the number of words."""
        return outputs[..., -1].detach().float().sum()

    def scaled(self, outputs: Tensor, temperature: float) -> Tensor:
        return torch.cat([outputs[..., :-1] / temperature, outputs[..., -1:]], -1)

    def uninformed(self, targets: Tensor, num_outputs: int) -> Tensor:
        scores = targets.new_zeros((*targets.shape, num_outputs), dtype=torch.float32)
        return torch.cat([scores, (targets != NO_LABEL).float()[..., None]], -1)

    def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
        log_p, log_q = one[..., :-1].log_softmax(-1), other[..., :-1].log_softmax(-1)
        change = log_p.exp() - log_q.exp()  # see Classes.distance
        return _mean_over_words(((change.detach() if fixed_targets else change) * (log_p - log_q)).sum(-1), one)

    def distillation(self, outputs: Tensor, teacher: Tensor, temperature: float, form: Form) -> Tensor:
        log_p, log_q = ((scores[..., :-1] / temperature).log_softmax(-1) for scores in (outputs, teacher))
        terms = log_q.exp() * (log_q - log_p if form == "kl" else -log_p)
        return temperature**2 * _mean_over_words(terms.sum(-1), outputs)

    def mean_outputs(self, outputs_KB: Tensor) -> Tensor:
        mean_BWC = outputs_KB[..., :-1].log_softmax(-1).logsumexp(0) - math.log(len(outputs_KB))
        return torch.cat([mean_BWC, outputs_KB[0, ..., -1:]], -1)

    # --- predictions --------------------------------------------------------------------------------------------------
    def decode(self, outputs: Tensor, labels: LabelSpace) -> list[tuple[Label, dict[str, float] | None]]:
        """Returns the tags of each text's words."""
        return [(tuple(tags), None) for tags in _named(self.predicted(outputs, labels), labels.classes)]

    def tag_probabilities(self, outputs: Tensor) -> list[tuple[float, ...]]:
        """Returns the highest probability of a tag for each word."""
        highest_BW = outputs[..., :-1].softmax(-1).amax(-1) if outputs.numel() else outputs[..., 0]
        words_B = outputs[..., -1].sum(-1).int().tolist()
        return [tuple(row[:words]) for row, words in zip(highest_BW.tolist(), words_B, strict=True)]

    def predicted(self, outputs: Tensor, labels: LabelSpace) -> Array:
        """Returns the most probable tag of each word, where tags that break the scheme are repaired."""
        if not outputs.numel():
            return np.full(outputs.shape[:2], NO_LABEL)
        numbers_NW = torch.where(outputs[..., -1] > 0, outputs[..., :-1].argmax(-1), NO_LABEL).numpy()
        assert labels.scheme is not None
        if labels.scheme == "plain":
            return numbers_NW
        index = {name: number for number, name in enumerate(labels.classes)}
        for numbers_W, tags in zip(numbers_NW, _named(numbers_NW, labels.classes), strict=True):
            numbers_W[: len(tags)] = [index[tag] for tag in repaired(tags, labels.scheme)]
        return numbers_NW

    def class_scores(self, outputs: Tensor, targets: Array) -> ClassScores:
        """Returns those of the words with a label."""
        examples, words = np.nonzero(targets[:, : outputs.shape[1]] != NO_LABEL)
        gold = targets[examples, words].astype(np.int64)
        return ClassScores(outputs.double()[examples, words, :-1].numpy(), gold, examples)

    def for_metrics(self, targets: Array, labels: LabelSpace) -> Array:
        raise AssertionError("metrics of tags need the true and the predicted tags together: see `compared`")

    def compared(self, gold: Array, predicted: Array, labels: LabelSpace) -> tuple[Array, Array]:
        assert labels.scheme is not None
        true, guessed = (_named(numbers, labels.classes) for numbers in (gold, predicted))
        return tallies(true, guessed, span_classes(labels.classes, labels.scheme), labels.scheme)

    def compared_values(
        self, gold: Sequence[Any], predicted: Sequence[Any], classes: Sequence[str]
    ) -> tuple[Array, Array]:
        scheme = guess_scheme(classes)
        return tallies(gold, predicted, span_classes(classes, scheme), scheme)


def located(prediction: Prediction, text: str, words: Words, scheme: TagScheme) -> Prediction:
    """Returns the prediction with the places of its words and spans in the text."""
    tags, shares = prediction.label, prediction.word_probabilities
    assert isinstance(tags, tuple)
    assert shares is not None
    spans = []
    for (first, last, label), probability in span_probabilities(tags, shares, scheme):
        start, end = words[first][0], words[last - 1][1]
        spans.append(Span(start, end, label, text[start:end], probability))
    texts = tuple(text[start:end] for start, end in words)
    return replace(prediction, words=tuple(words), word_texts=texts, spans=tuple(spans))


def span_probabilities(tags: Sequence[str], shares: Sequence[float], scheme: TagScheme) -> list[tuple[TagSpan, float]]:
    """Returns the spans of a text's tags with their probabilities, given those of the words' tags.

    The probability of a span is the product of the probabilities of its words' tags: that of exactly these tags, if
    each word's tag is independent of the others.
    """
    return [(span, math.prod(shares[span.first : span.last])) for span in find_spans(tags, scheme)]


def sure_tags(tags: Sequence[str], shares: Sequence[float], scheme: TagScheme, lowest: float) -> tuple[str, ...]:
    """Returns the tags without the spans whose probability is below `lowest`."""
    sure = [span for span, probability in span_probabilities(tags, shares, scheme) if probability >= lowest]
    return tuple(tag_spans(sure, len(tags), scheme))


def tallies(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], classes: Sequence[str], scheme: TagScheme
) -> tuple[Array, Array]:
    """Counts the spans and the words of each row, from which all metrics follow.

    Returns two arrays [N, 3, C + 2] whose sum has, for each class of spans, the numbers of right, of predicted and of
    true spans. The first array has the true ones, the second the others. The last two columns are about words: all
    words are truly of the last but one; those with the right tag are also predicted as such.
    """
    index = {name: number for number, name in enumerate(classes)}
    true_N3K, found_N3K = (np.zeros((len(gold), 3, len(classes) + WORDS), np.int64) for _ in range(2))
    for n, (tags, guessed) in enumerate(zip(gold, predicted, strict=True)):
        spans, found = (set(find_spans(one, scheme)) for one in (tags, guessed))
        for span in spans:
            true_N3K[n, 2, index[span.label]] += 1
        for span in found:
            found_N3K[n, 1, index[span.label]] += 1
        for span in spans & found:
            found_N3K[n, 0, index[span.label]] += 1
        right = sum(one == other for one, other in zip(tags, guessed, strict=False))
        true_N3K[n, 2, -2] = len(tags)
        found_N3K[n, 0, -2] = found_N3K[n, 1, -2] = right
        found_N3K[n, 1, -1] = len(tags) - right
    return true_N3K, found_N3K


def repaired(tags: Sequence[str], scheme: TagScheme) -> list[str]:
    """Returns tags that mark the same spans (`find_spans`) and do not break the scheme."""
    return list(tags) if scheme == "plain" else tag_spans(find_spans(tags, scheme), len(tags), scheme)


def with_width(targets_BW: Tensor, width: int) -> Tensor:
    """Returns targets for this many words per text: what is behind the last word is added or left out."""
    return F.pad(targets_BW, (0, width - targets_BW.shape[1]), value=NO_LABEL)


def same_width(one_NW: Array, other_MW: Array) -> tuple[Array, Array]:
    """Returns the targets of two splits for the same number of words per text."""
    width = max(one_NW.shape[1], other_MW.shape[1])
    one, other = (
        np.pad(targets, ((0, 0), (0, width - targets.shape[1])), constant_values=NO_LABEL)
        for targets in (one_NW, other_MW)
    )
    return one, other


def _mean_over_words(values_BW: Tensor, outputs: Tensor) -> Tensor:
    is_word_BW = outputs[..., -1].detach()
    return (values_BW * is_word_BW).sum() / is_word_BW.sum().clamp(min=1)


def _named(numbers_NW: Array, classes: Sequence[str]) -> list[list[str]]:
    return [[classes[number] for number in row if number != NO_LABEL] for row in numbers_NW.tolist()]


# --- reading ----------------------------------------------------------------------------------------------------------
class _Reader(LabelReader):
    def __init__(self, numbers: ClassNumbers, scheme: TagScheme) -> None:
        super().__init__()
        self._numbers = numbers
        self.scheme = scheme
        self.options = ("scheme", scheme)

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._numbers.names

    @property
    def meta(self) -> dict[str, Any]:
        return {"names": self.names, "scheme": self.scheme}

    def _read(self, value: object) -> int:
        raise AssertionError("tags are read together with the words: see `read_words`")

    def read_words(self, words: Words, value: object) -> list[int]:
        if is_span_list(value):
            tags = tag_spans(
                _spans(written_spans(value), words), len(words), "bio" if self.scheme == "plain" else self.scheme
            )
        else:
            tags = written_tags(value)
            if len(tags) != len(words):
                raise LabelProblem(f"{len(tags)} tag(s) for {len(words)} word(s); expected one tag for each word")
        wrong = next((tag for tag in tags if not fits(tag, self.scheme)), None)
        if wrong is not None:
            raise LabelProblem(f"the tag {wrong!r} is not one of scheme {self.scheme}; set `scheme` or correct it")
        try:
            return [self._numbers.number(tag) for tag in repaired(tags, self.scheme)]
        except LabelProblem as problem:
            raise LabelProblem(f"{_first_unknown(tags, self._numbers)!r} is {problem}") from None


def _first_unknown(tags: Sequence[str], numbers: ClassNumbers) -> str:
    return next((tag for tag in tags if tag not in numbers.names), tags[0])


def _spans(value: Sequence[Any], words: Words) -> list[TagSpan]:
    """Returns spans of characters as spans of words; raises LabelProblem for the first one that cannot be used."""
    starts = {start: i for i, (start, _) in enumerate(words)}
    ends = {end: i + 1 for i, (_, end) in enumerate(words)}
    length = words[-1][1] if words else 0
    spans = []
    for item in value:
        start, end, label = (item.get(key) for key in ("start", "end", "label"))
        whole = all(isinstance(place, int) and not isinstance(place, bool) for place in (start, end))
        if not whole or not isinstance(label, str | int) or is_empty(label):
            raise LabelProblem("a span must have start and end (integers) and label, as {start: 0, end: 4, label: PER}")
        where = f"the span {label} [{start}, {end})"
        if not 0 <= start < end <= length:
            raise LabelProblem(f"{where} is empty or outside the text")
        if start not in starts or end not in ends:
            raise LabelProblem(f"{where} does not begin and end at the borders of words")
        spans.append(TagSpan(starts[start], ends[end], str(label).strip()))
    spans.sort()
    for one, other in pairwise(spans):
        if other.first < one.last:
            raise LabelProblem(f"the spans {one.label} and {other.label} overlap; a word has one tag")
    return spans


def _guess(values: Iterable[object]) -> TagScheme:
    """Guesses the scheme from all labels of a split; spans are read as BIO tags."""
    tags: set[str] = set()
    for value in values:
        if is_span_list(value) and value:
            return "bio"
        if not is_span_list(value):
            try:
                tags.update(written_tags(value))
            except LabelProblem:
                continue
    return guess_scheme(tags)
