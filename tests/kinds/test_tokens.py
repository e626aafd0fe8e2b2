"""Tags of words: spans and their tags, scores equal to seqeval's, labels that cannot be used."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

from polytask.evaluation.scoring import Predictions, score
from polytask.kinds.base import LabelReader
from polytask.kinds.names import LabelProblem
from polytask.kinds.schemes import all_tags
from polytask.kinds.table import KINDS
from polytask.kinds.tokens import Tokens, located, tallies
from polytask.settings import TaskSpec
from polytask.types import NO_LABEL, LabelSpace, Prediction, TagScheme, UserError

SPANS: tuple[TagScheme, ...] = ("bio", "bioes")
TOKENS = KINDS["tokens"]


def spec(**fields: Any) -> TaskSpec:
    return TaskSpec("t", "tokens", ("text",), "label", "train.jsonl", "dev.jsonl", **fields)


def random_tags(rng: random.Random, scheme: TagScheme, classes: str = "XY") -> list[str]:
    return [rng.choice(all_tags(classes, scheme)) for _ in range(rng.randint(1, 9))]


# --- scores -----------------------------------------------------------------------------------------------------------
def scores_of(gold: list[list[str]], predicted: list[list[str]], scheme: TagScheme) -> dict[str, float]:
    labels = LabelSpace("tokens", all_tags("XY", scheme), scheme=scheme)
    found = score(Predictions(*tallies(gold, predicted, "XY", scheme)), labels, 0.0)
    assert found.primary == ("accuracy" if scheme == "plain" else "f1")
    for value in found.metrics.values():
        assert 0 <= value.low <= value.value <= value.high <= 1
    return {name: value.value for name, value in found.metrics.items()}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("scheme", SPANS)
@pytest.mark.parametrize("seed", range(8))
def test_scores_are_those_of_seqeval(scheme: TagScheme, seed: int) -> None:
    rng = random.Random(seed)
    gold = [random_tags(rng, scheme) for _ in range(40)]
    predicted = [[tag if rng.random() < 0.7 else rng.choice(all_tags("XY", scheme)) for tag in row] for row in gold]
    found = scores_of(gold, predicted, scheme)
    assert found["f1"] == pytest.approx(f1_score(gold, predicted))
    assert found["precision"] == pytest.approx(precision_score(gold, predicted))
    assert found["recall"] == pytest.approx(recall_score(gold, predicted))
    assert found["f1_macro"] == pytest.approx(f1_score(gold, predicted, average="macro"))
    assert found["accuracy"] == pytest.approx(accuracy_score(gold, predicted))


def test_of_plain_tags_the_f1_is_the_accuracy() -> None:
    rng = random.Random(3)
    gold = [[rng.choice("XY") for _ in range(rng.randint(1, 6))] for _ in range(20)]
    predicted = [[rng.choice("XY") for _ in row] for row in gold]
    found = scores_of(gold, predicted, "plain")
    assert found["f1"] == pytest.approx(accuracy_score(gold, predicted))
    assert found["accuracy"] == found["f1"] == found["precision"] == found["recall"]


def test_no_spans_at_all_score_zero_with_the_whole_range_as_interval() -> None:
    tally = tallies([["O", "O"]], [["O", "O"]], "XY", "bio")
    found = score(Predictions(*tally), LabelSpace("tokens", all_tags("XY", "bio"), scheme="bio"), 0.0)
    assert (found.metrics["f1"].low, found.value, found.metrics["f1"].high) == (0, 0, 1)
    assert found.metrics["accuracy"].value == 1


# --- reading ----------------------------------------------------------------------------------------------------------
def reader(values: list[object], **fields: Any) -> LabelReader:
    return TOKENS.reader(spec(**fields), None, values)


def tags_of(words: str, value: object, **fields: Any) -> list[str]:
    places, at = [], 0
    for word in words.split():
        at = words.index(word, at)
        places.append((at, at + len(word)))
        at += len(word)
    own = reader([value], **fields)
    return [own.names[number] for number in own.read_words(places, value)]


def test_spans_become_tags() -> None:
    value = [{"start": 10, "end": 13, "label": "B"}, {"start": 0, "end": 5, "label": "A"}]
    assert tags_of("aa bb cc ddd ee", [{"start": 0, "end": 5, "label": "A"}]) == ["B-A", "I-A", "O", "O", "O"]
    assert tags_of("aa bb cccc ddd", [*value[1:], {"start": 6, "end": 10, "label": "B"}]) == ["B-A", "I-A", "B-B", "O"]
    assert tags_of("aa bb", [{"start": 0, "end": 5, "label": "A"}], scheme="bioes") == ["B-A", "E-A"]
    assert tags_of("aa bb", [], scheme="bio") == ["O", "O"]
    assert tags_of("aa bb cc", [[3, 8, "A"]]) == tags_of("aa bb cc", [(3, 8, "A")]) == ["O", "B-A", "I-A"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"start": 1, "end": 5, "label": "A"}], "does not begin and end at the borders of words"),
        ([{"start": 0, "end": 4, "label": "A"}], "does not begin and end at the borders of words"),
        ([{"start": 3, "end": 50, "label": "A"}], r"the span A \[3, 50\) is empty or outside the text"),
        ([{"start": 3, "end": 3, "label": "A"}], "empty or outside"),
        ([{"start": -2, "end": 2, "label": "A"}], "empty or outside"),
        ([{"start": 0, "end": 2}], "a span must have start and end"),
        ([{"start": "0", "end": 2, "label": "A"}], "a span must have start and end"),
        ([{"start": True, "end": 2, "label": "A"}], "a span must have start and end"),
        ([{"start": 0, "end": 2, "label": " "}], "a span must have start and end"),
        (
            [{"start": 0, "end": 5, "label": "A"}, {"start": 3, "end": 5, "label": "B"}],
            "the spans A and B overlap; a word has one tag",
        ),
        (["O"], r"1 tag\(s\) for 2 word\(s\)"),
        (["O", None], "a tag is empty"),
        (["O", ["X"]], "a tag is a list"),
        ([[0, "PER"]], r"a list of spans such as \{start: 0, end: 4, label: PER\}"),
        (7, "no tags"),
        ("", "no tags"),
        (None, "no tags"),
    ],
)
def test_labels_that_cannot_be_used(value: object, message: str) -> None:
    with pytest.raises(LabelProblem, match=message):
        tags_of("aa bb", value, scheme="bio")


def test_tags_of_another_scheme_and_unknown_tags_are_named() -> None:
    with pytest.raises(LabelProblem, match="the tag 'NN' is not one of scheme bio"):
        tags_of("aa bb", ["O", "NN"], scheme="bio")
    labels = LabelSpace("tokens", all_tags(["A"], "bio"), scheme="bio")
    with pytest.raises(LabelProblem, match="'B-C' is not among the labels of the training rows"):
        TOKENS.reader(spec(), labels).read_words([(0, 1)], ["B-C"])
    with pytest.raises(LabelProblem, match="'B-C' is not one of the task's classes"):
        tags_of("aa", ["B-C"], classes=("A", "B"))


def test_the_label_space_has_every_tag_of_its_classes() -> None:
    own = reader([["B-B", "O"]])
    own.read_words([(0, 1), (2, 3)], ["B-B", "O"])
    labels = TOKENS.space(spec(), own.meta, 0, None)
    assert labels.classes == ("O", "B-B", "I-B")
    assert TOKENS.targets(labels, own.meta, np.array([[0, 1, NO_LABEL]])).tolist() == [[1, 0, NO_LABEL]]
    with pytest.raises(UserError, match="expected two or more"):
        TOKENS.space(spec(), {"names": (), "scheme": "bio"}, 0, None)


# --- outputs ----------------------------------------------------------------------------------------------------------
def test_words_behind_the_end_change_nothing() -> None:
    torch.manual_seed(0)
    labels = LabelSpace("tokens", all_tags(["A"], "bio"), scheme="bio")
    targets = torch.tensor([[0, 1, 2], [2, NO_LABEL, NO_LABEL]])
    mask = (targets != NO_LABEL).float()[..., None]
    one, other = (torch.cat([torch.randn(2, 3, 3) * mask, mask], -1) for _ in range(2))
    wide = torch.nn.functional.pad(one, (0, 0, 0, 4)), torch.nn.functional.pad(other, (0, 0, 0, 4))
    expected = torch.nn.functional.cross_entropy(one[..., :-1][targets >= 0], targets[targets >= 0])
    torch.testing.assert_close(TOKENS.loss(one, targets), expected)
    torch.testing.assert_close(TOKENS.loss(wide[0], targets), expected)
    torch.testing.assert_close(TOKENS.distance(*wide, False), TOKENS.distance(one, other, False))
    for form in ("kl", "cross_entropy"):
        found, same = (TOKENS.distillation(*pair, 2.0, form) for pair in (wide, (one, other)))  # type: ignore[arg-type]
        torch.testing.assert_close(found, same)
    assert TOKENS.decode(wide[0], labels) == TOKENS.decode(one, labels)
    assert [len(tags) for tags, _ in TOKENS.decode(one, labels)] == [3, 1]  # type: ignore[arg-type]


def test_spans_have_places_and_the_product_of_their_words_probabilities() -> None:
    text = "Ada Lovelace lived in London."
    words = ((0, 3), (4, 12), (13, 18), (19, 21), (22, 28), (28, 29))
    tags = ("B-P", "I-P", "O", "O", "B-L", "O")
    prediction = Prediction("t", tags, word_probabilities=(0.9, 0.8, 1.0, 1.0, 0.7, 1.0))
    found = located(prediction, text, words, "bio")
    assert found.spans is not None
    assert [(s.start, s.end, s.label, s.text) for s in found.spans] == [
        (0, 12, "P", "Ada Lovelace"),
        (22, 28, "L", "London"),
    ]
    assert [s.probability for s in found.spans] == pytest.approx([0.72, 0.7])
    assert found.word_texts == ("Ada", "Lovelace", "lived", "in", "London", ".")
    assert isinstance(TOKENS, Tokens)
