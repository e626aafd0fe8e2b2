"""A plan is made once; a restart with another model, other inputs or other options is refused."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polytask import BulkSettings, Finished, UserError, load, predict_file, predict_files, start_predicting_files
from polytask.bulk.plan import NAME, Plan, find_inputs
from polytask.bulk.storage import Storage

from .conftest import read_output


def predict(run: Path, source: Any, output: Path, **options: Any) -> Any:
    return predict_files(run, source, output, **{"workers": 1, "rows_per_shard": 20, "tasks": "opinion"} | options)


def test_the_plan_describes_model_inputs_and_shards(tiny_run: Finished, bulk_input: Path, tmp_path: Path) -> None:
    predict(tiny_run.folder, bulk_input, tmp_path / "out")
    plan = Plan.read(Storage.of(str(tmp_path / "out")))
    assert [(Path(file.url).name, file.size, file.rows) for file in plan.inputs] == [
        (name, (bulk_input / name).stat().st_size, rows)
        for name, rows in (("a.parquet", 50), ("b.parquet", 45), ("c.parquet", 0))
    ]
    assert [(shard.output, Path(shard.input).name, shard.start, shard.rows) for shard in plan.shards] == [
        ("part-00000.parquet", "a.parquet", 0, 20),
        ("part-00001.parquet", "a.parquet", 20, 20),
        ("part-00002.parquet", "a.parquet", 40, 10),
        ("part-00003.parquet", "b.parquet", 0, 15),
        ("part-00004.parquet", "b.parquet", 15, 15),
        ("part-00005.parquet", "b.parquet", 30, 15),
    ]
    assert set(plan.model) == {"config.json", "model.safetensors", "parts.safetensors", "tokenizer.json", "tasks.json"}


def change_model(run: Path, source: Path) -> dict[str, Any]:
    tasks = run / "model" / "tasks.json"
    content = json.loads(tasks.read_text())
    content["tasks"]["opinion"]["abstain_below"] = 0.5
    tasks.write_text(json.dumps(content))
    return {}


def change_file(run: Path, source: Path) -> dict[str, Any]:
    os.utime(source / "b.parquet", (1, 1))
    return {}


def add_file(run: Path, source: Path) -> dict[str, Any]:
    shutil.copy(source / "b.parquet", source / "d.parquet")
    return {}


def remove_file(run: Path, source: Path) -> dict[str, Any]:
    (source / "b.parquet").unlink()
    return {}


CHANGES: list[Any] = [
    (change_model, r"the model is another one \(tasks.json differs\)"),
    (change_file, r"the input file .*b.parquet has changed"),
    (add_file, r"the input file .*d.parquet is new"),
    (remove_file, r"the input file .*b.parquet is no longer there"),
    (lambda *_: {"probabilities": "all"}, "probabilities was top and is now all"),
    (lambda *_: {"tasks": None}, "tasks was opinion and is now opinion, question"),
    (lambda *_: {"columns": ["question1"]}, "columns was the default and is now question1"),
    (lambda *_: {"rows_per_shard": 30}, "rows_per_shard was 20 and is now 30"),
    (lambda *_: {"abstain_below": 0.3}, "abstain_below was None and is now 0.3"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_change_is_refused_until_force(
    change: Any, message: str, tiny_run: Finished, bulk_input: Path, tmp_path: Path
) -> None:
    run, source, output = tmp_path / "run", tmp_path / "in", tmp_path / "out"
    shutil.copytree(tiny_run.folder, run)
    shutil.copytree(bulk_input, source)
    predict(run, source, output)
    options = change(run, source)
    (output / "notes.txt").write_text("mine")
    before = sorted(output.iterdir())
    with pytest.raises(
        UserError, match=f"{output}: holds the predictions of another command(.|\n)*{message}(.|\n)*--force"
    ):
        predict(run, source, output, **options)
    assert sorted(output.iterdir()) == before
    done = predict(run, source, output, **options, force=True)
    assert done.computed_shards == done.shards
    assert len(read_output(output)) == done.rows
    assert (output / "notes.txt").read_text() == "mine"


def test_the_size_of_shards_engine_and_strictness_do_not_matter(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path
) -> None:
    predict(tiny_run.folder, bulk_input, tmp_path / "out")
    assert predict(tiny_run.folder, bulk_input, tmp_path / "out", rows_per_shard=None, strict=True).computed_shards == 0


def test_wrong_inputs_are_refused_before_anything_is_written(
    tiny_run: Finished, bulk_input: Path, tmp_path: Path, make_rows: Any
) -> None:
    run, output = tiny_run.folder, tmp_path / "out"
    pq.write_table(make_rows(0, 3).drop(["text", "question1"]), tmp_path / "z.parquet")
    pq.write_table(make_rows(0, 0), tmp_path / "empty.parquet")
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "broken.parquet").write_text("text")
    for source, message in [
        (tmp_path / "none.parquet", r"none.parquet: no such file, and no files match it"),
        (tmp_path / "*.orc", r"\*.orc: no such file"),
        ([bulk_input, tmp_path / "z.parquet"], r"z.parquet: no column 'text'; its columns are: number, question2"),
        (tmp_path / "empty.parquet", "there are no rows to predict"),
        (tmp_path / "broken.parquet", "broken.parquet: cannot read it as a parquet file"),
        (tmp_path / "*.md", "no such file"),
    ]:
        with pytest.raises(UserError, match=message):
            predict(run, source, output)
    with pytest.raises(UserError, match="must have the text columns of a task"):
        predict(run, tmp_path / "z.parquet", output, tasks=None)
    assert not output.exists()
    for options, message in [
        ({"tasks": "mood"}, "there is no task 'mood'"),
        ({"engine": "spark"}, "there is no engine for bulk prediction 'spark'. Valid: local, ray"),
        ({"precision": "int4"}, "there is no precision 'int4'"),
        ({"workers": 0}, "workers: must be at least 1, found 0"),
        ({"address": "auto"}, "address and gpus_per_worker are for the engine ray"),
    ]:
        with pytest.raises(UserError, match=message):
            predict(run, bulk_input, output, **options)


def test_empty_files_and_notes_in_a_folder_are_no_obstacle(tiny_run: Finished, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for name, content in {
        "a.jsonl": "",
        "b.csv": "text,n\n",
        "c.csv": "",
        "d.csv": "text,n\ngood,1\n",
        "README.txt": "These files are reviews.\n\nAsk Ada, Grace\nor Alan.",
    }.items():
        (source / name).write_text(content)
    done = predict(tiny_run.folder, source, tmp_path / "out", tasks=None)
    assert (done.rows, done.shards) == (1, 1)
    assert [file.rows for file in Plan.read(Storage.of(str(tmp_path / "out"))).inputs] == [0, 0, 0, 1]
    assert predict(tiny_run.folder, source, tmp_path / "out", tasks=None).computed_shards == 0
    with pytest.raises(UserError, match=r"a.jsonl: there are no rows to predict in the 3 input file\(s\)"):
        predict(tiny_run.folder, [source / name for name in ("a.jsonl", "b.csv", "c.csv")], tmp_path / "none")


def test_a_text_file_with_rows_is_read_if_it_is_named(tiny_run: Finished, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.txt").write_text("text\tn\ngood\t1\nbad\t2\n")
    for number, source in enumerate(("rows.txt", "*.txt")):
        assert predict(tiny_run.folder, tmp_path / "in" / source, tmp_path / f"out-{number}").rows == 2
    with pytest.raises(UserError, match=r"none of its 1 files can be predicted: found \.txt; expected \.parquet"):
        predict(tiny_run.folder, tmp_path / "in", tmp_path / "out")


def test_the_encoding_of_the_recipe_is_that_of_the_files(tiny_run: Finished, tmp_path: Path) -> None:
    run, source = tmp_path / "run", tmp_path / "in.csv"
    shutil.copytree(tiny_run.folder, run)
    tasks = run / "model" / "tasks.json"
    content = json.loads(tasks.read_text())
    content["tasks"]["opinion"]["encoding"] = "cp1251"
    tasks.write_text(json.dumps(content))
    text = "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440\u0449\u0430\u0441\u043b\u0438\u0432"
    source.write_bytes(f"text,\u0418\nn,1\n{text},2\n".encode("cp1251"))
    alone = tmp_path / "alone.csv"
    predict_file(load(run), "opinion", str(source), alone)
    assert predict(run, source, tmp_path / "out").rows == 2
    assert (tmp_path / "out" / "part-00000.csv").read_bytes() == alone.read_bytes()
    assert text in alone.read_text(encoding="utf-8-sig")


def test_a_plan_without_shards_is_replaced(tiny_run: Finished, bulk_input: Path, tmp_path: Path) -> None:
    settings = {"workers": 1, "tasks": ("opinion",)}
    first = start_predicting_files(tiny_run.folder, bulk_input, tmp_path, BulkSettings(**settings))  # type: ignore[arg-type]
    assert predict(tiny_run.folder, bulk_input, tmp_path, tasks="question").rows == 95
    with pytest.raises(UserError, match="another command has written its plan here meanwhile"):
        first.finish()


def test_shards_without_a_plan_are_not_ours(tiny_run: Finished, bulk_input: Path, tmp_path: Path) -> None:
    (tmp_path / "part-00000.parquet").write_text("theirs")
    with pytest.raises(UserError, match=rf"has 1 file\(s\) such as part-00000.parquet but no {NAME}"):
        predict(tiny_run.folder, bulk_input, tmp_path)


def test_files_in_the_output_folder_are_no_input(tiny_run: Finished, bulk_input: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(bulk_input, source)
    for _ in range(2):
        assert predict(tiny_run.folder, source, source / "out").rows == 95
    assert len(find_inputs([str(source)], Storage.of(str(source / "out")))) == 3
    with pytest.raises(UserError, match="all 3 input files are in the output folder"):
        predict(tiny_run.folder, source / "*.parquet", source)
