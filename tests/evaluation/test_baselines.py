"""The baseline without training equals that computed by hand."""

from typing import Any

import numpy as np
import torch

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext
from polytask.encoders.bert import Bert, BertShape
from polytask.evaluation.baselines import MOST_ROWS, report_from, untrained_baseline
from polytask.heads import HEADS
from polytask.model import MultiTaskModel
from polytask.settings import TaskSpec
from polytask.text.packing import Packer
from polytask.training.journal import evaluation_line
from polytask.types import YES_NO, EvalReport, LabelSpace, MetricValue, TaskScore

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


def report(step: int, value: float, low: float, high: float, **baselines: Any) -> EvalReport:
    return EvalReport(step, "dev", {"t": TaskScore(0.3, {"f1": MetricValue(value, low, high)}, "f1", 90)}, baselines)


def test_a_line_of_the_journal_gives_its_report_back() -> None:
    simple = {"metric": "f1", "value": 0.6, "what": "the 10 nearest"}
    for written in (report(0, 0.7, 0.6, 0.8, t=simple), report(4, 0.7, 0.6, 0.8)):
        assert report_from(evaluation_line(written, False)) == written
