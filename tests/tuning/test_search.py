"""Tunings end to end with real runs: what is tried, what is written, what never runs twice, and what is repeated."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import yaml

from polytask import read_recipe, train
from polytask.disk.json_files import read_json
from polytask.tuning import search
from polytask.tuning.search import Tuning

from .conftest import QUICKSTART, Done, Start


def runs(done: Done, part: str) -> list[str]:
    return [report.name for report in done.reports if report.state == "done" and report.part == part]


def test_a_third_goes_on_to_the_next_length_and_the_best_to_the_final(small: Done) -> None:
    content = read_json(small.folder / "tune.json")
    trials = content["trials"]
    assert len(trials) == 6
    assert trials[0]["settings"] == content["start"] == {"train.batch_size": 16, "optimizer.lr": 0.003}
    assert len({json.dumps(trial["settings"]) for trial in trials}) == 6
    assert sorted(runs(small, "1/9 of the steps")) == [f"trial {n}" for n in range(6)]
    ranked = sorted(trials, key=lambda trial: (-trial["scores"]["1"], trial["number"]))
    longer = [trial for trial in trials if "3" in trial["scores"]]
    assert {trial["number"] for trial in longer} == {trial["number"] for trial in ranked[:2]}
    (longest,) = [trial for trial in trials if "9" in trial["scores"]]
    assert longest["scores"]["3"] == max(trial["scores"]["3"] for trial in longer)
    assert [trial["state"] for trial in trials].count("complete") == 1
    finalists = content["finalists"]
    assert len(finalists) == 2
    assert all(one["seeds"] == [1, 2] for one in finalists.values())
    for seed in (1, 2):
        assert sorted(runs(small, f"seed {seed}")) == sorted(finalists)


def test_held_back_rows_are_scored_by_the_final_runs_only(small: Done) -> None:
    content = read_json(small.folder / "tune.json")
    searched = {key for trial in content["trials"] for key in trial["runs"].values()}
    for key in searched:
        summary = read_json(small.folder / "cells" / key / "summary.json")
        assert set(summary["evaluations"]) == {"dev"}
        assert not (small.folder / "cells" / key / "model").exists()
    for finalist in content["finalists"].values():
        for run in finalist["runs"]:
            assert set(read_json(small.folder / run / "summary.json")["evaluations"]) == {"dev", "test"}
            assert (small.folder / run / "model").is_dir()
    examples = [c["examples"] for c in content["comparisons"]["held_back"] if c["task"] == "opinion"]
    assert examples == [75]


def test_the_answer_is_that_of_the_comparison(small: Done) -> None:
    content = read_json(small.folder / "tune.json")
    tuned = small.tuned
    assert tuned.answer == content["answer"]
    assert tuned.sentence.startswith(f"Beats the recipe on held-back rows: {tuned.answer}.")
    means = {name: one["dev"]["mean"]["mean"] for name, one in content["finalists"].items()}
    assert tuned.winner == max(means, key=lambda name: means[name])
    claims = {c["variant"]: c["claim"] for c in content["comparisons"]["held_back"] if c["task"] == "mean"}
    if tuned.winner == "recipe":
        assert tuned.answer == "no"
        assert tuned.settings == {}
    else:
        assert (claims[tuned.winner], tuned.answer) in [
            ("better", "yes"),
            ("undecided", "cannot be told"),
            ("worse", "no"),
            ("same", "no"),
        ]


def test_the_database_opens_with_optuna(small: Done) -> None:
    study = optuna.load_study(study_name="quickstart", storage=f"sqlite:///{small.folder / 'trials.sqlite3'}")
    trials = read_json(small.folder / "tune.json")["trials"]
    assert [trial.state.name.lower() for trial in study.trials] == [trial["state"] for trial in trials]
    for trial, shown in zip(study.trials, trials, strict=True):
        assert trial.params == shown["settings"]
        assert {str(step): score for step, score in trial.intermediate_values.items()} == shown["scores"]
        for ninths, key in shown["runs"].items():
            dev = read_json(small.folder / "cells" / key / "summary.json")["evaluations"]["dev"]
            values = [score["metrics"][score["primary"]]["value"] for score in dev.values()]
            assert shown["scores"][ninths] == pytest.approx(sum(values) / 3)
    assert study.best_trial.value == max(trial.value for trial in study.trials if trial.state.name == "COMPLETE")


def test_nothing_runs_twice(small: Done, start: Start) -> None:
    before = (small.folder / "times.jsonl").read_text()
    again = start(small.folder, top=1)
    assert list(again.reports()) == []
    assert again.finish() == small.tuned
    assert (small.folder / "times.jsonl").read_text() == before
    keys = [json.loads(line)["run"] for line in before.splitlines()]
    assert len(keys) == len(set(keys)) == 6 + 2 + 1 + 2 * 2


def test_a_trial_is_repeated_exactly(small: Done, tmp_path: Path) -> None:
    trials = read_json(small.folder / "tune.json")["trials"]
    (key,) = [trial["runs"]["9"] for trial in trials if "9" in trial["runs"]]
    again = train(small.folder / "cells" / f"{key}.yaml", tmp_path / "again")
    summary = read_json(small.folder / "cells" / key / "summary.json")
    assert again.summary.to_json()["evaluations"] == summary["evaluations"]


@pytest.mark.slow
def test_an_interrupted_tuning_continues_and_best_yaml_repeats_its_numbers(tmp_path: Path, start: Start) -> None:
    """Without held-back rows, so that best.yaml has the rows of the search."""
    options: Any = {"vary": ["optimizer.lr=3e-3,2e-2"], "hold_back": 0, "top": 1}
    ended = list[tuple[str, str]]()
    stopped = start(tmp_path / "out", **options)
    reports = stopped.reports()
    for report in reports:
        ended += [(report.name, report.part)] if report.state == "done" else []
        if len(ended) == 2:
            reports.close()
    assert "has not finished" in stopped.finish().page.read_text()
    going_on = start(tmp_path / "out", **options)
    ended += [(report.name, report.part) for report in going_on.reports() if report.state == "done"]
    assert len(ended) == len(set(ended)) == 2 + 1 + 1 + 2 * 2
    tuned = going_on.finish()
    assert "These rows also chose the winner" in tuned.sentence or tuned.winner == "recipe"
    finalist = read_json(tmp_path / "out" / "tune.json")["finalists"][tuned.winner]
    again = train(tuned.best, tmp_path / "again", ["seed=2"])
    summary = read_json(tmp_path / "out" / finalist["runs"][1] / "summary.json")
    assert again.summary.to_json()["evaluations"] == summary["evaluations"]


def test_best_yaml_is_the_recipe_on_its_own_files(small: Done) -> None:
    text = small.tuned.best.read_text()
    assert text.startswith("# Written by polytask tune on ")
    assert small.tuned.sentence in text
    assert "held-back rows, mean of the tasks: recipe " in text
    for field, value in small.tuned.settings.items():
        assert f"# {field}: {value} (was " in text
    recipe = read_recipe(small.tuned.best)
    assert recipe.tasks == read_recipe(QUICKSTART).tasks
    content = yaml.safe_load(text)
    assert content["train"]["batch_size"] == small.tuned.settings.get("train.batch_size", 16)


@pytest.mark.slow
def test_settings_that_do_not_fit_together_fail_alone(tmp_path: Path, start: Start) -> None:
    vary = ["adapter=none,pal", "adapter.heads=2,3"]  # the second name is checked with the recipe's adapter
    with pytest.raises(Exception, match="adapter"):
        start(tmp_path / "one", vary)
    tuning = start(tmp_path / "two", ["encoder.heads=4,8", "encoder.hidden=32,36"], top=1)
    reports = tuning.reports()
    for report in reports:
        if report.part == "1/3 of the steps":
            reports.close()
    tuning.finish()
    errors = [t["error"] for t in read_json(tmp_path / "two" / "tune.json")["trials"] if t["state"] == "fail"]
    assert len(errors) == 1
    assert "must divide the hidden size 36, found 8" in errors[0]
    assert "1 of 4 trials failed" in (tmp_path / "two" / "report.html").read_text()


@pytest.mark.slow
def test_a_killed_command_continues(tmp_path: Path, tiny_settings: list[str]) -> None:
    command = [sys.executable, "-P", "-m", "polytask", "tune", str(QUICKSTART), "--budget", "30m", "--top", "1"]
    command += ["--vary", "optimizer.lr=3e-3,1e-3", "--folder", str(tmp_path / "out")]
    command += [word for setting in [*tiny_settings, "train.save_every=1"] for word in ("--set", setting)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "trial 1, 1/9" in line:
            os.kill(process.pid, signal.SIGKILL)  # the worker ends with it
            break
    process.communicate()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "trial 0, 1/9" not in done.stdout
    assert "Beats the recipe on held-back rows: " in done.stdout
    assert not [t for t in read_json(tmp_path / "out" / "tune.json")["trials"] if t["state"] in ("fail", "running")]


def test_an_unfinished_folder_of_something_else_is_refused(small: Done, tmp_path: Path, start: Start) -> None:
    with pytest.raises(Exception, match=r"belongs to a tuning with another --vary; pass"):
        start(small.folder, ["train.batch_size=4,8"])
    (tmp_path / "mine").write_text("")
    with pytest.raises(Exception, match="the folder holds other files"):
        start(tmp_path)
    assert isinstance(start(tmp_path / "new"), Tuning)


def test_a_model_is_removed_after_its_run_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run writes its summary, and then still reads its model."""
    model = tmp_path / "model"
    model.mkdir()
    cell, trial = SimpleNamespace(key="a", folder=tmp_path), SimpleNamespace(number=0)
    recorded: list[Any] = []
    tuning = Tuning.__new__(Tuning)
    vars(tuning).update(
        _errors={},
        _running={"a"},
        plan=SimpleNamespace(score=lambda summary: 0.5),
        budget=SimpleNamespace(record=lambda *_: None),
        trials=SimpleNamespace(report=lambda *values: recorded.append(values)),
    )
    monkeypatch.setattr(search, "summary_of", lambda folder: {"seconds": 1.0})
    pending: Any = {0: (trial, cell)}
    assert tuning._record(pending, 9)
    assert model.exists()
    tuning._running.clear()
    assert not tuning._record(pending, 9)
    assert not model.exists()
    assert len(recorded) == 1
