"""Studies end to end with real runs: what is written, what never runs twice, and what is refused."""

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from polytask import Finished, UserError, train
from polytask.studies.compare import StudyRunning, compare_runs
from polytask.studies.study import read_study

from .conftest import QUICKSTART, Done, study_file


def test_the_folder_has_the_verdict(small_study: Done) -> None:
    content = json.loads((small_study.folder / "study.json").read_text())
    assert content["reference"] == "cosine"
    assert set(content["tasks"]) == {"opinion", "question", "similarity"}
    for variant in ("cosine", "bi"):
        found = content["variants"][variant]
        assert [cell["state"] for cell in found["cells"]] == ["done", "done"]
        values = [cell["values"]["question"] for cell in found["cells"]]
        assert found["scores"]["question"]["mean"] == pytest.approx(sum(values) / 2)
        assert found["scores"]["mean"]["low"] <= found["scores"]["mean"]["mean"] <= found["scores"]["mean"]["high"]
        assert found["cost"]["seconds"] > 0
        assert [step for step, _ in content["curves"][variant]["0"]["opinion"]] == [0, 10]
    assert content["variants"]["bi"]["cost"]["parameters"]["per_task"]["question"] == 3 * 32 + 1
    assert [c["task"] for c in content["comparisons"]] == ["opinion", "question", "similarity", "mean"]
    assert all(c["sentence"] for c in content["comparisons"])
    assert set(content["differences"]) == {"tasks.question.head", "tasks.similarity.head", "tasks.similarity.head.map"}
    assert (small_study.folder / "report.html").is_file()
    assert "| cosine" in (small_study.folder / "study.md").read_text()


def test_a_finished_cell_never_runs_twice(small_study: Done) -> None:
    again = StudyRunning(read_study(small_study.path), small_study.folder)
    assert again.waiting == []
    assert list(again.reports()) == []
    assert again.finish()["comparisons"] == small_study.content["comparisons"]


def test_more_seeds_run_only_what_is_new_and_costs_are_known(
    small_study: Done, tmp_path: Path, tiny_settings: Any
) -> None:
    more = StudyRunning(read_study(study_file(tmp_path, tiny_settings, seeds=[0, 1, 5])), small_study.folder)
    assert [(cell.variant, cell.seed) for cell in more.waiting] == [("cosine", 5), ("bi", 5)]
    assert all(cost.measured == "2 finished" and cost.seconds > 0 for cost in more.costs())
    outlook = more.outlook()
    assert outlook.seeds == 3
    assert "measured in 4 finished runs of this study" in outlook.lines()[0]
    deviations = {c["task"]: c["seed_deviation"] for c in small_study.content["comparisons"]}
    assert {view.view: view.seed_deviation for view in outlook.views} == pytest.approx(deviations)


def test_the_margin_of_the_study_or_of_the_command_line(small_study: Done) -> None:
    """A margin of 100 points makes every comparison the same; nothing runs again."""
    running = StudyRunning(read_study(small_study.path), small_study.folder, margin=100.0)
    assert running.waiting == []
    content = running.finish()
    assert content["margin"] == 100.0
    assert {c["margin"] for c in content["comparisons"]} == {1.0}
    assert "same" in {c["claim"] for c in content["comparisons"]}
    assert "the same within 100 points" in (small_study.folder / "study.md").read_text()
    StudyRunning(read_study(small_study.path), small_study.folder).finish()  # as it was


def test_the_estimate_names_a_variant_whose_first_steps_fail(tmp_path: Path, tiny_settings: list[str]) -> None:
    variants = {"usual": {}, "huge": {"optimizer.lr": 1e30, "train.warmup": 0}}
    running = StudyRunning(read_study(study_file(tmp_path, tiny_settings, variants=variants)), tmp_path / "new")
    with pytest.raises(UserError, match=r"^variant huge: its first steps fail: .*train.on_nan: skip to skip") as error:
        running.costs()
    assert "run/" not in str(error.value)


def test_the_cost_of_a_run_of_one_step(tmp_path: Path, tiny_settings: list[str]) -> None:
    path = study_file(tmp_path, [*tiny_settings, "train.steps_per_epoch=1"], seeds=[0])
    assert all(cost.seconds > 0 for cost in StudyRunning(read_study(path), tmp_path / "new").costs())


def test_costs_of_a_new_study_come_from_a_few_steps(tmp_path: Path, tiny_settings: list[str]) -> None:
    running = StudyRunning(read_study(study_file(tmp_path, tiny_settings)), tmp_path / "new")
    costs = running.costs()
    assert len(costs) == 4
    assert all(0 < cost.seconds < 600 for cost in costs)
    assert not (tmp_path / "new").exists()


def test_another_study_is_refused_its_folder(small_study: Done, tmp_path: Path, tiny_settings: list[str]) -> None:
    other = read_study(study_file(tmp_path, tiny_settings, set={"max_length": 32}))
    with pytest.raises(UserError, match=r"the folder belongs to another study .its recipes differ"):
        StudyRunning(other, small_study.folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("mine")
    with pytest.raises(UserError, match="the folder holds other files"):
        StudyRunning(read_study(small_study.path), tmp_path / "full")


def test_an_invalid_variant_is_an_error_before_anything_runs(tmp_path: Path, tiny_settings: list[str]) -> None:
    wrong = {"cosine": {}, "wrong": {"tasks.opinion.head": "cross"}}
    with pytest.raises(UserError, match="cross does not support 1 text"):
        StudyRunning(read_study(study_file(tmp_path, tiny_settings, variants=wrong)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="--workers: must be at least 1"):
        StudyRunning(read_study(tmp_path / "study.yaml"), tmp_path / "out", workers=0)


def runs_of(study: Done, variant: str) -> list[Path]:
    return [study.folder / cell["run"] for cell in study.content["variants"][variant]["cells"]]


def test_finished_runs_are_grouped_by_recipe(small_study: Done, tmp_path: Path) -> None:
    folders = [*runs_of(small_study, "cosine"), *runs_of(small_study, "bi")]
    content = compare_runs(folders, tmp_path / "comparison")
    assert len(content["variants"]) == 2
    first = next(iter(content["variants"].values()))
    assert [cell["seed"] for cell in first["cells"]] == [0, 1]
    numbers = [(c["difference"], c["p_holm"]) for c in content["comparisons"]]
    assert numbers == [(c["difference"], c["p_holm"]) for c in small_study.content["comparisons"]]
    assert (tmp_path / "comparison" / first["cells"][0]["run"] / "report.html").is_file()


def test_recipes_stay_apart_if_a_run_is_called_like_the_folder_of_another(
    small_study: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (runs_of(small_study, variant)[0] for variant in ("cosine", "bi"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(first, "old/run")
    shutil.copytree(second, "run")
    content = compare_runs(["old/run", "run"], "comparison")
    assert len(content["variants"]) == 2


def test_a_study_runs_in_one_process_at_a_time(small_study: Done) -> None:
    """Two would train the same cells in the same folders."""
    running = StudyRunning(read_study(small_study.path), small_study.folder)
    with (small_study.folder / ".lock").open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("process 1 on another")
        other.flush()
        with pytest.raises(UserError, match=r"process 1 on another is running this study; .* pass --study DIR"):
            next(running.reports())
        assert running.finish()["comparisons"]  # which is allowed: --page-only


@pytest.mark.parametrize("names", [["report.html", "summary.json"], ["study.json", "study-plan.json"]])
def test_the_page_of_a_run_or_of_a_study_is_not_replaced(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match="the folder holds other files; pass --study DIR"):
        compare_runs([tmp_path / "first", tmp_path / "second"], tmp_path)


def test_runs_that_cannot_be_compared(small_study: Done, tiny_run: Finished, tmp_path: Path) -> None:
    (run, *_) = runs_of(small_study, "cosine")
    with pytest.raises(UserError, match="give two or more different runs"):
        compare_runs([run, run], tmp_path / "c")
    with pytest.raises(UserError, match="all runs have the same recipe"):
        compare_runs(runs_of(small_study, "cosine"), tmp_path / "c")
    with pytest.raises(UserError, match="not a finished run"):
        compare_runs([run, tmp_path], tmp_path / "c")
    other = tmp_path / "other"
    shutil.copytree(tiny_run.folder, other)
    path = other / "environment.json"
    path.write_text(
        path.read_text().replace(json.loads(path.read_text())["data"]["question"]["dev"]["sha256"], "0" * 64)
    )
    with pytest.raises(UserError, match=r"task question was scored on .* cannot be compared"):
        compare_runs([run, other], tmp_path / "c")
    path.unlink()
    with pytest.raises(UserError, match=r"environment\.json: cannot read which dev files the run was scored on"):
        compare_runs([run, other], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_plain_text_is_left_out_of_the_comparison(tiny_settings: list[str], tiny_run: Finished, tmp_path: Path) -> None:
    """So that one can ask whether learning from plain text beside the tasks helps them."""
    plain = "tasks.words={kind: text, text: text, train: 'sample:opinions-train', dev: 'sample:opinions-dev'}"
    more = train(QUICKSTART, tmp_path / "more", [*tiny_settings, plain])
    content = compare_runs([tiny_run.folder, more.folder], tmp_path / "both")
    assert set(content["tasks"]) == {"opinion", "question", "similarity"}
    views = {"opinion", "question", "similarity", "mean"}
    assert {comparison["task"] for comparison in content["comparisons"]} == views
    assert set(content["variants"]["more"]["cells"][0]["values"]) == views
    assert content["variants"]["more"]["cells"][0]["values"]["mean"] == pytest.approx(more.evaluations["dev"].mean)


def test_a_task_that_only_some_runs_have_is_left_out_of_the_comparison(
    tiny_settings: list[str], tiny_run: Finished, tmp_path: Path
) -> None:
    """So that one can ask whether a task that is learned beside the others helps them."""
    helper = (
        "tasks.helper={kind: yes_no, text: [question1, question2], label: duplicate, "
        "train: 'sample:questions-train', dev: 'sample:questions-dev'}"
    )
    more = train(QUICKSTART, tmp_path / "more", [*tiny_settings, helper])
    for folders in ([tiny_run.folder, more.folder], [more.folder, tiny_run.folder]):
        content = compare_runs(folders, tmp_path / f"from-{folders[0].name}")
        views = {"opinion", "question", "similarity", "mean"}
        assert set(content["tasks"]) == views - {"mean"}
        assert {comparison["task"] for comparison in content["comparisons"]} == views
        values = content["variants"]["more"]["cells"][0]["values"]
        assert values["mean"] == pytest.approx(sum(values[task] for task in views - {"mean"}) / 3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"tasks.opinion.metric": "f1"}, r"variant other: tasks\.opinion\.metric: must be that of cosine"),
        (
            {"tasks.opinion.dev": "sample:opinions-train"},
            r"variant other: tasks\.opinion\.dev: must have the same rows",
        ),
    ],
)
def test_scores_that_could_not_be_compared_are_an_error_before_anything_runs(
    setting: dict[str, Any], message: str, tmp_path: Path, tiny_settings: list[str]
) -> None:
    path = study_file(tmp_path, tiny_settings, variants={"cosine": {}, "other": setting})
    with pytest.raises(UserError, match=message):
        StudyRunning(read_study(path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_plain_text_only_cannot_be_compared(tiny_settings: list[str], tmp_path: Path) -> None:
    task = {"kind": "text", "text": "text", "train": "sample:opinions-train", "dev": "sample:opinions-dev"}
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump({"tasks": {"words": task}}))
    path = study_file(
        tmp_path, tiny_settings, base="plain.yaml", variants={"small": {}, "large": {"train.batch_size": 8}}
    )
    with pytest.raises(UserError, match="no task that all runs have, other than plain text"):
        StudyRunning(read_study(path), tmp_path / "out")
    runs = [
        train(tmp_path / "plain.yaml", tmp_path / str(size), [*tiny_settings, f"train.batch_size={size}"]).folder
        for size in (4, 8)
    ]
    with pytest.raises(UserError, match="no task that all runs have, other than plain text"):
        compare_runs(runs, tmp_path / "none")


def test_a_metric_that_studies_cannot_compare_is_refused_before_anything_runs(
    tmp_path: Path, tiny_settings: Any
) -> None:
    path = study_file(tmp_path, [*tiny_settings, "tasks.opinion.metric=auc"])
    with pytest.raises(UserError, match=r"tasks.opinion.metric: runs cannot be compared by 'auc'"):
        StudyRunning(read_study(path), tmp_path / "study")
    assert not (tmp_path / "study").exists()
