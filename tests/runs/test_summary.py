"""summary.json: what is written is read again, also from earlier versions; damage is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from polytask import Finished, UserError
from polytask.runs.summary import read_summary, write_summary

OLD = Path(__file__).parent.parent / "fixtures" / "runs" / "format-1" / "summary.json"


def test_what_is_written_is_read_again(tiny_run: Finished, tmp_path: Path) -> None:
    summary = read_summary(tiny_run.folder / "summary.json")
    assert summary == tiny_run.summary
    write_summary(summary, tmp_path / "summary.json")
    assert (tmp_path / "summary.json").read_bytes() == (tiny_run.folder / "summary.json").read_bytes()


def test_a_summary_of_an_earlier_version() -> None:
    """It says trunk for the encoder, and has no scores of step 0."""
    content = json.loads(OLD.read_text())
    summary = read_summary(OLD)
    assert summary.parameters.encoder == content["parameters"]["trunk"]
    assert (summary.start, summary.remarks, summary.added, summary.saved) == (None, (), None, True)
    assert summary.tasks["similarity"].range == (0.0, 5.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2 is unknown to this version, which reads 1"),
        ({"steps": "many"}, "steps: must be an integer"),
        ({"best": None}, "best: must be a mapping"),
        ({"extra": 1}, "there is no field 'extra'"),
    ],
)
def test_damage_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({**json.loads(OLD.read_text()), **change}))
    with pytest.raises(UserError, match=f"summary.json: {message}|summary.json: .*{message}"):
        read_summary(path)
