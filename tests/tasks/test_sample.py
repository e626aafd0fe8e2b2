"""The sample data is large enough, balanced, free of copies, and not solved by counting words."""

import csv
import json
import re
import runpy
from collections import Counter
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

SAMPLE = resources.files("polytask.tasks") / "sample"
TEXTS = {
    "opinions": ("text",),
    "questions": ("question1", "question2"),
    "similarity": ("sentence1", "sentence2"),
    "tickets": ("text",),
    "replies": ("message",),
}


def rows(name: str, part: str) -> list[dict[str, str]]:
    with (SAMPLE / f"{name}-{part}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def plain(text: str) -> str:
    return " ".join(words(text))


def share(one: str, other: str) -> float:
    a, b = set(words(one)), set(words(other))
    return len(a & b) / len(a | b)


def overlap(row: dict[str, str], columns: tuple[str, str]) -> float:
    return share(row[columns[0]], row[columns[1]])


def test_sizes_and_balance() -> None:
    opinions = {part: Counter(row["opinion"] for row in rows("opinions", part)) for part in ("train", "dev")}
    classes = {"very negative", "negative", "neutral", "positive", "very positive"}
    assert opinions["train"].keys() == opinions["dev"].keys() == classes
    assert sum(opinions["train"].values()) + sum(opinions["dev"].values()) >= 500
    questions = {part: Counter(row["duplicate"] for row in rows("questions", part)) for part in ("train", "dev")}
    assert sum(questions["train"].values()) + sum(questions["dev"].values()) >= 400
    for counts in [*opinions.values(), *questions.values()]:
        assert len(set(counts.values())) == 1
    scores = [float(row["similarity"]) for part in ("train", "dev") for row in rows("similarity", part)]
    assert len(scores) >= 300
    assert min(scores) >= 0
    assert max(scores) <= 5
    bands = Counter(min(int(score + 0.5), 5) for score in scores)
    assert min(bands.values()) > 0.8 * len(scores) / 6


def test_tickets_have_several_topics_in_many_combinations() -> None:
    topics = {part: [row["topics"].split("|") for row in rows("tickets", part)] for part in ("train", "dev")}
    counts = {part: Counter(name for names in found for name in names if name) for part, found in topics.items()}
    assert counts["train"].keys() == counts["dev"].keys()
    assert len(counts["train"]) == 8
    assert min(counts["train"].values()) >= 30
    assert min(counts["dev"].values()) >= 10
    everything = topics["train"] + topics["dev"]
    assert 0.3 < sum(len(names) > 1 for names in everything) / len(everything) < 0.7
    assert 0.02 < sum(names == [""] for names in everything) / len(everything) < 0.1
    assert len({tuple(names) for names in everything}) > 20
    assert all(names == sorted(names) for names in everything)


def test_replies_have_three_or_four_options_and_no_favourite_place() -> None:
    for part in ("train", "dev"):
        found = rows("replies", part)
        options = [[row[f"reply_{n}"] for n in range(4) if row[f"reply_{n}"]] for row in found]
        assert {len(one) for one in options} == {3, 4}
        assert all(len(set(one)) == len(one) for one in options)
        places = Counter(row["best"] for row in found)
        assert places.keys() == {"0", "1", "2", "3"}
        assert max(places.values()) < 0.35 * len(found)
        assert all(int(row["best"]) < len(one) for row, one in zip(found, options, strict=True))


def test_articles_are_pairs_whose_second_text_may_repeat() -> None:
    pairs = {part: [(row["question"], row["article"]) for row in rows("articles", part)] for part in ("train", "dev")}
    assert [len(pairs[part]) for part in ("train", "dev")] == [300, 110]
    for found in pairs.values():
        questions, articles = zip(*found, strict=True)
        assert len(set(questions)) == len(found)
        assert 0.8 * len(found) < len(set(articles)) < len(found)
    train, dev = ({plain(text) for pair in found for text in pair} for found in pairs.values())
    assert not train & dev


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_twice_and_none_in_both_parts(name: str) -> None:
    texts = {part: [plain(row[c]) for row in rows(name, part) for c in TEXTS[name]] for part in ("train", "dev")}
    for part, found in texts.items():
        assert not [text for text, count in Counter(found).items() if count > 1], part
        assert all(found), part
    assert not set(texts["train"]) & set(texts["dev"])


@pytest.mark.parametrize("name", TEXTS)
def test_no_near_copy_across_the_parts(name: str) -> None:
    train = [set(words(row[c])) for row in rows(name, "train") for c in TEXTS[name]]
    for row in rows(name, "dev"):
        for column in TEXTS[name]:
            own = set(words(row[column]))
            near = max(len(own & other) / len(own | other) for other in train)
            assert near < 0.75, row[column]


def test_words_are_varied_and_not_from_a_template() -> None:
    for name, columns in TEXTS.items():
        if name == "replies":  # each message is about several things
            continue
        texts = [row[c] for part in ("train", "dev") for row in rows(name, part) for c in columns]
        openings = Counter(tuple(words(text)[:2]) for text in texts)
        assert openings.most_common(1)[0][1] < 0.2 * len(texts), openings.most_common(3)
        runs = Counter(run for text in texts for run in zip(*(words(text)[i:] for i in range(5)), strict=False))
        assert runs.most_common(1)[0][1] < 0.02 * len(texts), runs.most_common(3)
        assert len({w for text in texts for w in words(text)}) > min(1500, 3 * len(texts))
        assert all(text == text.strip() and "  " not in text for text in texts)


def test_counting_shared_words_does_not_solve_the_pair_tasks() -> None:
    questions = rows("questions", "train") + rows("questions", "dev")
    shares = {
        answer: [overlap(r, TEXTS["questions"]) for r in questions if r["duplicate"] == answer]
        for answer in ("yes", "no")
    }
    assert abs(sum(shares["yes"]) / len(shares["yes"]) - sum(shares["no"]) / len(shares["no"])) < 0.08
    pairs = rows("similarity", "train") + rows("similarity", "dev")
    correlation = stats.spearmanr(
        [overlap(r, TEXTS["similarity"]) for r in pairs], [float(r["similarity"]) for r in pairs]
    )
    assert correlation.statistic < 0.6


def test_rows_are_not_sorted_by_label() -> None:
    labels = [row["opinion"] for row in rows("opinions", "train")]
    changes = sum(a != b for a, b in pairwise(labels))
    assert changes > 0.6 * len(labels)


def entities(part: str) -> list[dict[str, Any]]:
    with (SAMPLE / f"entities-{part}.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_entities_are_varied_and_lie_at_words() -> None:
    parts = {part: entities(part) for part in ("train", "dev")}
    texts = {part: [plain(row["text"]) for row in found] for part, found in parts.items()}
    assert len(set(texts["train"] + texts["dev"])) == 276
    kinds = {"person", "place", "organisation", "date"}
    for found in parts.values():
        counts = Counter(span["label"] for row in found for span in row["spans"])
        assert counts.keys() == kinds
        assert max(counts.values()) < 2 * min(counts.values())
        assert 0.05 < sum(not row["spans"] for row in found) / len(found) < 0.2
        for row in found:
            ends = [0, *(end for span in row["spans"] for end in (span["start"], span["end"]))]
            assert ends == sorted(ends)
            marked = [row["text"][span["start"] : span["end"]] for span in row["spans"]]
            assert all(text and text == text.strip() for text in marked)
    names = [
        {row["text"][span["start"] : span["end"]] for row in found for span in row["spans"] if span["label"] != "date"}
        for found in parts.values()
    ]
    assert len(names[1] & names[0]) < 0.2 * len(names[1])  # most names of dev are new


def test_inspections_are_long_and_tell_their_decision_in_the_middle() -> None:
    parts = {part: rows("inspections", part) for part in ("train", "dev")}
    for part, found in parts.items():
        counts = Counter(row["decision"] for row in found)
        assert counts == dict.fromkeys(("passed", "repair", "closed"), {"train": 40, "dev": 20}[part])
        lengths = sorted(len(words(row["report"])) for row in found)
        assert lengths[0] > 180
        assert lengths[len(lengths) // 2] > 250
    texts = [plain(row["report"]) for found in parts.values() for row in found]
    assert len(set(texts)) == 180
    # The first and the last 40 words have no word that only one decision has.
    for side in (slice(40), slice(-25, None)):
        found = {name: Counter[str]() for name in ("passed", "repair", "closed")}
        for row in parts["train"]:
            found[row["decision"]].update(set(words(row["report"])[side]))
        for name, own in found.items():
            others = set().union(*(found[other] for other in found if other != name))
            assert not [word for word, count in own.items() if count > 5 and word not in others]


def test_repairs_have_costs_that_no_single_circumstance_tells() -> None:
    parts = {part: rows("repairs", part) for part in ("train", "dev")}
    assert [len(found) for found in parts.values()] == [360, 120]
    texts = [plain(row["request"]) for found in parts.values() for row in found]
    assert len(set(texts)) == 480
    costs = {part: np.array([float(row["cost"]) for row in found]) for part, found in parts.items()}
    assert min(costs["train"].min(), costs["dev"].min()) > 0
    assert len(set(costs["train"])) > 150
    shared = [max(share(row["request"], other["request"]) for other in parts["train"]) for row in parts["dev"]]
    assert max(shared) < 0.75
    # The words count, and a straight line through all of them explains a part only.
    requests = {part: [row["request"] for row in found] for part, found in parts.items()}
    line = make_pipeline(CountVectorizer(), Ridge(3.0)).fit(requests["train"], costs["train"])
    assert 0.4 < stats.pearsonr(line.predict(requests["dev"]), costs["dev"]).statistic < 0.8
    faults = {part: [text.split(". ")[0] for text in found] for part, found in requests.items()}
    line = make_pipeline(CountVectorizer(), Ridge(3.0)).fit(faults["train"], costs["train"])
    assert stats.pearsonr(line.predict(faults["dev"]), costs["dev"]).statistic < 0.4


def test_answers_are_decided_by_the_source_only() -> None:
    parts = {part: rows("answers", part) for part in ("train", "dev")}
    for found in parts.values():
        asked = Counter((row["question"], row["answer"], row["supported"]) for row in found)
        # Each pair of question and answer is right as often as wrong.
        assert all(asked[question, answer, "yes"] == asked[question, answer, "no"] for question, answer, _ in asked)
        assert all(len({plain(row[column]) for column in ("question", "answer", "source")}) == 3 for row in found)
    texts = {part: {plain(row[c]) for row in parts[part] for c in ("question", "answer", "source")} for part in parts}
    assert not texts["train"] & texts["dev"]
    labels = {part: [row["supported"] for row in found] for part, found in parts.items()}
    for columns in (["source"], ["question", "answer", "source"]):
        joined = {part: [" ".join(row[c] for c in columns) for row in found] for part, found in parts.items()}
        words_only = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000))
        words_only.fit(joined["train"], labels["train"])
        assert words_only.score(joined["dev"], labels["dev"]) < 0.6, columns
    # Nor does the number of words that the answer and the source share decide, whatever the threshold.
    for found in parts.values():
        shares = [(overlap(row, ("answer", "source")), row["supported"] == "yes") for row in found]
        assert max(np.mean([(own >= least) == label for own, label in shares]) for least, _ in shares) < 0.6


@pytest.mark.parametrize("name", ["inspections", "repairs", "answers"])
def test_the_files_are_what_the_script_writes(name: str, tmp_path: Path) -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "recipes" / f"write_{name}.py"))
    script["write"](tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}-dev.csv", f"{name}-train.csv"]
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (SAMPLE / path.name).read_bytes()
