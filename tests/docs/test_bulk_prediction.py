"""The commands of docs/bulk-prediction.md, in order: with a folder for the bucket, and one Ray for the cluster."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polytask import Finished
from polytask.cli.main import main
from polytask.ray_cluster import connect

from .test_pages import ROOT, blocks, commands

PAGE = ROOT / "docs" / "bulk-prediction.md"


def predict(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert not end.value.code, f"{shlex.join(words)}: {printed.err}"
    return str(printed.out)


@pytest.mark.slow
def test_the_commands_work_in_order(
    tiny_run: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "recipe").symlink_to(tiny_run.folder)
    for folder in (tmp_path / "reviews", tmp_path / "bucket" / "reviews"):
        folder.mkdir(parents=True)
        for number in range(3):
            texts = [f"review {number}.{row} is good" for row in range(400)]
            pq.write_table(pa.table({"text": texts}), folder / f"{number}.parquet")
    first, again, by_ray, on_cluster, from_bucket = (
        [word.replace("s3://my-bucket", f"file://{tmp_path}/bucket") for word in words] for words in commands(PAGE)
    )
    assert predict(first, monkeypatch, capsys).startswith("1,200 rows of 3 files: 3 shards, 0 done before\n")
    (quoted,) = (block for block in PAGE.read_text(encoding="utf-8").split("\n\n") if block.startswith("    1,200"))
    assert predict(again, monkeypatch, capsys).split() == quoted.split()
    (block,) = blocks(PAGE, "python")
    exec(compile(block, "bulk-prediction.md", "exec"), {})
    assert capsys.readouterr().out == "1200 0 0.0\n"
    with connect("the test", cpus=2):  # it is used instead of the address on the page
        predict(by_ray, monkeypatch, capsys)
        predict(on_cluster, monkeypatch, capsys)
    predict(from_bucket, monkeypatch, capsys)
    tables = [
        pq.read_table(tmp_path / name)
        for name in ("predicted", "predicted-by-ray", "bucket/predicted", "predicted-here")
    ]
    assert all(table.num_rows == 1200 and table.equals(tables[0]) for table in tables)
