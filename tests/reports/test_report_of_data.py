"""The findings of the data check are in summary.json and in the report."""

import json
from pathlib import Path
from typing import Any

from polytask import Finished, train
from polytask.reports.report import RunRecord, report_page

TINY = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 16, "positions": 128}


def page_of(summary: dict[str, Any]) -> str:
    run = RunRecord(Path("run"), None, {}, summary, [], [], [], {})
    return " ".join(report_page(run).split())


def finding(**more: Any) -> dict[str, Any]:
    plain = {
        "severity": "warning",
        "task": "one",
        "split": "dev",
        "what": "x",
        "sentence": "said",
        "rows": [],
        "count": 3,
    }
    return {**plain, **more}


def test_findings_are_a_table() -> None:
    few = finding(severity="problem", sentence="<b>3 rows</b> of it", rows=[4, 5, 9])
    many = finding(rows=list(range(2, 12)), count=40, task="<i>")
    page = page_of({"findings": [few, many, finding(split="")]})
    assert "Findings of the data check" in page
    assert '&lt;b&gt;3 rows&lt;/b&gt; of it</td><td class="name">4, 5, 9</td>' in page
    assert "2, 3, 4, 5, 6, 7, 8, 9, 10, 11 …</td>" in page
    assert page.index(">problem</td>") < page.index(">warning</td>")
    assert "<b>3" not in page
    assert "<i>" not in page


def test_nothing_found_and_not_looked_at() -> None:
    assert "The data check found nothing unusual." in page_of({"findings": []})
    page = page_of({})  # a run that goes on, or an old one
    assert "data check" not in page


def test_a_run_writes_what_it_found(tmp_path: Path, tiny_run: Finished) -> None:
    assert tiny_run.summary.findings == ()
    rows = [f"text of row number {i},{i % 2}" for i in range(30)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "dev.csv").write_text("\n".join(["text,label", rows[5], *(f"dev {row}" for row in rows)]))
    files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "dev")}
    task = {"kind": "yes_no", "text": "text", "label": "label", **files}
    settings = {"epochs": 1, "steps_per_epoch": 1}
    done = train({"tasks": {"one": task}, "encoder": TINY, "train": settings}, tmp_path / "run")
    (leak,) = json.loads((tmp_path / "run" / "summary.json").read_text())["findings"]
    assert (leak["severity"], leak["task"], leak["split"], leak["what"]) == ("problem", "one", "dev", "leak")
    assert (leak["rows"], leak["count"]) == ([2], 1)
    assert "1 of 31 rows (3.2 %) is also in the training rows" in done.report.read_text(encoding="utf-8")
