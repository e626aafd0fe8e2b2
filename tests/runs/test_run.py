"""A whole run from Python: the folder it makes, resuming it, and what is refused."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer, BertForMaskedLM

import polytask
from polytask import Finished, UserError, evaluate_run, prepare, read_recipe, rehearse, start_training, train
from polytask.runs.score import score_split

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"


def test_the_folder_has_everything(tiny_run: Finished) -> None:
    names = {path.relative_to(tiny_run.folder).as_posix() for path in tiny_run.folder.rglob("*") if path.is_file()}
    expected = {"recipe.yaml", "environment.json", "metrics.jsonl", "summary.json", "report.html"}
    expected |= {
        f"model/{n}" for n in ("config.json", "model.safetensors", "tokenizer.json", "tasks.json", "README.md")
    }
    expected |= {f"predictions/{task}-dev.jsonl" for task in ("opinion", "question", "similarity")}
    assert expected <= names
    assert any(name.startswith("tensorboard/") for name in names)
    assert not [name for name in names if name.startswith("checkpoints/")]  # the model has the weights
    assert not [name for name in names if name.startswith(".") and name != ".lock"]


def test_environment_records_versions_and_data(tiny_run: Finished) -> None:
    environment = json.loads((tiny_run.folder / "environment.json").read_text())
    assert environment["torch"] == torch.__version__.partition("+")[0] or environment["torch"] == torch.__version__
    assert environment["data"]["opinion"]["train"]["rows"] == 450
    assert len(environment["data"]["opinion"]["dev"]["sha256"]) == 64
    assert environment["polytask"] == polytask.__version__


def test_predictions_are_written_with_their_labels(tiny_run: Finished) -> None:
    lines = [json.loads(x) for x in (tiny_run.folder / "predictions" / "opinion-dev.jsonl").read_text().splitlines()]
    assert len(lines) == 150
    right = sum(line["label"] == line["prediction"] for line in lines) / 150
    assert right == pytest.approx(tiny_run.evaluations["dev"].tasks["opinion"].metrics["accuracy"].value)
    assert lines[0]["row"] == 2  # below the header
    assert sum(lines[0]["probabilities"].values()) == pytest.approx(1, abs=1e-4)


def test_transformers_opens_the_model(tiny_run: Finished) -> None:
    folder = tiny_run.folder / "model"
    theirs, said = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    predictor = polytask.load(tiny_run.folder, "cpu")
    text = "Not bad at all, but far too long."
    batch = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        hidden = theirs.eval()(**batch).last_hidden_state.mean(1)
        head = predictor.bundle.model.head("opinion").eval()
        logits = head.output(hidden)[0]
    (ours,) = predictor.predict("opinion", text)
    temperature = predictor.bundle.temperatures["opinion"]
    assert ours.probabilities is not None
    assert list(ours.probabilities.values()) == pytest.approx((logits / temperature).softmax(-1).tolist(), abs=1e-5)


def test_evaluating_again_gives_the_same(tiny_run: Finished) -> None:
    report = evaluate_run(tiny_run.folder)
    for task, score in tiny_run.evaluations["dev"]:
        assert report.tasks[task].metrics == score.metrics


def test_same_seed_same_weights_another_seed_others(tmp_path: Path, tiny_settings: list[str]) -> None:
    short = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=3"]
    weights = []
    for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
        train(QUICKSTART, tmp_path / name, [*short, f"seed={seed}"])
        parts = [load_file(tmp_path / name / "model" / f"{file}.safetensors") for file in ("model", "parts")]
        weights.append({**parts[0], **parts[1]})
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert not all(torch.equal(weights[0][key], weights[2][key]) for key in weights[0])


def test_a_stopped_run_resumes_to_the_same_end(tmp_path: Path, tiny_run: Finished, tiny_settings: list[str]) -> None:
    settings = [*tiny_settings, "train.save_every=4"]
    recipe = read_recipe(QUICKSTART, settings)
    straight = train(recipe, tmp_path / "straight")
    running = start_training(recipe, tmp_path / "stopped")
    list(itertools.islice(running.steps(), 14))
    del running
    resumed = train(recipe, tmp_path / "stopped", resume=True)
    for file in ("model/model.safetensors", "model/parts.safetensors", "predictions/opinion-dev.jsonl"):
        assert (straight.folder / file).read_bytes() == (resumed.folder / file).read_bytes()
    assert straight.evaluations == resumed.evaluations
    starts = [json.loads(x) for x in (resumed.folder / "metrics.jsonl").read_text().splitlines() if '"step": 0' in x]
    assert [line["kind"] for line in starts] == ["evaluation"]  # kept, and not scored again
    assert straight.summary.start == resumed.summary.start
    assert straight.summary.untrained == resumed.summary.untrained
    steps = [json.loads(line) for line in (resumed.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if line["kind"] == "step"] == list(range(1, 21))
    again = train(recipe, tmp_path / "stopped", resume=True)  # a finished run has nothing left to train
    assert again.evaluations == resumed.evaluations


def test_a_finished_run_keeps_its_model_and_small_files(tmp_path: Path, tiny_settings: list[str]) -> None:
    short = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=3"]
    finished = train(QUICKSTART, tmp_path / "run", short)
    sizes = {path: path.stat().st_size for path in finished.folder.rglob("*") if path.is_file()}
    assert not (finished.folder / "checkpoints").exists()
    assert finished.removed_bytes > sizes[finished.folder / "model" / "model.safetensors"]
    recipe = read_recipe(QUICKSTART, short)
    finished.report.unlink()
    running = start_training(recipe, finished.folder, resume=True)
    assert list(running.steps()) == []
    assert running.evaluate("dev").tasks == finished.evaluations["dev"].tasks
    again = running.finish()
    assert (again.evaluations, again.summary) == (finished.evaluations, finished.summary)
    assert finished.report.is_file()
    longer = read_recipe(QUICKSTART, [*short, "train.epochs=2"])
    for allow_change in (False, True):
        with pytest.raises(UserError, match=r"(?s)its checkpoints were removed, .*epochs: was 1, is 2.*--keep-check"):
            start_training(longer, finished.folder, resume=True, allow_change=allow_change)


def test_a_run_that_keeps_its_checkpoints_can_be_trained_further(tmp_path: Path, tiny_settings: list[str]) -> None:
    short = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=3", "train.schedule=constant"]
    kept = train(QUICKSTART, tmp_path / "run", short, keep_checkpoints=True)
    assert kept.removed_bytes == 0
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} >= {"step-3"}
    again = train(QUICKSTART, tmp_path / "run", short, resume=True, keep_checkpoints=True)
    assert again.evaluations == kept.evaluations
    with pytest.raises(UserError, match="the run was started with another recipe"):
        train(QUICKSTART, tmp_path / "run", [*short, "train.epochs=2"], resume=True)
    longer = train(QUICKSTART, tmp_path / "run", [*short, "train.epochs=2"], resume=True, allow_change=True)
    assert longer.summary.steps == 6
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_checkpoints_stay_if_the_model_cannot_be_loaded(
    tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged(folder: Path) -> None:
        raise UserError(f"{folder}: damaged")

    monkeypatch.setattr("polytask.runs.finish.load_bundle", damaged)
    train(QUICKSTART, tmp_path / "run", [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=3"])
    assert (tmp_path / "run" / "checkpoints" / "step-3").is_dir()
    assert "the checkpoints are kept, because the saved model cannot be loaded" in caplog.text


def test_every_task_is_scored_before_the_first_step(tiny_run: Finished, tiny_settings: list[str]) -> None:
    lines = [json.loads(line) for line in (tiny_run.folder / "metrics.jsonl").read_text().splitlines()]
    start = lines[0]
    assert (start["kind"], start["step"], start["best"]) == ("evaluation", 0, False)
    untouched = rehearse(read_recipe(QUICKSTART, tiny_settings))
    for task, score in score_split(untouched, "dev", 0).report:
        assert start["tasks"][task]["metrics"][score.primary]["value"] == score.value
    summary = json.loads((tiny_run.folder / "summary.json").read_text())
    assert summary["start"] == start["tasks"]
    assert {t: b["metric"] for t, b in summary["untrained"].items()} == {
        "opinion": "accuracy",
        "question": "accuracy",
        "similarity": "pearson",
    }
    assert summary["best"]["start_value"] == pytest.approx(start["mean"])
    assert summary["best"]["step"] > 0
    page = tiny_run.report.read_text()
    assert "Step 0" in page
    assert all(f"{found['value']:.3f}" in page for found in summary["untrained"].values())


def test_scoring_the_start_does_not_change_training(
    tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=3"]
    train(QUICKSTART, tmp_path / "with", short)
    monkeypatch.setattr("polytask.training.loop.Session._evaluate_start", lambda session: None)
    without = train(QUICKSTART, tmp_path / "without", short)
    assert without.summary.start is None
    for file in ("model/model.safetensors", "model/parts.safetensors"):
        assert (tmp_path / "with" / file).read_bytes() == (tmp_path / "without" / file).read_bytes()
    losses = [
        [json.loads(x)["losses"] for x in (tmp_path / run / "metrics.jsonl").read_text().splitlines() if "losses" in x]
        for run in ("with", "without")
    ]
    assert losses[0] == losses[1]


def test_refused_folders(tmp_path: Path, tiny_run: Finished, tiny_settings: list[str]) -> None:
    recipe = read_recipe(QUICKSTART, tiny_settings)
    with pytest.raises(UserError, match="the folder already contains a run; pass --resume to continue it"):
        start_training(recipe, tiny_run.folder)
    with pytest.raises(UserError, match="there is no run to resume"):
        start_training(recipe, tmp_path / "nothing", resume=True)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sampler=annealing", r"sampler: there is no sampler 'annealing' .did you mean annealed... Valid: annealed, "),
        ("optimizer.lrr=1", r"optimizer: there is no option 'lrr' of fused_adamw .did you mean lr... Valid: betas"),
        ("optimizer.lr=fast", "optimizer.lr: must be a number, found 'fast'"),
        ("tasks.opinion.head=cross", "cross does not support 1 text.s.; choose one of: linear"),
        ("tasks.question.head.form=concat", "there is no option 'form' of cosine. Valid: map, pooling"),
        ("tasks.opinion.head.dropout=0.1", "must be a name, or"),
        ("train.parts=heads", "the head of task similarity has no parameters"),
        ("tasks.question.head={name: bi, form: sum}", "must be one of concat, difference, product; found 'sum'"),
        ("train.select=opinion.pearson", "train.select: there is no metric 'pearson' for kind classes"),
        (
            "tasks.opinion.metric=pearson",
            "tasks.opinion.metric: there is no metric 'pearson' for kind classes",
        ),
        ("max_length=600", "max_length: must be at most 128, the encoder's positions; found 600"),
        ("encoder.heads=5", "encoder.heads: must divide the hidden size 32, found 5"),
        ("train.device=cuda:7", "device cuda:7"),
    ],
)
def test_refused_recipes(tmp_path: Path, tiny_settings: list[str], setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        start_training(read_recipe(QUICKSTART, [*tiny_settings, setting]), tmp_path / "run")
    assert not (tmp_path / "run").exists()  # nothing is written before everything is right


def test_heads_bi_accumulation_and_bf16_together(tmp_path: Path, tiny_settings: list[str]) -> None:
    more = [
        "tasks.question.head={name: bi, form: product}",
        "tasks.similarity.head={name: cosine, map: direct}",
        "train.accumulate=2",
        "train.precision=bf16",
        "train.layer_decay=0.9",
        "train.schedule=cosine",
        "sampler=round_robin",
        "train.patience=1",
        "train.select=question.f1",
    ]
    finished = train(QUICKSTART, tmp_path / "run", [*tiny_settings, *more])
    assert finished.summary.best.select == "question.f1"
    assert finished.evaluations["dev"].tasks["similarity"].examples == 90


def test_heads_only_learns_on_a_frozen_encoder(tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = read_recipe(
        QUICKSTART, [*tiny_settings, "train.parts=heads", "train.epochs=1", "tasks.similarity.head=bi"]
    )
    before = {k: v.clone() for k, v in prepare(recipe).model.encoder.state_dict().items()}
    train(recipe, tmp_path / "run")
    after: dict[str, Any] = polytask.load(tmp_path / "run", "cpu").bundle.model.encoder.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_mapping_is_a_recipe_too(tmp_path: Path, tiny_settings: list[str]) -> None:
    (tmp_path / "train.csv").write_text("words,good\n" + "a fine day,yes\na foul day,no\n" * 10)
    task = {"kind": "yes_no", "text": "words", "label": "good", "train": "train.csv", "dev": "train.csv"}
    recipe = polytask.recipe_from({"tasks": {"mood": task}, "max_length": 16}, tiny_settings, folder=tmp_path)
    finished = train(recipe, tmp_path / "run")
    assert finished.evaluations["dev"].mean == 1.0


def test_evaluating_needs_no_training_file(tmp_path: Path, tiny_settings: list[str]) -> None:
    (tmp_path / "train.csv").write_text("words,mood\n" + "a fine day,good\na foul day,bad\n" * 10)
    (tmp_path / "dev.csv").write_text("words,mood\na fine night,good\na foul night,bad\n")
    task = {"kind": "classes", "text": "words", "label": "mood", "train": "train.csv", "dev": "dev.csv"}
    recipe = polytask.recipe_from({"tasks": {"mood": task}, "max_length": 16}, tiny_settings, folder=tmp_path)
    finished = train(recipe, tmp_path / "run")
    (tmp_path / "train.csv").unlink()
    assert evaluate_run(finished.folder).tasks["mood"].metrics == finished.evaluations["dev"].tasks["mood"].metrics
    more = tmp_path / "more.csv"
    more.write_text("words,mood\na foul day,bad\n")
    assert evaluate_run(finished.folder, on={"mood": str(more)}).tasks["mood"].examples == 1
    assert (finished.folder / "predictions" / "mood-on-more.jsonl").is_file()
    more.write_text("words,mood\na foul day,bad\na grey day,so-so\n")
    with pytest.raises(
        UserError, match=r"1 broken row;[^\n]*\n  .*more\.csv, line 3, column 'mood': 'so-so': not among"
    ):
        evaluate_run(finished.folder, on={"mood": str(more)})


def with_plain_text(folder: Path, settings: list[str], *more: str) -> polytask.Recipe:
    """The quickstart's opinions, with masked and contrastive learning from plain text beside them."""
    plain = "{kind: text, text: %s, train: 'sample:%s-train', dev: 'sample:%s-dev', head: %s}"
    tasks = [
        f"tasks.words={plain % ('text', 'opinions', 'opinions', 'mlm')}",
        f"tasks.views={plain % ('sentence1', 'similarity', 'similarity', 'simcse')}",
    ]
    return read_recipe(QUICKSTART, [*settings, *tasks, "train.epochs=1", "train.steps_per_epoch=6", *more])


def test_plain_text_is_learned_with_the_tasks(tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = with_plain_text(tmp_path, tiny_settings, "train.select=words", "train.save_every=2")
    finished = train(recipe, tmp_path / "run")
    scores = finished.evaluations["dev"].tasks
    assert scores["words"].primary == scores["views"].primary == "perplexity"
    assert 1 < scores["words"].value < 10_000
    assert 1 <= scores["views"].value <= 90  # of 90 texts
    assert finished.summary.best.value == scores["words"].value
    assert set(finished.summary.baselines) == {"opinion", "question", "similarity"}
    assert {path.stem for path in (finished.folder / "predictions").iterdir()} == {
        "opinion-dev",
        "question-dev",
        "similarity-dev",
    }
    again = evaluate_run(finished.folder)
    assert {task: score.metrics for task, score in again} == {task: score.metrics for task, score in scores.items()}
    steps = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["examples"] for line in steps if line["kind"] == "step"} == {16}
    page = (finished.folder / "report.html").read_text()
    assert "Plain text has no labels, so there is nothing to predict." in page
    assert f"chosen by words on dev: {scores['words'].value:.3f}" in page
    assert "perplexity (lower is better)" in page
    with pytest.raises(UserError, match="predict: task words is of kind text: it has no labels"):
        polytask.load(finished.folder).predict("words", "Hello.")

    running = start_training(recipe, tmp_path / "stopped")
    list(itertools.islice(running.steps(), 3))
    resumed = train(recipe, tmp_path / "stopped", resume=True)
    for file in ("model/model.safetensors", "model/parts.safetensors"):
        assert (finished.folder / file).read_bytes() == (resumed.folder / file).read_bytes()


def test_regularizers_skip_plain_text(tmp_path: Path, tiny_settings: list[str]) -> None:
    recipe = with_plain_text(tmp_path, tiny_settings, "regularizers=[smart, r_drop, bregman]")
    for report in start_training(recipe, tmp_path / "run").steps():
        (task,) = report.losses
        assert all(value == 0 if task in ("words", "views") else value >= 0 for value in report.penalties.values())
        assert torch.isfinite(torch.tensor([*report.losses.values(), *report.penalties.values()])).all()


def test_an_encoders_own_mlm_head_is_used(tmp_path: Path, tiny_run: Finished, tiny_settings: list[str]) -> None:
    encoder = tmp_path / "encoder"
    shutil.copytree(tiny_run.folder / "model", encoder)
    theirs = BertForMaskedLM.from_pretrained(encoder)
    torch.nn.init.normal_(theirs.cls.predictions.bias)
    theirs.save_pretrained(encoder)
    recipe = with_plain_text(tmp_path, tiny_settings, f"encoder={encoder}")
    head = prepare(recipe).model.head("words").state_dict()
    assert torch.equal(head["bias"], theirs.cls.predictions.bias)
    assert torch.equal(head["dense.weight"], theirs.cls.predictions.transform.dense.weight)
    plain = with_plain_text(tmp_path, tiny_settings, f"encoder={tiny_run.folder / 'model'}")
    assert not prepare(plain).model.head("words").state_dict()["bias"].any()  # this encoder has none


def test_a_resumed_run_keeps_the_precision_and_threads_it_chose(
    tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = read_recipe(QUICKSTART, [*tiny_settings, "train.precision=auto", "train.save_every=1"])
    monkeypatch.setattr("polytask.machine.multiplies_bf16", lambda device: True)
    running = start_training(recipe, tmp_path / "run")
    next(running.steps())
    running.save()
    running.lock.release()
    assert read_recipe(tmp_path / "run" / "recipe.yaml").train.precision == "bf16"
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    environment["threads"] = 1
    (tmp_path / "run" / "environment.json").write_text(json.dumps(environment))

    monkeypatch.setattr("polytask.machine.multiplies_bf16", lambda device: False)  # another machine
    monkeypatch.setattr("polytask.machine.pick_threads", lambda device: pytest.fail("the run has chosen already"))
    resumed = start_training(recipe, tmp_path / "run", resume=True)
    assert resumed.recipe.train.precision == "bf16"
    assert resumed.changes == []
    assert torch.get_num_threads() == 1
    resumed.lock.release()


def test_the_best_weights_are_scored_once(
    tmp_path: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a run needs the dev scores of the best step: those of the last evaluation, if it was that step's."""
    scored: list[tuple[str, int]] = []

    def counted(prepared: Any, split: str, step: int, *others: Any) -> Any:
        scored.append((split, step))
        return score_split(prepared, split, step, *others)

    for module in ("polytask.runs.score", "polytask.runs.finish"):
        monkeypatch.setattr(f"{module}.score_split", counted)
    last = train(QUICKSTART, tmp_path / "last", [*tiny_settings, "train.select=last"])
    assert scored == [("dev", 0), ("dev", 10), ("dev", 20)]
    assert last.evaluations["dev"].tasks == evaluate_run(last.folder).tasks
    scored.clear()
    mean = train(QUICKSTART, tmp_path / "mean", [*tiny_settings, "train.select=last", "train.average_best=2"])
    assert scored == [("dev", 0), ("dev", 10), ("dev", 20), ("dev", 20)]
    assert mean.evaluations["dev"].tasks == evaluate_run(mean.folder).tasks


def test_a_run_records_where_its_time_goes(tiny_run: Finished) -> None:
    phases = tiny_run.summary.phases
    assert {"data", "model", "steps", "evaluations", "predictions"} <= phases.keys()
    assert all(seconds >= 0 for seconds in phases.values())
    assert "Where the time went" in tiny_run.report.read_text(encoding="utf-8")
