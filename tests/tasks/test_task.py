"""Tasks are read whole, cached, and refused with every broken row named at once."""

import json
import string
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polytask.tasks import task as task_module
from polytask.tasks.task import BrokenRow, default_cache, read_tasks, read_texts
from polytask.text.tokenizer import TextTokenizer
from polytask.types import Example, LabelSpace, TaskSpec, UserError

Write = Callable[[str, str], str]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    letters = string.ascii_lowercase + string.digits
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    return TextTokenizer.load(folder)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str) -> str:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return str(tmp_path / name)

    return write_file


@pytest.fixture
def opinions(write: Write) -> TaskSpec:
    train = write("o-train.csv", "text,opinion\nab,10\nc d,9\nab,10.0\n")
    dev = write("o-dev.csv", "text,opinion\nx,9\ny,10\n")
    return TaskSpec("opinions", "classes", ("text",), "opinion", train, dev)


def message(specs: list[TaskSpec], tokenizer: TextTokenizer, cache: Path) -> str:
    with pytest.raises(UserError) as error:
        read_tasks(specs, tokenizer, cache)
    return str(error.value)


def test_classes_pairs_and_scores(tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, write: Write) -> None:
    pairs = write("p.jsonl", '{"a": "x y", "b": "z", "same": true}\n{"a": "q", "b": 12, "same": "No"}\n')
    scores = write("s.tsv", "a\tb\tscore\nx\ty\t0\nx\tz\t5\nq\tr\t2.5\n")
    specs = [
        opinions,
        TaskSpec("same", "yes_no", ("a", "b"), "same", pairs, pairs, test=pairs),
        TaskSpec("near", "score", ("b", "a"), "score", scores, scores, range=(0, 5)),
    ]
    classes, same, near = read_tasks(specs, tokenizer, tmp_path / "cache")
    assert classes.labels == LabelSpace("classes", ("9", "10"))
    assert classes.splits["train"].labels.tolist() == [1, 0, 1]
    assert classes.splits["dev"].labels.tolist() == [0, 1]
    assert classes.splits["train"].labels.dtype == np.int64
    assert classes.splits["train"].rows.tolist() == [2, 3, 4]
    assert classes.splits["train"].tokens(0)[0].tolist() == tokenizer.encode(["ab"])[0].tolist()
    assert list(classes.splits) == ["train", "dev"]
    assert list(same.splits) == ["train", "dev", "test"]
    assert same.splits["test"].labels.tolist() == [1.0, 0.0]
    assert same.splits["train"].labels.dtype == np.float32
    assert list(same.splits["train"].examples()) == [Example(("x y", "z"), "yes", 1), Example(("q", "12"), "no", 2)]
    assert near.splits["train"].labels.tolist() == [0.0, 1.0, 0.5]
    assert [example.label for example in near.splits["dev"].examples()] == [0.0, 5.0, 2.5]
    assert [len(text) for text in near.splits["train"].tokens(0)] == [1, 1]
    assert next(near.splits["train"].examples()).texts == ("y", "x")


def test_given_classes_keep_their_order(tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec) -> None:
    spec = TaskSpec(**{**vars(opinions), "classes": ("10", "9", "8")})
    (task,) = read_tasks([spec], tokenizer, tmp_path)
    assert task.labels.classes == ("10", "9", "8")
    assert task.splits["train"].labels.tolist() == [0, 1, 0]
    assert [example.label for example in task.splits["dev"].examples()] == ["9", "10"]


def test_everything_wrong_with_any_task_is_told_at_once(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, write: Write
) -> None:
    bad_text = write("text.csv", "text,opinion\n ,9\nfine,9\nfine,\n")
    bad_dev = write("dev.csv", "text,opinion\nx,11\nragged,9,9\n")
    scores = write("scores.csv", "text,score\na,7\nb,high\nc,1\n")
    specs = [
        TaskSpec("one", "classes", ("text",), "opinion", bad_text, bad_text),
        TaskSpec("two", "classes", ("text",), "opinion", opinions.train, bad_dev),
        TaskSpec("three", "score", ("text",), "score", scores, scores, range=(0, 5)),
        TaskSpec("four", "classes", ("txet",), "label", opinions.train, str(tmp_path / "none.csv")),
    ]
    lines = message(specs, tokenizer, tmp_path / "cache").splitlines()
    assert lines == [
        f"{bad_text}: column 'opinion' of task 'one' has only the class '9'; expected two or more classes",
        f"{opinions.train}: no column 'txet'; its columns are: text, opinion; did you mean 'text'?",
        f"{opinions.train}: no column 'label'; its columns are: text, opinion",
        f"{tmp_path / 'none.csv'}: no such file",
        "10 broken rows; put them right, or set `broken_rows: skip` to leave them out:",
        *[f"  {bad_text}, line 2, column 'text': ' ': the text is empty"],
        *[f"  {bad_text}, line 4, column 'opinion': the label is empty"],
        *[f"  {bad_text}, line 2, column 'text': ' ': the text is empty"],
        *[f"  {bad_text}, line 4, column 'opinion': the label is empty"],
        f"  {bad_dev}, line 2, column 'opinion': '11': not among the labels of the training rows; expected 9, 10",
        f"  {bad_dev}, line 3: 3 fields, expected 2 as in the header (read with delimiter comma and quoting minimal)",
        *[
            f"  {scores}, line 2, column 'score': '7': outside the range; expected a number from 0 to 5",
            f"  {scores}, line 3, column 'score': 'high': not a number; expected a number from 0 to 5",
        ]
        * 2,
    ]


def test_many_broken_rows_are_counted_and_the_first_twenty_shown(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec, write: Write
) -> None:
    rows = "".join(f"{'long ' * 50},{i}\n" for i in range(1500))
    train = write("t.csv", f"text,label\ngood,1\n{rows}")
    spec = TaskSpec("t", "yes_no", ("text",), "label", train, train)
    lines = message([spec], tokenizer, tmp_path / "cache").splitlines()
    assert lines[0].startswith("2,996 broken rows;")
    assert len(lines) == 22
    assert lines[-1] == f"  ... and 2,976 more (2,996 in {train})"


def test_skipped_rows_are_remembered_and_the_cache_remembers_them_too(
    tmp_path: Path, tokenizer: TextTokenizer, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = f"text,same\na,1\n,0\nb,{'x' * 100}\nc,0\n"
    spec = TaskSpec(
        "t", "yes_no", ("text",), "same", write("t.csv", content), write("d.csv", content), broken_rows="skip"
    )
    (first,) = read_tasks([spec], tokenizer, tmp_path / "cache")
    monkeypatch.setattr(task_module, "_build_store", None)  # a second reading must not build
    (again,) = read_tasks([spec], tokenizer, tmp_path / "cache")
    for split in (first.splits["train"], again.splits["train"], again.splits["dev"]):
        assert len(split) == 2
        assert split.num_broken == 2
        assert split.rows.tolist() == [2, 5]
        assert [example.texts for example in split.examples()] == [("a",), ("c",)]
        empty, wrong = split.broken
        assert empty == BrokenRow(split.source, "line", 3, "text", "", "the text is empty")
        assert (wrong.row, wrong.column, len(wrong.value)) == (4, "same", 80)
        assert wrong.problem.startswith("neither yes nor no")
    assert first.splits["train"].fingerprint == again.splits["dev"].fingerprint
    stop = TaskSpec(**{**vars(spec), "broken_rows": "stop"})
    assert message([stop], tokenizer, tmp_path / "cache").startswith("4 broken rows;")


def test_kept_broken_rows_are_capped(
    tmp_path: Path, tokenizer: TextTokenizer, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "BROKEN_KEPT", 3)
    train = write("t.csv", "text,same\na,1\n" + ",1\n" * 10)
    (task,) = read_tasks(
        [TaskSpec("t", "yes_no", ("text",), "same", train, train, broken_rows="skip")], tokenizer, tmp_path / "cache"
    )
    assert (len(task.splits["train"].broken), task.splits["train"].num_broken) == (3, 10)


def test_no_usable_row_is_an_error_even_when_skipping(tmp_path: Path, tokenizer: TextTokenizer, write: Write) -> None:
    train = write("t.csv", "text,same\n,1\n")
    spec = TaskSpec("t", "yes_no", ("text",), "same", train, train, broken_rows="skip")
    expected = f"{train}: not one usable row for task 't'; the first: {train}, line 2, column 'text': the text is empty"
    assert message([spec], tokenizer, tmp_path / "cache") == expected


def test_yes_no_with_one_value_is_fine(tmp_path: Path, tokenizer: TextTokenizer, write: Write) -> None:
    train = write("t.csv", "text,same\na,yes\nb,yes\n")
    (task,) = read_tasks([TaskSpec("t", "yes_no", ("text",), "same", train, train)], tokenizer, tmp_path / "cache")
    assert task.splits["train"].labels.tolist() == [1.0, 1.0]


def test_a_changed_file_a_damaged_store_and_another_recipe_are_read_anew(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec
) -> None:
    cache = tmp_path / "cache"
    (before,) = read_tasks([opinions], tokenizer, cache)
    stores = set((cache / "tokens").iterdir())
    for folder in stores:
        (folder / "tokens").write_bytes(b"")
    (repaired,) = read_tasks([opinions], tokenizer, cache)
    assert set((cache / "tokens").iterdir()) == stores
    assert repaired.splits["train"].tokens(1)[0].tolist() == tokenizer.encode(["c d"])[0].tolist()
    Path(opinions.train).write_text("text,opinion\nq,9\nab,10\n")
    (changed,) = read_tasks([opinions], tokenizer, cache)
    assert len(changed.splits["train"]) == 2
    assert changed.splits["train"].fingerprint != before.splits["train"].fingerprint
    with pytest.raises(UserError, match=r"o-train\.csv: changed since its rows were read"):
        list(before.splits["train"].examples())
    short = TextTokenizer(tokenizer._tokenizer, max_tokens=1)
    (cut,) = read_tasks([opinions], short, cache)
    assert cut.splits["train"].store.lengths().max() == 1


def test_dev_is_read_again_when_the_training_classes_change(
    tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec
) -> None:
    read_tasks([opinions], tokenizer, tmp_path / "cache")
    Path(opinions.train).write_text("text,opinion\nq,9\nab,8\n")
    assert "o-dev.csv, line 3, column 'opinion': '10': not among the labels" in message(
        [opinions], tokenizer, tmp_path / "cache"
    )


def test_batches_do_not_change_what_is_stored(
    tmp_path: Path, tokenizer: TextTokenizer, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = write("t.csv", "a,b,same\n" + "".join(f"t{i},u{i} v,{i % 2}\n" for i in range(11)))
    spec = TaskSpec("t", "yes_no", ("a", "b"), "same", train, train)
    (whole,) = read_tasks([spec], tokenizer, tmp_path / "one")
    monkeypatch.setattr(task_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(task_module, "BATCH_CHARACTERS", 12)
    (parts,) = read_tasks([spec], tokenizer, tmp_path / "two")
    for name in ("tokens", "offsets", "labels", "rows", "meta.json"):
        files = [task.splits["train"].store.folder / name for task in (whole, parts)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_memory_does_not_grow_with_the_file(tmp_path: Path, tokenizer: TextTokenizer, write: Write) -> None:
    peaks = []
    for count in (6_000, 18_000):
        train = write(f"{count}.csv", "text,same\n" + f"{'word ' * 20},1\n,1\n" * (count // 2))
        spec = TaskSpec("t", "yes_no", ("text",), "same", train, train, broken_rows="skip")
        tracemalloc.start()
        read_tasks([spec], tokenizer, tmp_path / "cache")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_a_cache_that_cannot_be_written(tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec) -> None:
    (tmp_path / "file").write_text("")
    assert "the cache cannot be written" in message([opinions], tokenizer, tmp_path / "file")
    assert "set POLYTASK_CACHE to another folder" in message([opinions], tokenizer, tmp_path / "file")


def test_too_many_classes_names_the_column(
    tmp_path: Path, tokenizer: TextTokenizer, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polytask.tasks.labels.MOST_CLASSES", 2)
    train = write("t.csv", "text,label\na,x\nb,y\nc,z\n")
    found = message([TaskSpec("t", "classes", ("text",), "label", train, train)], tokenizer, tmp_path / "cache")
    assert found == f"{train}, line 4, column 'label': more than 2 different labels; is this the label column?"


def test_default_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("POLYTASK_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() == tmp_path / ".cache/polytask"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_cache() == Path("/x/polytask")
    monkeypatch.setenv("POLYTASK_CACHE", "/own")
    assert default_cache() == Path("/own")


def test_read_texts_gives_all_columns(write: Write) -> None:
    source = write("in.jsonl", '{"id": 7, "a": "x", "b": "y", "note": null}\n{"id": 8, "a": "z", "b": 1}\n')
    rows = list(read_texts(source, ["b", "a"]))
    assert rows[0] == (1, {"id": 7, "a": "x", "b": "y", "note": None}, ("y", "x"))
    assert rows[1] == (2, {"id": 8, "a": "z", "b": 1, "note": None}, ("1", "z"))


def test_read_texts_errors_name_the_place(write: Write) -> None:
    source = write("in.csv", "id,text\n1,fine\n2,\n")
    rows = read_texts(source, ["text"])
    assert next(rows)[2] == ("fine",)
    with pytest.raises(UserError, match=r"in\.csv, line 3, column 'text': the text is empty"):
        next(rows)
    with pytest.raises(UserError, match="no column 'txt'; its columns are: id, text; did you mean 'text'"):
        read_texts(source, ["txt"])  # at once, not when the first row is asked for
    with pytest.raises(UserError, match="line 2: 1 fields, expected 2"):
        list(read_texts(write("ragged.csv", "id,text\n1\n"), ["text"]))


def test_meta_is_plain_json(tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec) -> None:
    (task,) = read_tasks([opinions], tokenizer, tmp_path / "cache")
    header = json.loads((task.splits["train"].store.folder / "meta.json").read_text())
    assert header["meta"] == {"names": ["10", "9"], "broken": [], "num_broken": 0}
