"""The numbers about a split equal those computed by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

from polytask.evaluation.metrics import chosen_metric
from polytask.settings import TaskSpec
from polytask.stream import Reading
from polytask.tasks.describe import SHOWN_BROKEN_ROWS, baseline, describe_split, label_balance
from polytask.tasks.task import Task, read_tasks
from polytask.text.packing import InputFormat, Packer
from polytask.text.tokenizer import TextTokenizer

Write = Callable[[str, str | bytes], str]
MakeTask = Callable[..., Task]


@pytest.fixture
def make(tmp_path: Path, tokenizer: TextTokenizer, write: Write) -> MakeTask:
    """make(kind, rows, **fields): a task with these csv rows; texts are letters, and a letter is a token."""

    def read(kind: str, rows: list[str], pair: bool = False, **fields: Any) -> Task:
        header = "a,b,label\n" if pair else "a,label\n"
        file = write("x.csv", header + "".join(f"{row}\n" for row in rows))
        spec = TaskSpec("t", kind, ("a", "b") if pair else ("a",), "label", file, file, **fields)  # type: ignore[arg-type]
        return read_tasks([spec], tokenizer, tmp_path / "cache")[0]

    return read


def described(task: Task, max_length: int, reading: Reading = "joined") -> dict[str, Any]:
    return describe_split(task.splits["dev"], task.labels, Packer(("t",), 2, 3, max_length), InputFormat(reading))


def test_one_text(make: MakeTask) -> None:
    task = make("classes", ["x,no", "x y z,no", "x y z x y z x y,yes", ",no"], broken_rows="skip")
    assert described(task, max_length=6) == {
        "rows": 3,
        "skipped": 1,
        "skipped_rows": [{"row": 5, "column": "a", "value": "", "problem": "the text is empty"}],
        "labels": {"names": ["no", "yes"], "counts": [2, 1]},
        "lengths": {  # 1, 3 and 8 tokens, with [CLS] and [SEP] 3, 5 and 10, the last of which is cut to 6
            "edges": [0, 1, 2, 3, 4, 5, 6],
            "counts": [0, 0, 0, 1, 0, 2],
            "mean": pytest.approx((3 + 5 + 6) / 3),
            "max": 10,
            "truncated": 1,
        },
    }


def test_pairs_in_one_sequence_or_two(make: MakeTask) -> None:
    task = make("yes_no", ["x y,x,1", "x,x y z x,0"], pair=True)
    together, separate = (described(task, 64, reading)["lengths"] for reading in ("joined", "separate"))
    assert (together["max"], together["mean"], together["truncated"]) == (8, (6 + 8) / 2, 0)
    assert (separate["max"], separate["mean"]) == (6, (4 + 6) / 2)  # the longer text of each pair
    assert len(together["counts"]) == 20
    assert sum(together["counts"]) == 2


def test_no_more_than_fifty_skipped_rows_are_shown(make: MakeTask) -> None:
    task = make("yes_no", ["x,1", *[",1"] * 60], broken_rows="skip")
    found = described(task, 16)
    assert (found["skipped"], len(found["skipped_rows"])) == (60, SHOWN_BROKEN_ROWS)


def test_the_balance_of_scores_is_a_histogram_over_their_range(make: MakeTask) -> None:
    task = make("score", ["x,0", "x,0.1", "x,2.6", "x,5"], range=(0, 5))
    found = label_balance(task.splits["dev"], task.labels)
    assert found["edges"] == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5])
    assert found["counts"] == [2, 0, 0, 0, 0, 1, 0, 0, 0, 1]


def test_the_balance_of_scores_without_a_range_has_the_ends_of_the_file(make: MakeTask) -> None:
    task = make("score", ["x,0", "x,1", "x,2", "x,4"])
    found = label_balance(task.splits["dev"], task.labels)
    assert (found["edges"][0], found["edges"][-1]) == (0, 4)


def test_classes_that_dev_does_not_have_are_counted_as_none(make: MakeTask) -> None:
    task = make("classes", ["x,b", "x,b"], classes=("a", "b", "c"))
    assert label_balance(task.splits["dev"], task.labels) == {"names": ["a", "b", "c"], "counts": [0, 2, 0]}


# --- what guessing scores ---------------------------------------------------------------------------------------------


def guess(task: Task, metric: str) -> dict[str, Any]:
    return baseline(task.splits["dev"], task.labels, chosen_metric(metric, task.spec.kind, "metric"))


def test_the_commonest_class(make: MakeTask) -> None:
    task = make("classes", ["x,a", "x,b", "x,b", "x,c", "x,b"])
    found = {metric: guess(task, metric) for metric in ("accuracy", "f1", "matthews")}
    gold, said = task.splits["dev"].labels, [1] * 5
    assert found["accuracy"] == {"metric": "accuracy", "value": 0.6, "what": "always 'b'"}
    # b has precision 3/5 and recall 1; a and c have nothing.
    assert found["f1"] == {"metric": "f1", "value": pytest.approx(0.75 / 3), "what": "always 'b'"}
    assert found["f1"]["value"] == pytest.approx(f1_score(gold, said, average="macro"))
    assert found["matthews"] == {"metric": "matthews", "value": 0.0, "what": "always 'b'"}
    assert matthews_corrcoef(gold, said) == 0


def test_yes_and_no(make: MakeTask) -> None:
    task = make("yes_no", ["x,1", "x,0", "x,0", "x,0"])
    assert guess(task, "accuracy") == {"metric": "accuracy", "value": 0.75, "what": "always 'no'"}
    # Always no finds no yes at all; always yes has precision 1/4 and recall 1.
    assert guess(task, "f1") == {"metric": "f1", "value": pytest.approx(0.4), "what": "always 'yes'"}
    assert guess(task, "matthews") == {"metric": "matthews", "value": 0.0, "what": "always 'no'"}


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
@pytest.mark.parametrize("rows", [["x,0.3", "x,1.7", "x,5"], ["x,0", "x,0"], ["x,0.1"] * 7])
def test_the_same_score_for_all_has_no_correlation(make: MakeTask, metric: str, rows: list[str]) -> None:
    task = make("score", rows, range=(0, 5))
    expected = {"metric": metric, "value": 0.0, "what": "always the same score"}
    assert guess(task, metric) == expected


def test_guessing_is_the_best_constant_in_the_metrics_own_direction(make: MakeTask) -> None:
    scores = make("score", ["x,0", "x,0", "x,0", "x,5"], range=(0, 5))
    assert guess(scores, "mae")["value"] == pytest.approx(1.25)  # always the median, in the task's own range
    assert guess(scores, "rmse")["value"] == pytest.approx(5 * (3 / 16) ** 0.5)  # always the mean
    assert guess(scores, "r2")["value"] == pytest.approx(0.0)
    answers = make("yes_no", ["x,1", "x,0", "x,0", "x,0"])
    entropy = guess(answers, "log_loss")
    assert entropy["value"] == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))
    assert entropy["what"] == "always the shares of the classes"
    assert guess(answers, "auc")["value"] == 0.5


def test_several_classes_per_row(make: MakeTask) -> None:
    task = make("multilabel", ["x,p|q", "y,p", "z,", "w,r|p"])
    dev = task.splits["dev"]
    assert label_balance(dev, task.labels) == {"names": ["p", "q", "r"], "counts": [3, 1, 1], "without_class": 1}
    micro = baseline(dev, task.labels, chosen_metric("f1_micro", "multilabel", "here"))
    gold = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1]])
    constants = [np.tile(row, (4, 1)) for row in ([0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1])]
    assert micro["value"] == max(f1_score(gold, constant, average="micro", zero_division=0) for constant in constants)
    assert micro["what"] == "always 'p'"
    assert baseline(dev, task.labels, chosen_metric("hamming_loss", "multilabel", "here"))["what"] == "always 'p'"
    shares = baseline(dev, task.labels, chosen_metric("average_precision", "multilabel", "here"))
    assert shares["value"] == pytest.approx(np.mean([3 / 4, 1 / 4, 1 / 4]))
    assert shares["what"] == "always the shares of the classes"
