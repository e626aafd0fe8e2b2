"""The baseline without training equals that computed by hand; sentences about the start of a run."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext
from polytask.encoders.bert import Bert, BertShape
from polytask.evaluation.baselines import MOST_ROWS, against, remarks, report_from, untrained_baseline
from polytask.heads import HEADS
from polytask.model import MultiTaskModel
from polytask.text.packing import Packer
from polytask.training.journal import evaluation_line
from polytask.types import YES_NO, EvalReport, LabelSpace, MetricValue, TaskScore, TaskSpec

SHAPE = BertShape(vocabulary=40, layers=1, hidden=16, heads=2, ffn=32, positions=32)
SCORES = LabelSpace("score", low=0.0, high=5.0)
MOODS = LabelSpace("classes", ("low", "middle", "high"))


class Rows:
    """Texts of one token each, and labels."""

    def __init__(self, tokens: list[tuple[int, ...]], labels: Any) -> None:
        self._tokens, self.labels = tokens, np.asarray(labels)

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self, index: int) -> tuple[np.ndarray, ...]:
        return tuple(np.array([token]) for token in self._tokens[index])


def found(kind: str, labels: LabelSpace, train: Rows, dev: Rows, pair: bool = False, **fields: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    head = HEADS["cross" if pair else "linear"]("t", labels, SHAPE.hidden)
    context = AdapterContext(("t",), SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.ffn, 0.0, make=lambda inner: None)
    model = MultiTaskModel(Bert(SHAPE), ADAPTERS["none"](context), {"t": head})
    spec = TaskSpec("t", kind, ("a", "b") if pair else ("a",), "label", "", "", **fields)  # type: ignore[arg-type]
    return untrained_baseline(model, spec, labels, {"train": train, "dev": dev}, Packer(("t",), 2, 3, 32))


def test_the_same_text_has_the_label_it_has_in_training() -> None:
    train = Rows([(5 + i % 3,) for i in range(60)], [i % 3 for i in range(60)])
    dev = Rows([(7,), (5,), (6,), (5,)], [2, 0, 1, 1])
    nearest = found("classes", MOODS, train, dev)
    assert nearest == {
        "metric": "accuracy",
        "value": 0.75,
        "what": "the 10 nearest of 60 training rows, untrained encoder",
    }
    assert found("classes", MOODS, train, dev, metric="log_loss")["value"] > 0  # of the neighbours' shares


def test_scores_of_pairs_are_the_cosine_of_the_two_texts() -> None:
    dev = Rows([(5, 5), (5, 9), (8, 8), (9, 17)], [1.0, 0.0, 1.0, 0.0])
    zero_shot = found("score", SCORES, dev, dev, pair=True)
    assert zero_shot["value"] > 0.9
    assert zero_shot["what"] == "the cosine of the two texts, untrained encoder"
    assert found("score", SCORES, dev, dev, pair=True, metric="mae")["value"] < 2.5  # in the range of the scores


def test_large_splits_are_sampled() -> None:
    many = Rows([(5 + i % 2,) for i in range(MOST_ROWS + 500)], [float(i % 2) for i in range(MOST_ROWS + 500)])
    nearest = found("yes_no", YES_NO, many, many)
    assert nearest["value"] == 1.0
    assert nearest["what"] == "the 10 nearest of 2,000 training rows, untrained encoder, on 2,000 dev rows"


@pytest.mark.parametrize(
    ("low", "high", "greater", "expected"),
    [
        (0.6, 0.8, True, "better"),
        (0.6, 0.8, False, "worse"),
        (0.1, 0.3, True, "worse"),
        (0.1, 0.3, False, "better"),
        (0.4, 0.6, True, "no clear difference"),
    ],
)
def test_a_verdict_needs_the_whole_interval(low: float, high: float, greater: bool, expected: str) -> None:
    assert against({"low": low, "high": high}, 0.5, greater) == expected


def report(step: int, value: float, low: float, high: float, **baselines: Any) -> EvalReport:
    return EvalReport(step, "dev", {"t": TaskScore(0.3, {"f1": MetricValue(value, low, high)}, "f1", 90)}, baselines)


def test_remarks_say_what_training_did_not_improve() -> None:
    simple = {"metric": "f1", "value": 0.6, "what": "the 10 nearest"}
    start = report(0, 0.751, 0.7, 0.8, t=simple)
    (sentence,) = remarks(report(80, 0.773, 0.71, 0.83), start, "mean")
    assert sentence == ("t: f1 0.773 [0.710, 0.830] is not clearly better than the model at step 0 (0.751).")
    better, worse, unclear = remarks(report(80, 0.6, 0.55, 0.65), start, "mean")
    assert better == (
        "The model at step 0 scored better on dev, by the mean of the tasks, than the best checkpoint (step 80): "
        "0.751 before training, 0.600 after."
    )
    assert worse.startswith("t: f1 0.600 [0.550, 0.650] is worse than the model at step 0 (0.751).")
    assert unclear.endswith("is not clearly better than the 10 nearest (0.600).")
    assert not remarks(report(80, 0.9, 0.88, 0.92), start, "mean")
    assert len(remarks(report(80, 0.6, 0.55, 0.65), start, "last")) == 2  # no best checkpoint to speak of


def test_remarks_compare_the_tasks_that_both_reports_have() -> None:
    start, trained = report(0, 0.7, 0.6, 0.8), report(80, 0.9, 0.88, 0.92)
    old = TaskScore(0.3, {"f1": MetricValue(0.2, 0.1, 0.3)}, "f1", 90)
    assert not remarks(replace(trained, tasks={**trained.tasks, "old": old}), start, "mean")


def test_a_line_of_the_journal_gives_its_report_back() -> None:
    simple = {"metric": "f1", "value": 0.6, "what": "the 10 nearest"}
    for written in (report(0, 0.7, 0.6, 0.8, t=simple), report(4, 0.7, 0.6, 0.8)):
        assert report_from(evaluation_line(written, False)) == written
