"""polytask interference: the table, the report and the summary; the same weights as polytask train."""

import json
from pathlib import Path

import pytest

from polytask import Finished

from .conftest import Cli

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def settings(tiny: list[str], *more: str) -> list[str]:
    return [word for setting in [*tiny, *more] for word in ("--set", setting)]


def test_pairs_are_printed_and_the_weights_are_those_of_train(
    cli: Cli, tmp_path: Path, tiny_settings: list[str], tiny_run: Finished
) -> None:
    run = tmp_path / "run"
    said = cli("interference", QUICKSTART, "--every", 4, "--run", run, *settings(tiny_settings))
    assert said.code == 0, said.err
    assert "agreement of the tasks' gradients, over 5 probes" in said.out
    for words in ("opinion and question", "opinion and similarity", "question and similarity"):
        assert words in said.out
    assert str(run / "report.html") in said.out
    summary = json.loads((run / "summary.json").read_text())["interference"]
    assert (summary["probes"], summary["first_step"], summary["last_step"]) == (5, 4, 20)
    assert summary["pairs"][0]["tasks"] == ["opinion", "question"]
    assert all(("no clear sign" in pair["sentence"]) == (pair["verdict"] == "unclear") for pair in summary["pairs"])
    assert 'id="interference"' in (run / "report.html").read_text(encoding="utf-8")
    for file in ("model/model.safetensors", "model/parts.safetensors"):
        assert (run / file).read_bytes() == (tiny_run.folder / file).read_bytes()
    assert tiny_run.summary.interference is None
    again = cli("interference", QUICKSTART, "--every", 4, "--run", run, *settings(tiny_settings), "--resume")
    assert again.code == 0, again.err


def test_what_there_is_to_say_without_pairs(
    cli: Cli, tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["train.epochs=1", "train.steps_per_epoch=3"]
    late = cli("interference", QUICKSTART, "--every", 9, *settings(tiny_settings, *short))
    assert "There was no probe: the run had 3 steps, and a probe was due every 9 steps." in late.out
    assert (tmp_path / "runs" / "quickstart-interference" / "report.html").is_file()  # beside what train made
    frozen = settings(tiny_settings, *short, "train.parts=adapters", "adapter=lhuc")
    said = cli("interference", QUICKSTART, "--every", 1, "--run", tmp_path / "b", *frozen)
    assert "No trainable parameter is shared by two tasks" in said.out
    assert (late.code, said.code) == (0, 0)


def test_too_short_a_run_is_refused_before_it_trains(cli: Cli, tiny_settings: list[str]) -> None:
    refused = cli("interference", QUICKSTART, *settings(tiny_settings))
    assert refused.code == 1
    assert "a tenth of the time of 20 steps allows 0 probes" in refused.err
    assert cli("interference", QUICKSTART, "--every", 0).code == 2
