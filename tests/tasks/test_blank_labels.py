"""Rows with an empty label: broken, skipped and counted, or shared with tasks that have a label for them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytask.settings import TaskSpec
from polytask.tasks.shared_rows import SharedRows, shared_rows
from polytask.tasks.task import Task, read_tasks
from polytask.text.texts import texts_of
from polytask.text.tokenizer import TextTokenizer
from polytask.types import NO_LABEL, UserError, has_label

TABLE = """message,team,urgent,mood,topics,late,lost
one,a,yes,1,x|y,1,0
two,b,, ,x,,
three,,no,5,,0,1
four,,,,,,
five,a,yes,,[],1,1
six,b,no,2,y,,
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return str(path)


def spec(table: str, label: Any = "team", kind: Any = "classes", **fields: Any) -> TaskSpec:
    name = fields.pop("name", label if isinstance(label, str) else "columns")
    return TaskSpec(name, kind, ("message",), label, table, table, **fields)


def read(tokenizer: TextTokenizer, tmp_path: Path, *specs: TaskSpec) -> tuple[Task, ...]:
    return read_tasks(specs, tokenizer, tmp_path / "cache")


def group(table: str) -> list[TaskSpec]:
    fields: Any = {"share_rows": "g"}
    return [
        spec(table, "mood", "score", range=(1, 5), **fields),
        spec(table, "team", **fields),
        spec(table, "urgent", "yes_no", **fields),
        spec(table, "topics", "multilabel", **fields),
    ]


def test_they_stop_the_run_unless_skipped(tokenizer: TextTokenizer, tmp_path: Path, table: str) -> None:
    with pytest.raises(UserError) as error:
        read(tokenizer, tmp_path, spec(table))
    lines = str(error.value).splitlines()
    assert lines[1] == f"  {table}, line 4, column 'team': the label is empty"
    assert lines[-1] == "`blank_labels: skip` leaves out rows whose label is empty, and no others"


@pytest.mark.parametrize(
    ("label", "kind", "rows", "fields"),
    [
        ("team", "classes", [2, 3, 6, 7], {}),
        ("urgent", "yes_no", [2, 4, 6, 7], {}),
        ("mood", "score", [2, 4, 7], {"range": (1, 5)}),
        ("topics", "multilabel", [2, 3, 6, 7], {}),
        (("late", "lost"), "multilabel", [2, 4, 6], {}),
    ],
)
def test_skipped_rows_are_counted(
    tokenizer: TextTokenizer, tmp_path: Path, table: str, label: Any, kind: Any, rows: list[int], fields: Any
) -> None:
    (task,) = read(tokenizer, tmp_path, spec(table, label, kind, blank_labels="skip", **fields))
    for split in task.splits.values():
        assert split.rows.tolist() == rows
        assert split.num_blank == 6 - len(rows)
        assert split.num_broken == 0
        assert [example.row for example in split.examples()] == rows
    again = read(tokenizer, tmp_path, spec(table, label, kind, blank_labels="skip", **fields))  # from the cache
    assert again[0].splits["train"].num_blank == 6 - len(rows)


def test_an_empty_label_of_several_classes_is_no_class_unless_blanks_are_skipped(
    tokenizer: TextTokenizer, tmp_path: Path, table: str
) -> None:
    (kept,) = read(tokenizer, tmp_path, spec(table, "topics", "multilabel"))
    assert len(kept.splits["train"]) == 6
    (skipped,) = read(tokenizer, tmp_path, spec(table, "topics", "multilabel", blank_labels="skip"))
    assert skipped.splits["train"].labels.tolist() == [[1, 1], [1, 0], [0, 0], [0, 1]]


def test_other_faults_still_stop_the_run(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "faults.csv"
    path.write_text("message,team\none,a\n,b\n,\nfour,b\nfive\n")
    with pytest.raises(UserError) as error:
        read(tokenizer, tmp_path, spec(str(path), blank_labels="skip"))
    message = str(error.value)
    assert "4 broken rows" in message  # two in the training and two in the dev rows
    assert "line 3, column 'message': the text is empty" in message
    assert "line 6: 1 field" in message
    assert "line 4" not in message  # without a label, the text is not needed
    assert "blank_labels" not in message


def test_a_column_without_any_label(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("message,team\none,\ntwo,\n")
    with pytest.raises(UserError, match="no usable row for task 'team'; 2 rows have an empty label"):
        read(tokenizer, tmp_path, spec(str(path), blank_labels="skip"))


def test_null_nan_and_missing_keys_of_json_lines_are_blank(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"message": "one", "mood": 1},
        {"message": "two", "mood": None},
        {"message": "three", "mood": float("nan")},
        {"message": "four"},
        {"message": "five", "mood": "5"},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (task,) = read(tokenizer, tmp_path, spec(str(path), "mood", "score", range=(1, 5), blank_labels="skip"))
    assert task.splits["dev"].rows.tolist() == [1, 5]
    assert task.splits["dev"].num_blank == 3


# --- shared rows ------------------------------------------------------------------------------------------------------
def read_group(tokenizer: TextTokenizer, tmp_path: Path, table: str) -> SharedRows:
    tasks = read(tokenizer, tmp_path, *group(table))
    ((name, rows),) = shared_rows({task.spec.name: task.splits["train"] for task in tasks})
    assert name == "g"
    return rows


def test_the_rows_with_any_label(tokenizer: TextTokenizer, tmp_path: Path, table: str) -> None:
    rows = read_group(tokenizer, tmp_path, table)
    assert rows.rows.tolist() == [2, 3, 4, 6, 7]
    assert rows.num_unlabelled == 1
    assert rows.tasks == ("mood", "team", "urgent", "topics")
    assert rows.indices["mood"].tolist() == [0, -1, 1, -1, 2]
    assert rows.labels_of["team"].tolist() == [0, 1, NO_LABEL, 0, 1]
    assert rows.labels_of["mood"].tolist() == [0, NO_LABEL, 1, NO_LABEL, 0.25]
    assert has_label(rows.labels_of["topics"]).tolist() == [True, True, False, True, True]
    assert set(rows.partly_labelled) == {"mood", "team", "urgent", "topics"}


def test_texts_in_any_order_are_those_of_the_file(tokenizer: TextTokenizer, tmp_path: Path, table: str) -> None:
    rows = read_group(tokenizer, tmp_path, table)
    words = ["one", "two", "three", "five", "six"]
    wanted = {i: ids.tolist() for i, ids in enumerate(tokenizer.encode(words))}
    for order in ([0, 1, 2, 3, 4], [4, 2, 0], [1, 1, 3], [0, 2], [3]):
        assert [text.tolist() for (text,) in texts_of(rows, np.array(order))] == [wanted[i] for i in order]
    assert [rows.tokens(i)[0].tolist() for i in range(5)] == list(wanted.values())
    assert rows.lengths().tolist() == [[len(ids)] for ids in wanted.values()]


def test_a_broken_text_of_shared_rows_is_reported_once(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "faults.csv"
    path.write_text("message,team,urgent\none,a,yes\n ,b,no\nthree,b,no\n")
    dev = tmp_path / "dev.csv"
    dev.write_text("message,team,urgent\none,a,yes\n")
    specs = [spec(str(path), "team", share_rows="g"), spec(str(path), "urgent", "yes_no", share_rows="g")]
    with pytest.raises(UserError, match=r"^1 broken row;"):
        read(tokenizer, tmp_path, *(replace(one, dev=str(dev)) for one in specs))


def test_chosen_rows_are_those_of_each_task(tokenizer: TextTokenizer, tmp_path: Path, table: str) -> None:
    specs = [spec(table, "team", share_rows="g", rows=2), spec(table, "urgent", "yes_no", share_rows="g")]
    tasks = read(tokenizer, tmp_path, *specs)
    ((_, rows),) = shared_rows({task.spec.name: task.splits["train"] for task in tasks})
    assert rows.rows.tolist() == [2, 3, 4, 6, 7]
    assert rows.labels_of["team"].tolist() == [0, 1, NO_LABEL, NO_LABEL, NO_LABEL]
    assert rows.num_unlabelled is None
