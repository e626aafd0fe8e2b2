"""Findings about labels that cannot be learned or suit another kind of task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polytask.settings import TaskSpec
from polytask.tasks.finding import Finding
from polytask.tasks.odd_labels import odd_labels
from polytask.tasks.task import read_tasks
from polytask.text.tokenizer import TextTokenizer

Table = Callable[..., str]
Look = Callable[..., dict[tuple[str, str], Finding]]


@pytest.fixture
def look(tmp_path: Path, tokenizer: TextTokenizer, table: Table) -> Look:
    """look(kind, train, dev, **fields): what is odd about these labels, by split and code."""

    def find(
        kind: str, train: list[Any], dev: list[Any] | None = None, **fields: Any
    ) -> dict[tuple[str, str], Finding]:
        labels = {"train": train, "dev": train if dev is None else dev}
        files = [table(f"{n}.csv", ["text", "label"], [["a b", label] for label in labels[n]]) for n in labels]
        spec = TaskSpec("t", kind, ("text",), "label", *files, **fields)  # type: ignore[arg-type]
        (task,) = read_tasks([spec], tokenizer, tmp_path / "cache")
        return {(finding.split, finding.what): finding for finding in odd_labels("t", task)}

    return find


def test_balanced_labels_are_fine(look: Look) -> None:
    assert look("classes", ["a", "b", "c"] * 5) == {}
    assert look("yes_no", ["yes", "no"] * 5) == {}
    assert look("score", [0, 0.5, 3.7, 5], range=(0, 5)) == {}


def test_classes_without_enough_examples(look: Look) -> None:
    findings = look(
        "classes", ["a", "b"] * 10 + ["c"] * 4 + ["d"] * 5, ["a", "b", "c"], classes=("a", "b", "c", "d", "e")
    )
    assert {key: (finding.severity, finding.count) for key, finding in findings.items()} == {
        ("train", "class_missing"): ("problem", 1),
        ("train", "few_examples"): ("warning", 1),
        ("dev", "class_missing"): ("warning", 1),  # d; of e there is nothing to learn either
    }
    assert findings["train", "class_missing"].sentence.startswith("no training row has the label 'e'")
    assert findings["train", "few_examples"].sentence == "fewer than 5 training rows each: 'c'"
    assert (
        findings["dev", "class_missing"].sentence == "no dev row has the label 'd', so the dev scores do not cover it"
    )


def test_many_classes_are_not_all_named(look: Look) -> None:
    names = [f"c{i}" for i in range(12)]
    finding = look("classes", names * 3)["train", "few_examples"]
    assert finding.count == 12
    assert finding.sentence.endswith("'c0', 'c1', 'c10', 'c11', 'c2' and 7 more")


@pytest.mark.parametrize(("yes", "said"), [(95, False), (96, True)])
def test_one_answer_for_nearly_all(look: Look, yes: int, said: bool) -> None:
    findings = look("yes_no", ["yes"] * yes + ["no"] * (100 - yes))
    assert (("train", "one_sided") in findings) == said
    if said:
        assert findings["train", "one_sided"].sentence.startswith("96 % of the rows are 'yes'")


def test_numbers_as_classes(look: Look) -> None:
    assert look("classes", [0, 1, 2, 3, 4] * 5) == {}
    assert ("train", "numbers_as_classes") in look("classes", [0.5, 1, 1.5, 2] * 5)
    assert ("train", "numbers_as_classes") in look("classes", ["0,5", "1,0", "1,5"] * 5)
    many = look("classes", list(range(21)) * 5)
    assert many["train", "numbers_as_classes"].severity == "warning"
    assert look("classes", list(range(20)) * 5) == {}


def test_scores_far_from_the_others(look: Look) -> None:
    """Standardized by a deviation that one row determines, all other scores are nearly the same."""
    scores = [i % 7 + 0.5 for i in range(150)]
    assert look("score", scores) == {}
    assert look("score", [0.0] * 149 + [1.5]).keys().isdisjoint({("train", "far_scores")})  # rare, but not far
    finding = look("score", [*scores[:100], 1e6, *scores[100:]], scores)["train", "far_scores"]
    assert (finding.severity, finding.rows, finding.count) == ("warning", (102,), 1)
    assert finding.sentence == (
        "1 of 151 rows (0.7 %) has a score far from the others: the standard deviation is 8.11e+04, and 2 without, so "
        "that the differences between the other scores hardly count"
    )
    assert ("train", "far_scores") in look("score", [*scores, -500], range=(-500, 10))
    lognormal = [2.718281828 ** (i % 41 / 10) for i in range(410)]  # from 1 to 55, as prices are
    assert look("score", lognormal) == {}


def test_classes_in_two_spellings(look: Look) -> None:
    finding = look("classes", ["Good", "good", "Not  good", "not good", "bad"] * 5)["train", "spelled_alike"]
    assert (finding.severity, finding.count) == ("warning", 4)
    assert finding.sentence == (
        "classes that differ only in upper and lower case or in spaces: 'Good', 'good', 'Not  good', 'not good'"
    )
    assert ("train", "spelled_alike") in look("multilabel", ["Late|broken", "late"] * 5)
    assert look("classes", ["good", "goods", "not good"] * 5) == {}


def test_labels_that_are_ids(look: Look) -> None:
    findings = look("classes", [f"ticket {i}" for i in range(30)])
    assert findings["train", "labels_like_ids"].sentence.startswith("30 different labels in 30 rows: is this the label")


def test_scores_that_are_all_the_same(look: Look) -> None:
    findings = look("score", [2.5] * 9, [1, 2, 3.5], range=(0, 5))
    assert {key: finding.severity for key, finding in findings.items()} == {("train", "constant_score"): "problem"}
    assert "every score is 2.5" in findings["train", "constant_score"].sentence
    assert ("dev", "constant_score") in look("score", [1, 2, 3.5], [4.0] * 3, range=(0, 5))


def test_scores_that_look_like_classes_or_like_yes_and_no(look: Look) -> None:
    findings = look("score", [0, 1, 2, 3, 4, 5] * 3, range=(0, 5))
    assert {key: finding.severity for key, finding in findings.items()} == {("train", "whole_scores"): "note"}
    assert look("score", [0, 1, 2, 3, 4, 5.5] * 3, range=(0, 6)) == {}
    assert look("score", list(range(12)) * 2, range=(0, 11)) == {}
    findings = look("score", [0, 1] * 9, range=(0, 1))
    assert {key: finding.severity for key, finding in findings.items()} == {("train", "two_scores"): "warning"}
    assert "`kind: yes_no`" in findings["train", "two_scores"].sentence


def test_scores_that_use_a_small_part_of_their_range(look: Look) -> None:
    findings = look("score", [0, 0.5, 3.7, 5], range=(0, 100))
    assert set(findings) == {("train", "narrow_range"), ("dev", "narrow_range")}
    assert findings["train", "narrow_range"].sentence == "all scores are in [0, 5], but `range` is [0, 100]"


def test_several_classes_per_row(look: Look) -> None:
    assert look("multilabel", ["a|b", "b|c", "a|c", "a", "b", "c"] * 5) == {}
    few = look("multilabel", ["a|b", "b", "a"] * 10 + ["c", ""], ["a", "b", ""])
    assert "fewer than 5 training rows each: 'c'" in few["train", "few_examples"].sentence
    assert few["train", "without_class"].severity == "note"
    assert few["train", "without_class"].rows == (33,)
    assert "1 of 3 rows" in few["dev", "without_class"].sentence
    assert "no dev row has the label 'c'" in few["dev", "class_missing"].sentence
    assert look("multilabel", ["", "", "", "a|b"] * 5)["train", "without_class"].severity == "warning"
    everywhere = look("multilabel", ["a", "a|b"] * 10)
    assert "more than 95% of the rows have the class 'a'" in everywhere["train", "one_sided"].sentence
