"""Predictions for files, from Python: memory stays flat because rows are never held together."""

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polytask import Finished, Predictor, UserError, load, predict_file
from polytask.serving import examples as module
from polytask.serving.examples import chunks


def test_two_tasks_one_after_the_other(tiny_run: Finished, tmp_path: Path) -> None:
    model = load(tiny_run.folder)
    (tmp_path / "in.jsonl").write_text('{"text": "good", "n": 1}\n{"text": "bad", "n": 2}\n')
    assert predict_file(model, "opinion", str(tmp_path / "in.jsonl"), tmp_path / "a.csv").rows == 2
    header = (tmp_path / "a.csv").read_text().splitlines()[0]
    assert header == "text,n,predicted_opinion,probability_opinion,tokens_opinion,truncated_opinion"


def test_no_such_folder_for_the_output(tiny_run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\ngood\n")
    with pytest.raises(UserError, match=r"the folder .* does not exist"):
        predict_file(load(tiny_run.folder), "opinion", str(tmp_path / "in.csv"), tmp_path / "no" / "out.csv")


COLUMNS = "text,question1,question2,sentence1,sentence2"


def test_without_task_all_tasks_with_their_columns_are_predicted(
    tiny_run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 3)  # so that rows cross the borders of chunks
    words = ["one", "two words", "three short words", "and now four words", "the fifth has five words", "six", "seven"]
    rows = [f"{a},{b},{c},{a},{b}" for a, b, c in zip(words, words[1:] + words[:1], words[2:] + words[:2], strict=True)]
    (tmp_path / "in.csv").write_text("\n".join([COLUMNS, *rows]) + "\n")
    model = load(tiny_run.folder)
    assert predict_file(model, None, str(tmp_path / "in.csv"), tmp_path / "all.csv").rows == 7
    with (tmp_path / "all.csv").open(newline="") as file:
        together = list(csv.DictReader(file))
    parts = "predicted", "probability", "tokens", "truncated"
    added = [f"{part}_{task}" for task in ("opinion", "question") for part in parts]
    added += [f"{part}_similarity" for part in ("predicted", "tokens", "truncated")]
    assert list(together[0]) == [*COLUMNS.split(","), *added]
    for task in model.tasks:
        predict_file(model, task, str(tmp_path / "in.csv"), tmp_path / "one.csv", force=True)
        with (tmp_path / "one.csv").open(newline="") as file:
            alone = list(csv.DictReader(file))
        assert [row["text"] for row in alone] == words
        if task == "similarity":
            assert [float(row[f"predicted_{task}"]) for row in together] == pytest.approx(
                [float(row[f"predicted_{task}"]) for row in alone], abs=1e-4
            )
        else:
            assert [row[f"predicted_{task}"] for row in together] == [row[f"predicted_{task}"] for row in alone]


def test_only_tasks_that_fit(tiny_run: Finished, tmp_path: Path) -> None:
    model = load(tiny_run.folder)
    (tmp_path / "in.jsonl").write_text('{"question1": "a", "question2": "b", "sentence1": "c"}\n')
    predict_file(model, None, str(tmp_path / "in.jsonl"), tmp_path / "out.jsonl")
    found = json.loads((tmp_path / "out.jsonl").read_text())
    assert [key for key in found if key.startswith("predicted_")] == ["predicted_question"]
    predict_file(model, None, str(tmp_path / "in.jsonl"), tmp_path / "two.jsonl", ["question1", "sentence1"])
    found = json.loads((tmp_path / "two.jsonl").read_text())
    assert [key for key in found if key.startswith("predicted_")] == ["predicted_question", "predicted_similarity"]
    (tmp_path / "in.jsonl").write_text('{"note": "a"}\n')
    with pytest.raises(
        UserError, match=r"must have the text columns of a task \(opinion: text; question: question1, question2; sim"
    ):
        predict_file(model, None, str(tmp_path / "in.jsonl"), tmp_path / "no.jsonl")
    with pytest.raises(UserError, match=r"found 3 text\(s\), but the tasks take: opinion 1, question 2, similarity 2"):
        predict_file(model, None, str(tmp_path / "in.jsonl"), tmp_path / "no.jsonl", ["note"] * 3)


Predict = Callable[..., Path]


@pytest.fixture
def predict(tiny_run: Finished, tmp_path: Path) -> Predict:
    """predict(content, "in.csv", "out.csv", ...): writes the input, predicts opinions, gives the output's path."""
    model = load(tiny_run.folder)

    def run(content: str | bytes, source: str, target: str, tasks: str | None = "opinion", **options: Any) -> Path:
        (tmp_path / source).write_bytes(content.encode() if isinstance(content, str) else content)
        predict_file(model, tasks, str(tmp_path / source), tmp_path / target, **options)
        return tmp_path / target

    return run


@pytest.fixture
def no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong is found before the first prediction."""

    def answer(*_: Any) -> None:
        raise AssertionError("a prediction was made")

    monkeypatch.setattr(Predictor, "answer", answer)


LINES = """{"text": "good", "first": 1}
{"text": "bad", "later": {"a": [1, null]}, "first": null}
{"later": "only"}
"""
ADDED = ("predicted_opinion", "probability_opinion", "tokens_opinion", "truncated_opinion")


def test_json_lines_keep_their_own_keys(predict: Predict) -> None:
    rows = [json.loads(line) for line in predict(LINES, "in.jsonl", "out.jsonl").read_text().splitlines()]
    assert [{key: value for key, value in row.items() if key not in ADDED} for row in rows] == [
        json.loads(line) for line in LINES.splitlines()
    ]
    assert [[row[key] is None for key in ADDED] for row in rows] == [[False] * 4, [False] * 4, [True] * 4]


def test_csv_and_parquet_have_the_keys_of_all_lines(predict: Predict) -> None:
    with predict(LINES, "in.jsonl", "out.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["text", "first", "later", *ADDED]
    assert [row[:3] for row in rows[1:]] == [["good", "1", ""], ["bad", "", '{"a": [1, null]}'], ["", "", "only"]]
    assert rows[3][3:] == ["", "", "", ""]
    table = pq.read_table(predict(LINES, "in.jsonl", "out.parquet"))
    assert table.column("first").to_pylist() == [1, None, None]
    assert table.column("later").to_pylist() == [None, '{"a": [1, null]}', "only"]
    assert table.column("predicted_opinion").null_count == 1


@pytest.mark.usefixtures("no_answers")
@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("in.csv", "text,predicted_opinion\ngood,old\n"),
        ("in.jsonl", '{"text": "good"}\n{"text": "good", "predicted_opinion": null}\n'),
    ],
)
@pytest.mark.parametrize("target", ["out.csv", "out.jsonl", "out.parquet"])
def test_a_column_of_the_input_is_never_overwritten(predict: Predict, source: str, content: str, target: str) -> None:
    with pytest.raises(UserError, match=r"in\..*has a column 'predicted_opinion'.*rename or remove"):
        predict(content, source, target)


@pytest.mark.parametrize("link", ["same", "symlink", "hard link", "other spelling"])
def test_the_input_is_never_replaced(predict: Predict, tmp_path: Path, link: str) -> None:
    (tmp_path / "in.csv").write_text("text\ngood\n")
    (tmp_path / "folder").mkdir()
    name = {"same": "in.csv", "other spelling": "folder/../in.csv"}.get(link, "link.csv")
    if link == "symlink":
        (tmp_path / name).symlink_to("in.csv")
    if link == "hard link":
        (tmp_path / name).hardlink_to(tmp_path / "in.csv")
    with pytest.raises(UserError, match="is the input file"):
        predict("text\ngood\n", "in.csv", name, force=True)
    assert (tmp_path / "in.csv").read_text() == "text\ngood\n"


def test_existing_outputs(predict: Predict, tmp_path: Path) -> None:
    (tmp_path / "dangling.csv").symlink_to("nowhere.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="already exists"):
        predict("text\ngood\n", "in.csv", "dangling.csv")
    with pytest.raises(UserError, match="a folder with this name exists"):
        predict("text\ngood\n", "in.csv", "folder.csv", force=True)


def test_errors_of_the_disk_become_messages(predict: Predict, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        predict("text\ngood\n", "in.csv", f"{'long' * 100}.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.usefixtures("no_answers")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,n\ngood,1\ngood\n", "in.csv, line 3: 1 fields, expected 2"),
        ("text,text\ngood,1\n", "column names must be unique, found 'text'"),
        ("text\n", "no rows below the header line"),
        ("text\n\n\n", "no rows below the header line"),
        ("", "the file is empty"),
    ],
)
def test_a_broken_file_stops_before_the_first_prediction(
    predict: Predict, tmp_path: Path, content: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        predict(content, "in.csv", "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_only_rows_without_text(predict: Predict, tiny_run: Finished, tmp_path: Path) -> None:
    for target in ("out.csv", "out.jsonl", "out.parquet"):
        out = predict("text,n\n,1\n ,2\n", "in.csv", target)
        again = load(tiny_run.folder)
        assert predict_file(again, "opinion", str(tmp_path / "in.csv"), out, force=True).without_text == {"opinion": 2}
    assert (tmp_path / "out.csv").read_text() == f"text,n,{','.join(ADDED)}\n,1,,,,\n ,2,,,,\n"
    assert pq.read_table(tmp_path / "out.parquet").column("predicted_opinion").to_pylist() == [None, None]


def test_ten_thousand_columns_and_columns_without_a_name(predict: Predict) -> None:
    names = [f"c{i}" for i in range(10_000)]
    out = predict(f"text,{','.join(names)}\ngood{',x' * 10_000}\n", "in.csv", "out.csv").read_text().splitlines()
    assert out[0] == f"text,{','.join(names)},{','.join(ADDED)}"
    assert out[1].startswith(f"good{',x' * 10_000},")
    nameless = predict(",text,,unnamed_3,\n0,good,1,2,3\n", "nameless.csv", "out.jsonl").read_text()
    row = json.loads(nameless)
    assert list(row.items())[:5] == [
        *[("", "0"), ("text", "good"), ("unnamed_3_", "1"), ("unnamed_3", "2"), ("unnamed_5", "3")]
    ]


def test_a_column_called_like_a_task(predict: Predict) -> None:
    rows = predict("opinion,text\nhers,good\n", "in.csv", "out.csv").read_text().splitlines()
    assert rows[0] == f"opinion,text,{','.join(ADDED)}"
    assert rows[1].startswith("hers,good,")


def test_probabilities_are_the_same_in_every_format(predict: Predict, tiny_run: Finished) -> None:
    classes = load(tiny_run.folder).bundle.labels["opinion"].classes
    names = ["predicted_opinion", "probability_opinion", *(f"probability_opinion_{name}" for name in classes)]
    lengths = ["tokens_opinion", "truncated_opinion"]
    content = 'text\ngood\n" "\nthe worst\n'
    found = []
    with predict(content, "in.csv", "out.csv", probabilities="all").open(newline="") as file:
        found.append(
            [
                {k: json.loads(v) if k in (*names[1:], *lengths) and v else v or None for k, v in row.items()}
                for row in csv.DictReader(file)
            ]
        )
    lines = predict(content, "in.csv", "out.jsonl", probabilities="all").read_text().splitlines()
    found.append([json.loads(line) for line in lines])
    found.append(pq.read_table(predict(content, "in.csv", "out.parquet", probabilities="all")).to_pylist())
    assert found[0] == found[1] == found[2]
    for row in found[0]:
        assert list(row) == ["text", *names, *lengths]
        if row["text"].strip():
            given = {name: row[f"probability_opinion_{name}"] for name in classes}
            assert row["predicted_opinion"] == max(given, key=lambda name: given[name])
            assert row["probability_opinion"] == max(given.values())
            assert sum(given.values()) == pytest.approx(1, abs=1e-5)
        else:
            assert {row[name] for name in names} == {None}
    lines = predict(content, "in.csv", "none.jsonl", probabilities="none").read_text().splitlines()
    (only,) = {tuple(json.loads(line)) for line in lines}
    assert only == ("text", "predicted_opinion")
    with pytest.raises(UserError, match="Valid: all, none, top"):
        predict(content, "in.csv", "some.csv", probabilities="some")


@pytest.mark.usefixtures("no_answers")
@pytest.mark.parametrize(("tasks", "columns"), [("opinion", ["a", "b"]), ("question", ["a"])])
def test_the_wrong_number_of_columns(predict: Predict, tasks: str, columns: list[str]) -> None:
    with pytest.raises(UserError, match=rf"task {tasks} takes \d text\(s\) per example, found {len(columns)}"):
        predict("a,b\nx,y\n", "in.csv", "out.csv", tasks, columns=columns)


@pytest.mark.parametrize(
    ("source", "delimiter", "target", "written"),
    [
        *[("in.csv", ";", "out.csv", ";"), ("in.CSV", "|", "out.csv", "|"), ("in.csv", "\t", "out.csv", "\t")],
        *[("in.tsv", "\t", "out.tsv", "\t"), ("in.tsv", "\t", "out.csv", ","), ("in.csv", ";", "out.tsv", "\t")],
        *[("in.txt", ";", "out.csv", ";"), ("in.txt", ";", "out.txt", ";"), ("in.jsonl", "", "out.csv", ",")],
    ],
)
def test_the_delimiter_of_the_input_is_kept(
    predict: Predict, source: str, delimiter: str, target: str, written: str
) -> None:
    rows = [["id", "text"], ["1", 'good; bad, "ugly" | a\ttab'], ["2", "über"]]
    content = io.StringIO()
    csv.writer(content, delimiter=delimiter or ",").writerows(rows)
    lines = '{"id": "1", "text": "good; bad, \\"ugly\\" | a\\ttab"}\n{"id": "2", "text": "über"}\n'
    out = predict(content.getvalue() if delimiter else lines, source, target)
    with out.open(newline="", encoding="utf-8") as file:
        found = list(csv.reader(file, delimiter=written))
    assert [row[:2] for row in found] == rows
    assert {len(row) for row in found} == {6}


def test_one_column_with_commas(predict: Predict) -> None:
    out = predict("text\nwell, well\nnow, then, go\n", "in.csv", "out.csv").read_text().splitlines()
    assert out[0] == f"text,{','.join(ADDED)}"
    assert out[1].startswith('"well, well",')


def test_a_byte_order_mark_is_kept(predict: Predict) -> None:
    content = "id;text\n1;naïve\n".encode()
    assert predict(codecs.BOM_UTF8 + content, "marked.csv", "out.csv").read_bytes().startswith(codecs.BOM_UTF8 + b"id;")
    assert predict(content, "plain.csv", "plain-out.csv").read_bytes().startswith(b"id;")
    assert predict(codecs.BOM_UTF8 + content, "marked.csv", "out.jsonl").read_bytes().startswith(b'{"id"')


def test_memory_stays_flat(predict: Predict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of long documents, in columns that are not read either, are written a few at a time."""
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 100)
    row = json.dumps({"text": "good", "note": ["x" * 40]})
    out = predict(f"{row}\n" * 7, "in.jsonl", "out.parquet")
    parquet = pq.ParquetFile(out)
    assert [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)] == [3, 3, 1]


def test_chunks_end_early_for_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 10)
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for text in ("a" * 6, "b" * 6, "c" * 20, "d", "e"):
            read += 1
            yield text

    found = chunks(texts(), len)
    assert next(found) == ["a" * 6, "b" * 6]
    assert read == 2
    assert list(found) == [["c" * 20], ["d", "e"]]
