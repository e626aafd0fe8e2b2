"""A source is tokenized once, and again after damage or after a change that affects the result."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from polytask.settings import TaskSpec
from polytask.tasks import caching
from polytask.tasks.sources.source import BrokenRow
from polytask.tasks.task import read_tasks
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError

Write = Callable[[str, str | bytes], str]


def message(specs: list[TaskSpec], tokenizer: TextTokenizer, cache: Path) -> str:
    with pytest.raises(UserError) as error:
        read_tasks(specs, tokenizer, cache)
    return str(error.value)


def test_skipped_rows_are_remembered_and_the_cache_remembers_them_too(
    tmp_path: Path, tokenizer: TextTokenizer, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = f"text,same\na,1\n,0\nb,{'x' * 100}\nc,0\n"
    spec = TaskSpec(
        "t", "yes_no", ("text",), "same", write("t.csv", content), write("d.csv", content), broken_rows="skip"
    )
    (first,) = read_tasks([spec], tokenizer, tmp_path / "cache")
    monkeypatch.setattr(caching, "_build_store", None)  # a second reading must not build
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
    monkeypatch.setattr(caching, "BROKEN_KEPT", 3)
    train = write("t.csv", "text,same\na,1\n" + ",1\n" * 10)
    (task,) = read_tasks(
        [TaskSpec("t", "yes_no", ("text",), "same", train, train, broken_rows="skip")], tokenizer, tmp_path / "cache"
    )
    assert (len(task.splits["train"].broken), task.splits["train"].num_broken) == (3, 10)


def test_a_changed_file_a_damaged_store_and_another_recipe_are_read_again(
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
    with pytest.raises(UserError, match=r"o-train\.csv: the file has changed since its rows were read"):
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
    monkeypatch.setattr(caching, "BATCH_ROWS", 4)
    monkeypatch.setattr(caching, "BATCH_CHARACTERS", 12)
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
    assert "cannot write the cache" in message([opinions], tokenizer, tmp_path / "file")
    assert "set POLYTASK_CACHE to another folder" in message([opinions], tokenizer, tmp_path / "file")


def test_meta_is_plain_json(tmp_path: Path, tokenizer: TextTokenizer, opinions: TaskSpec) -> None:
    (task,) = read_tasks([opinions], tokenizer, tmp_path / "cache")
    header = json.loads((task.splits["train"].store.folder / "meta.json").read_text())
    dialect = {"delimiter": ",", "quoting": "minimal"}
    assert header["meta"] == {"names": ["10", "9"], "broken": [], "num_broken": 0, "dialect": dialect}
