"""Faults in the data are found with their rows, and good data has no findings."""

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytask.settings import TaskSpec
from polytask.tasks.doctor import examine
from polytask.tasks.finding import SEVERITIES, Finding
from polytask.tasks.task import Task, read_tasks
from polytask.text.packing import InputFormat, Packer
from polytask.text.tokenizer import TextTokenizer

Write = Callable[[str, str | bytes], str]
Make = Callable[..., Task]
Rows = list[list[object]]


@pytest.fixture
def make(tmp_path: Path, tokenizer: TextTokenizer, table: Callable[..., str]) -> Make:
    """make(train, dev, test=None, name="t", kind="yes_no", **fields): a task with these rows, the label last."""

    def read(
        train: Rows, dev: Rows, test: Rows | None = None, name: str = "t", kind: str = "yes_no", **fields: Any
    ) -> Task:
        texts = [f"text{i}" for i in range(len(train[0]) - 1)]
        files = {
            split: table(f"{name}-{split}.csv", [*texts, "label"], rows)
            for split, rows in (("train", train), ("dev", dev), ("test", test))
            if rows is not None
        }
        spec = TaskSpec(name, kind, tuple(texts), "label", files["train"], files["dev"], files.get("test"), **fields)  # type: ignore[arg-type]
        return read_tasks([spec], tokenizer, tmp_path / "cache")[0]

    return read


def words(start: int, count: int = 20) -> list[str]:
    """Different texts, a letter a token: no two share one, whatever their start."""
    return [" ".join(np.base_repr(7919 * i + 104_729, 26).lower()) for i in range(start, start + count)]


def rows(texts: list[str]) -> Rows:
    return [[text, i % 2] for i, text in enumerate(texts)]


def pairs(firsts: list[str], seconds: list[str]) -> Rows:
    return [[first, second, i % 2] for i, (first, second) in enumerate(zip(firsts, seconds, strict=True))]


def found(*tasks: Task, max_length: int = 128, **more: Any) -> dict[tuple[str, str, str], Finding]:
    """By task, split and code; each of them once."""
    findings = examine({task.spec.name: task for task in tasks}, Packer(("t",), 2, 3, max_length), **more)
    keyed = {(finding.task, finding.split, finding.what): finding for finding in findings}
    assert len(keyed) == len(findings)
    return keyed


def test_good_data_has_no_findings(make: Make) -> None:
    one = make(rows(words(0)), rows(words(100)), rows(words(200)))
    two = make(pairs(words(300), words(400)), pairs(words(500), words(600)), name="u")
    assert found(one, two, unknown_id=1) == {}


def test_copies_inside_a_split(make: Make) -> None:
    texts = words(0)
    train = rows([*texts, texts[3].upper(), f"  {texts[5]}", texts[3]])
    train[-3][1], train[-2][1], train[-1][1] = train[3][1], train[5][1], train[3][1]
    findings = found(make(train, rows(words(100))))
    assert list(findings) == [("t", "train", "duplicates")]
    finding = findings["t", "train", "duplicates"]
    assert (finding.severity, finding.rows, finding.count) == ("warning", (22, 23, 24), 3)
    assert finding.sentence == "3 of 23 rows (13 %) repeat an earlier row"
    assert str(finding) == "t train: 3 of 23 rows (13 %) repeat an earlier row (rows 22, 23, 24)"


def test_pairs_in_either_order_are_copies(make: Make) -> None:
    firsts, seconds = words(0), words(100)
    train = pairs(firsts, seconds)
    train += [[seconds[0], firsts[0], 0], [firsts[1], seconds[1], 1], [firsts[2], seconds[3], 0]]
    findings = found(make(train, pairs(words(300), words(400))))
    assert list(findings) == [("t", "train", "duplicates")]
    finding = findings["t", "train", "duplicates"]
    assert finding.rows == (22, 23)
    assert finding.sentence.endswith("an earlier row, 1 of them with the two texts in the other order")


def test_contradictions(make: Make) -> None:
    texts = words(0)
    findings = found(make([*rows(texts), [texts[0], 1], [texts[1], 1]], rows(words(100))))
    finding = findings["t", "train", "contradictions"]
    assert (finding.severity, finding.rows, finding.count) == ("problem", (2, 22), 2)
    assert "have the text of another row, but different labels: one of them is wrong" in finding.sentence
    assert findings["t", "train", "duplicates"].rows == (22, 23)


def test_a_pair_in_the_other_order_may_have_another_label(make: Make) -> None:
    train = pairs(words(0), words(100))
    train.append([train[0][1], train[0][0], 1])
    findings = found(make(train, pairs(words(300), words(400))))
    assert set(findings) == {("t", "train", "duplicates"), ("t", "train", "turned_labels")}
    turned = findings["t", "train", "turned_labels"]
    assert (turned.severity, turned.rows) == ("note", (2, 22))
    assert "premise and hypothesis" in turned.sentence


def test_scores_that_differ_widely_contradict(make: Make) -> None:
    texts = words(0)
    scores = [[text, i / 4] for i, text in enumerate(texts)]
    near, far = [texts[0], 1.2], [texts[19], 3.4]  # a quarter of the range from 0 to 5 is 1.25
    dev = [[text, i / 4] for i, text in enumerate(words(100))]
    findings = found(make([*scores, near, far], dev, kind="score", range=(0, 5)))
    finding = findings["t", "train", "contradictions"]
    assert finding.rows == (21, 23)
    assert "labels that differ by more than 25% of the range" in finding.sentence


def test_leaks_of_dev_and_test(make: Make) -> None:
    train, dev, test = words(0), words(100), words(200)
    dev[4], test[1], test[8] = train[6].upper(), train[3], dev[2]
    findings = found(make(rows(train), rows(dev), [*rows(test), *rows(words(300, 180))]))
    assert {key: (finding.severity, finding.rows) for key, finding in findings.items()} == {
        ("t", "dev", "leak"): ("problem", (6,)),
        ("t", "test", "leak"): ("warning", (3,)),  # one row in two hundred
        ("t", "test", "leak_from_dev"): ("warning", (10,)),
    }
    sentence = "1 of 20 rows (5.0 %) is also in the training rows, which makes dev scores too good"
    assert findings["t", "dev", "leak"].sentence == sentence


def test_a_leak_with_another_label_is_reported(make: Make) -> None:
    train = words(0)
    dev = [*rows(words(100)), [train[0], 1], [train[1], 1]]
    findings = found(make(rows(train), dev))
    assert findings["t", "dev", "leak"].rows == (22, 23)
    other = findings["t", "dev", "other_label"]
    assert (other.severity, other.rows) == ("warning", (22,))
    assert "is also in the training rows, with another label" in other.sentence


def test_pairs_leak_as_pairs(make: Make) -> None:
    train = pairs(words(0), words(100))
    dev = pairs(words(300), words(400))
    dev[0][:2] = [train[2][0], train[3][1]]  # texts that are known, but not as a pair
    dev[2][:2] = [train[2][1], train[2][0]]
    findings = found(make(train, dev))
    assert {key: finding.rows for key, finding in findings.items()} == {("t", "dev", "leak"): (4,)}


def test_texts_of_another_task(make: Make) -> None:
    train, dev = words(0), words(100)
    one = make(rows(train), rows(dev), name="one")
    other_train, other_dev = pairs(words(300), words(400)), pairs(words(500), words(600))
    other_train[3][1] = dev[5]  # what one is scored on
    other_train[4][0] = train[7]  # what one is trained on
    other_dev[6][0] = train[8]
    findings = found(one, make(other_train, other_dev, name="two"))
    assert {key: (finding.severity, finding.rows) for key, finding in findings.items()} == {
        ("one", "dev", "leak_between_tasks"): ("note", (7,)),
        ("two", "dev", "leak_between_tasks"): ("note", (8,)),
        ("one", "train", "shared_texts"): ("note", (9,)),
    }
    assert "has a text that task two is trained on" in findings["one", "dev", "leak_between_tasks"].sentence


def test_constant_columns_and_the_same_text_twice(make: Make) -> None:
    constant = make(pairs(words(0), ["a b"] * 20), pairs(words(100), words(200)))
    finding = found(constant)["t", "train", "constant_text"]
    assert (finding.severity, finding.rows) == ("problem", ())
    assert finding.sentence == "column 'text1' has the same text in every row"
    twice = make(pairs(words(0), words(0)), pairs(words(100), words(100)[:1] + words(200)[1:]))
    findings = found(twice)
    assert (findings["t", "train", "same_texts"].severity, findings["t", "train", "same_texts"].count) == (
        "problem",
        20,
    )
    assert (findings["t", "dev", "same_texts"].severity, findings["t", "dev", "same_texts"].rows) == ("note", (2,))


def test_lengths(make: Make) -> None:
    long = " ".join(string.ascii_lowercase)
    train = rows([*words(0, 30), long, long + " a"])
    task = make(train, rows(words(100)))
    assert found(task, max_length=29) == {}
    cut = found(task, max_length=28)["t", "train", "cut"]
    assert (cut.severity, cut.rows) == ("note", (33,))  # 27 tokens, [CLS] and [SEP]
    assert cut.sentence == "1 of 32 rows (3.1 %) is longer than max_length (28 tokens) and will be truncated"
    assert found(task, max_length=5)["t", "train", "cut"].severity == "warning"


def test_a_pair_is_truncated_in_one_sequence_or_two(make: Make) -> None:
    train = pairs(words(0), words(100))
    train[4][0], train[4][1] = "a b c d e f g h i j k", "l m n o p q r"
    task = make(train, pairs(words(300), words(400)))
    assert found(task, max_length=20)["t", "train", "cut"].rows == (6,)  # 11 + 7 + 3
    assert found(task, max_length=20, forms={"t": InputFormat("separate")}) == {}


def test_texts_of_which_nothing_is_left(make: Make) -> None:
    texts = words(0)
    texts[2] = texts[9] = "\u200b\u200b"
    findings = found(make(rows(texts), rows(words(100))))
    assert findings["t", "train", "empty_texts"].rows == (4, 11)
    assert ("t", "train", "duplicates") not in findings  # two texts without a token are no copies of each other


def test_unknown_words(make: Make, tokenizer: TextTokenizer) -> None:
    texts = words(0)
    texts[2], texts[9] = "a b ж ж ж ж ж ж", "語 語 語"
    findings = found(make(rows(texts), rows(words(100))), unknown_id=tokenizer.unk_id)
    finding = findings["t", "train", "unknown_words"]
    assert (finding.severity, finding.rows) == ("warning", (4, 11))
    tokens = sum(len(ids) for ids in tokenizer.encode(texts))
    assert f"({9 / tokens:.0%} of all tokens)" in finding.sentence


def test_the_worst_comes_first_and_ten_rows_are_named(make: Make) -> None:
    train = words(0)
    findings = examine({"t": make(rows(train * 2), rows(train))}, Packer(("t",), 2, 3, 6))
    order = [SEVERITIES.index(finding.severity) for finding in findings]
    assert order == sorted(order)
    leak = next(finding for finding in findings if finding.what == "leak")
    assert (leak.count, leak.rows) == (20, tuple(range(2, 12)))
    assert str(leak).endswith("(rows 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 ...)")


def test_plain_text_has_no_labels_to_contradict(tmp_path: Path, tokenizer: TextTokenizer, write: Write) -> None:
    train = write("p-train.csv", "text\n" + "".join(f"{text}\n" for text in [*words(0), words(0)[2]]))
    dev = write("p-dev.csv", "text\n" + "".join(f"{text}\n" for text in [*words(100), words(0)[1]]))
    (task,) = read_tasks([TaskSpec("p", "text", ("text",), None, train, dev)], tokenizer, tmp_path / "cache")
    assert {key: finding.rows for key, finding in found(task).items()} == {
        ("p", "train", "duplicates"): (22,),
        ("p", "dev", "leak"): (22,),
    }


def test_a_task_without_training_rows(make: Make) -> None:
    task = make(rows(words(0)), rows(words(100)))
    only_dev = Task(task.spec, task.labels, {"dev": task.splits["dev"]})
    assert found(only_dev, make(rows(words(200)), rows(words(300)), name="u")) == {}


def test_training_rows_that_are_not_used_leak_nothing(make: Make) -> None:
    texts = words(0, 40)
    used = make(rows(texts), rows(texts[:20]), name="used")
    unused = make(rows(texts), rows(texts[:20]), name="unused", trained=False)
    assert ("used", "dev", "leak") in found(used)
    assert not [key for key in found(unused) if "leak" in key[2]]
    between = found(used, unused)
    assert ("unused", "dev", "leak_between_tasks") in between
    assert ("used", "dev", "leak_between_tasks") not in between


def test_several_classes_that_contradict_each_other(make: Make) -> None:
    texts = words(0)
    labels = ["a|b", "a", "b|c", "c"]
    train = [[text, labels[i % 4]] for i, text in enumerate(texts)]
    same = make([*train, [texts[0], "b|a"]], [[text, "a"] for text in words(100)], kind="multilabel")
    assert ("t", "train", "contradictions") not in found(same)  # the same set in another order
    other = make([*train, [texts[0], "a|c"]], [[texts[1], "a|b"], [texts[2], "c|b"]], kind="multilabel", name="u")
    findings = found(other)
    assert findings["u", "train", "contradictions"].count == 2
    assert findings["u", "dev", "other_label"].rows == (2,)
