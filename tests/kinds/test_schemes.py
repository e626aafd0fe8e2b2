"""Schemes of tags: spans and their tags are two forms of the same thing, and are read as seqeval reads them."""

import random

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from polytask.kinds.names import LabelProblem
from polytask.kinds.schemes import (
    TagSpan,
    all_tags,
    find_spans,
    fits,
    guess_scheme,
    is_span_list,
    span_classes,
    tag_spans,
    written_tags,
)
from polytask.kinds.tokens import repaired
from polytask.types import TagScheme

SPANS: tuple[TagScheme, ...] = ("bio", "bioes")


def random_tags(rng: random.Random, scheme: TagScheme) -> list[str]:
    return [rng.choice(all_tags("XY", scheme)) for _ in range(rng.randint(1, 9))]


@pytest.mark.parametrize("scheme", SPANS)
def test_spans_of_any_tags_are_those_of_seqeval(scheme: TagScheme) -> None:
    rng = random.Random(0)
    for _ in range(3000):
        tags = random_tags(rng, scheme)
        assert [(label, first, last - 1) for first, last, label in find_spans(tags, scheme)] == get_entities(tags)


@pytest.mark.parametrize("scheme", SPANS)
def test_random_spans_come_back_from_their_tags(scheme: TagScheme) -> None:
    rng = random.Random(1)
    for _ in range(2000):
        words, spans, at = rng.randint(1, 12), [], 0
        while at < words:
            first = rng.randint(at, words - 1)
            last = rng.randint(first + 1, words)
            spans.append(TagSpan(first, last, rng.choice("XYZ")))
            at = last + rng.randint(0, 2)
        tags = tag_spans(spans, words, scheme)
        assert list(find_spans(tags, scheme)) == spans
        assert repaired(tags, scheme) == tags


@pytest.mark.parametrize("scheme", SPANS)
def test_repaired_tags_mark_the_same_spans_and_are_valid(scheme: TagScheme) -> None:
    rng = random.Random(2)
    for _ in range(1000):
        tags = random_tags(rng, scheme)
        valid = repaired(tags, scheme)
        assert list(find_spans(valid, scheme)) == list(find_spans(tags, scheme))
        for before, tag in zip(["O", *valid], valid, strict=False):
            if tag[0] in "IE":
                assert before[0] in "BI"
                assert before[2:] == tag[2:]


def test_conlleval_reads_an_inside_tag_after_another_class_as_a_new_span() -> None:
    assert repaired(["I-A", "I-A", "I-B", "O", "I-B"], "bio") == ["B-A", "I-A", "B-B", "O", "B-B"]


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        (["O", "B-A", "I-A"], "bio"),
        (["I-A", "O"], "bio"),
        (["O", "S-A"], "bioes"),
        (["B-A", "E-A"], "bioes"),
        (["NN", "VB"], "plain"),
        (["O"], "plain"),
        (["B-A", "NN"], "plain"),
    ],
)
def test_the_scheme_is_guessed_from_the_tags(tags: list[str], scheme: TagScheme) -> None:
    assert guess_scheme(tags) == scheme


@pytest.mark.parametrize("scheme", ["bio", "bioes", "plain"])
def test_all_tags_fit_their_scheme_and_have_its_classes(scheme: TagScheme) -> None:
    tags = all_tags(["X", "Y"], scheme)
    assert len(set(tags)) == len(tags) == {"bio": 5, "bioes": 9, "plain": 2}[scheme]
    assert all(fits(tag, scheme) for tag in tags)
    assert span_classes(tags, scheme) == ("X", "Y")


# --- labels as files write them ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "tags"), [("O B-A", ["O", "B-A"]), (["NN", " VB "], ["NN", "VB"]), ((1, 2), ["1", "2"])]
)
def test_tags_are_a_list_or_separated_by_spaces(value: object, tags: list[str]) -> None:
    assert written_tags(value) == tags
    assert not is_span_list(value)


@pytest.mark.parametrize("value", ["", " ", [], None, 3, ["O", ""], ["O", None], ["O", 0.5]])
def test_tags_that_cannot_be_used(value: object) -> None:
    with pytest.raises(LabelProblem, match=r"expected .*one tag for each word"):
        written_tags(value)


def test_an_empty_list_is_a_list_of_spans() -> None:
    assert is_span_list([])
    assert is_span_list([{"start": 0, "end": 1, "label": "X"}])
    assert not is_span_list([{"start": 0}, "O"])
