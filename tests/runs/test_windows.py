"""Windows of long texts: whole runs of every kind, predictions of every path, bit-identical short texts, refusals."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polytask import (
    Classes,
    UserError,
    add_task,
    combine,
    describe_task,
    evaluate_run,
    export_adapter,
    fit,
    load,
    predict_file,
    rehearse,
    start_training,
    train,
)
from polytask.recipe.reading import recipe_from
from polytask.runs.bundle import load_bundle
from polytask.training.captured import reason_not_capturable

ENCODER = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "positions": 32}
WORDS = ["good", "bad"]
TASK = {"kind": "classes", "text": "text", "label": "label", "train": "train.csv", "dev": "dev.csv"}
LABELS = {"classes": ("good", "bad"), "yes_no": ("yes", "no"), "score": ("4", "1"), "multilabel": ("a|b", "b")}


def rows(count: int, before: int, after: int = 0, labels: tuple[str, str] = ("good", "bad")) -> str:
    """Texts that have one telling word between others; some are short."""
    lines = []
    for i in range(count):
        filler = 0 if i % 5 == 4 else 1
        text = ["and"] * (before * filler) + [WORDS[i % 2]] + ["and"] * (after * filler)
        lines.append(f"{' '.join(text)},{labels[i % 2]}")
    return "text,label\n" + "\n".join(lines) + "\n"


def recipe(folder: Path, task: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    steps = {"epochs": 1, "steps_per_epoch": 30, "batch_size": 16, "device": "cpu", "warmup": 0, "schedule": "constant"}
    return {
        "tasks": {"mood": {**TASK, **(task or {})}},
        "encoder": ENCODER,
        "data": str(folder),
        "max_length": 8,
        "optimizer": {"lr": 0.01},
        **fields,
        "train": {**steps, **fields.get("train", {})},
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text(rows(64, before=12, after=12))
    (tmp_path / "dev.csv").write_text(rows(40, before=12, after=12))
    return tmp_path


@pytest.mark.parametrize("windows", [{"pool": "max"}, {"stride": 2, "pool": "max"}, {"stride": 6}])
def test_words_in_the_middle_of_long_texts_are_learned(data: Path, windows: dict[str, Any]) -> None:
    found = train(recipe(data, {"windows": windows}), data / "run").evaluations["dev"].tasks["mood"]
    assert found.value == 1.0
    assert evaluate_run(data / "run").tasks["mood"].value == 1.0
    model = load(data / "run")
    text = "and " * 12 + "bad" + " and" * 12
    (prediction,) = model.predict("mood", text)
    stride = windows.get("stride", 3)
    expected = 1 + -(-(25 - 6) // stride)
    assert (prediction.label, prediction.tokens, prediction.truncated, prediction.windows) == (
        "bad",
        27,
        False,
        expected,
    )


@pytest.mark.parametrize("end", ["end", "start"])
def test_without_windows_they_cannot_be(data: Path, end: str) -> None:
    found = train(recipe(data, truncate=end), data / "run").evaluations["dev"].tasks["mood"]
    only_first = train(recipe(data, {"windows": {"pool": "first"}}, truncate=end), data / "first")
    assert found.value < 0.7
    assert only_first.evaluations["dev"].tasks["mood"] == found  # reading the first window is truncating


@pytest.mark.parametrize("kind", LABELS)
def test_every_kind_has_windows(data: Path, kind: str) -> None:
    for name in ("train.csv", "dev.csv"):
        (data / name).write_text(rows(40, before=12, after=4, labels=LABELS[kind]))
    task = {"kind": kind, "windows": {"pool": "max"}, **({"range": [0, 5]} if kind == "score" else {})}
    methods = {"regularizers": [{"name": "smart"}], "policy": "pcgrad", "adapter": "pal"}
    plain = {**TASK, "kind": kind, **({"range": [0, 5]} if kind == "score" else {})}
    content = recipe(data, task, **methods, train={"steps_per_epoch": 4})
    content["tasks"]["other"] = plain
    train(content, data / "run")
    model = load(data / "run")
    (one, other) = (model.predict(name, "and " * 16 + "good")[0] for name in ("mood", "other"))
    assert (one.windows, one.truncated, other.windows, other.truncated) == (5, False, 1, True)


def test_a_run_whose_texts_fit_has_the_bits_of_one_without_windows(data: Path) -> None:
    for name in ("train.csv", "dev.csv"):
        (data / name).write_text(rows(40, before=2, after=3))
    weights = []
    for name, task in (("with", {"windows": {"stride": 2}}), ("without", {})):
        content = recipe(data, task, train={"steps_per_epoch": 6}, regularizers=[{"name": "smart"}])
        train(content, data / name)
        weights.append((data / name / "model" / "parts.safetensors").read_bytes())
        weights.append((data / name / "model" / "model.safetensors").read_bytes())
    assert weights[:2] == weights[2:]


@pytest.fixture
def trained(data: Path) -> Path:
    windows = {"stride": 4, "pool": "mean", "most": 5}
    train(recipe(data, {"windows": windows}, train={"steps_per_epoch": 3}), data / "run")
    return data / "run"


def texts(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(["good", "bad", "and", "film"], length)) for length in rng.integers(1, 30, count)]


def test_many_texts_get_the_outputs_of_each_alone(trained: Path) -> None:
    many = texts(60)
    for few in (False, True):  # the faster encoder, and the model itself
        model = load(trained, few=few)
        together = torch.cat(list(model.outputs("mood", [(text,) for text in many])))
        alone = torch.cat([next(model.outputs("mood", [(text,)])) for text in many])
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    bundle = load_bundle(trained / "model")
    tokens = bundle.tokenize([(text,) for text in many])
    for budget in (8, 100, 10**6):
        outputs = bundle.model.answer("mood", tokens, bundle.packer, budget)
        torch.testing.assert_close(outputs, together, atol=1e-5, rtol=0)


def test_the_vector_of_a_text_is_the_mean_of_those_of_its_windows(trained: Path) -> None:
    model = load(trained)
    words = texts(40)[0].split() + ["good", "film", "bad", "and", "good", "good", "bad"] * 2
    words = words[:16]  # windows at 0, 4, 8 and 10 of 6 tokens each
    parts = [" ".join(words[at : at + 6]) for at in (0, 4, 8, 10)]
    (whole,) = model.embed([" ".join(words)], normalize=False, task="mood")
    np.testing.assert_allclose(whole, model.embed(parts, normalize=False).mean(0), atol=1e-5)
    (cut,) = model.embed([" ".join(words)], normalize=False)  # without a task there are no windows
    np.testing.assert_allclose(cut, model.embed(parts[:1], normalize=False)[0], atol=1e-5)


def test_more_than_the_most_windows_are_cut_off(trained: Path, data: Path) -> None:
    model = load(trained)
    sizes = [6, 7, 22, 23, 9000]  # 5 windows of 6 tokens with a stride of 4 hold 22 tokens
    found = model.predict("mood", ["good " * size for size in sizes])
    assert [(one.tokens, one.windows, one.truncated) for one in found] == [
        (8, 1, False),
        (9, 2, False),
        (24, 5, False),
        (25, 5, True),
        (9002, 5, True),
    ]
    (data / "in.csv").write_text("text\ngood\n" + "good " * 22 + "\n" + "good " * 23 + "\n")
    done = predict_file(model, "mood", str(data / "in.csv"), data / "out.jsonl")
    assert done.truncated == {"mood": 1}
    lines = [json.loads(line) for line in (data / "out.jsonl").read_text().splitlines()]
    assert [line["windows_mood"] for line in lines] == [1, 5, 5]
    kept = [json.loads(line) for line in (trained / "predictions" / "mood-dev.jsonl").read_text().splitlines()]
    assert {(line["tokens"], line["truncated"], line.get("windows")) for line in kept} == {
        (27, True, 5),
        (3, False, None),
    }


def test_with_truncate_error_texts_must_fit_into_the_windows(data: Path) -> None:
    windows = {"stride": 4, "most": 5}
    with pytest.raises(UserError, match=r"(?s)84 rows are longer.*27 tokens in windows that have room for 24"):
        train(recipe(data, {"windows": windows}, truncate="error"), data / "run")
    train(recipe(data, {"windows": {"stride": 4, "most": 6}}, truncate="error"), data / "run")
    with pytest.raises(UserError, match=r"example 1 \(52 tokens\)"):
        load(data / "run").predict("mood", ["good " * 26, "good " * 50])


def test_check_counts_windows(data: Path) -> None:
    prepared = rehearse(recipe_from(recipe(data, {"windows": {"stride": 4, "most": 5}})))

    described = describe_task(prepared.tasks["mood"], prepared).data["train"]
    assert described["windows"] == {"rows": 52, "most": 5}
    assert described["lengths"]["truncated"] == 52
    (cut, *_) = [finding for finding in prepared.findings() if finding.what == "cut"]
    assert "longer than windows.most windows together (24 tokens)" in cut.sentence


def test_batch_tokens_counts_all_windows(data: Path) -> None:
    content = recipe(data, {"windows": {"stride": 6, "most": 5}}, train={"batch_tokens": 320, "batch_size": 32})
    prepared = rehearse(recipe_from(content))
    mean = (52 * 5 * 8 + 12 * 3) / 64  # 25 words are cut into 5 windows of 8 tokens
    assert prepared.batch_sizes == {"mood": round(320 / mean)}


def test_a_resumed_run_ends_with_the_same_weights(data: Path) -> None:
    content = recipe(data, {"windows": {"stride": 4}}, train={"epochs": 2, "steps_per_epoch": 3, "save_every": 2})
    train(content, data / "whole")
    running = start_training(recipe_from(content), data / "stopped")
    list(itertools.islice(running.steps(), 3))
    start_training(recipe_from(content), data / "stopped", resume=True).complete()
    weights = [(data / run / "model" / "model.safetensors").read_bytes() for run in ("whole", "stopped")]
    assert weights[0] == weights[1]


def test_texts_of_a_pair_have_windows_where_each_is_encoded_alone(data: Path) -> None:
    for name in ("train.csv", "dev.csv"):
        lines = [f"{'and ' * 9}{WORDS[i % 2]},{WORDS[i // 2 % 2]},{int(i % 2 == i // 2 % 2)}" for i in range(40)]
        (data / name).write_text("a,b,same\n" + "\n".join(lines) + "\n")
    task = {"kind": "yes_no", "text": ["a", "b"], "label": "same", "windows": {}}
    train(recipe(data, {**task, "head": "bi"}, train={"steps_per_epoch": 3}), data / "run")
    model = load(data / "run")
    (prediction,) = model.predict("mood", "and " * 20 + "good", "good")
    assert (prediction.tokens, prediction.windows, prediction.truncated) == (23, 6, False)
    with pytest.raises(UserError, match=r"tasks\.mood\.windows: the head cross reads several texts in one"):
        train(recipe(data, task), data / "joined")
    negatives = recipe(data, {**task, "head": "bi"}, regularizers=[{"name": "in_batch_negatives"}])
    with pytest.raises(UserError, match=r"in_batch_negatives: no task can be used: .* without windows"):
        train(negatives, data / "negatives")


def test_methods_that_read_other_tasks_texts_work(data: Path) -> None:
    content = recipe(data, {"windows": {"stride": 4}}, sampler="in_order", regularizers=[{"name": "lwf"}])
    content["tasks"]["other"] = TASK
    content["train"]["steps_per_epoch"] = 6
    train(content, data / "run")


def test_tasks_with_windows_are_added_exported_and_combined(data: Path) -> None:
    train(recipe(data, adapter="pal", train={"steps_per_epoch": 2}), data / "old")
    task = {**TASK, "windows": {"stride": 6, "most": 200}}
    new = {"tasks": {"new": task}, "data": str(data), "train": {"epochs": 1, "steps_per_epoch": 2}}
    add_task(data / "old", new, data / "added")
    text = "and " * 900 + "good"
    (added,) = load(data / "added").predict("new", text)
    assert (added.tokens, added.windows, added.truncated) == (903, 151, False)
    file = export_adapter(data / "added", "new", data / "new.safetensors")
    combine(data / "added", [file], data / "combined")
    (combined,) = load(data / "combined").predict("new", text)
    assert combined == added


def test_fit_takes_windows(tmp_path: Path) -> None:
    frame = [{"text": f"{'and ' * 12}{i} {WORDS[i % 2]}", "label": WORDS[i % 2]} for i in range(30)]
    task = Classes(frame, text="text", label="label", windows={"stride": 4, "pool": "max"})
    settings = {"epochs": 1, "device": "cpu"}
    trained = fit(tasks={"mood": task}, encoder=ENCODER, run=tmp_path / "run", max_length=8, train=settings)
    assert trained.model.predict("mood", "and " * 12 + "bad")[0].windows == 3


def test_steps_with_windows_are_not_captured(trained: Path) -> None:
    model = load_bundle(trained / "model").model
    settings = rehearse(recipe_from(recipe(trained.parent))).recipe.train
    reason = reason_not_capturable(torch.device("cuda"), None, None, settings, model)  # type: ignore[arg-type]
    assert reason == "the task mood has windows, so that steps differ in their number of sequences"


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"stride": 0}, r"tasks\.mood\.windows\.stride: must be in \[1, "),
        ({"stride": 7}, r"tasks\.mood\.windows\.stride: must be at most 6 \(max_length without"),
        ({"most": 0}, r"tasks\.mood\.windows\.most: must be in \[1, 1024\]"),
        ({"pool": "sum"}, r"tasks\.mood\.windows\.pool: must be one of mean, max, first"),
        ({"size": 4}, r"tasks\.mood\.windows.*size"),
        ("mean", r"tasks\.mood\.windows: "),
        ({"stride": "half"}, r"tasks\.mood\.windows\.stride"),
    ],
)
def test_other_values_are_refused(data: Path, windows: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(recipe(data, {"windows": windows}), data / "run")
    assert not (data / "run").exists()


def test_plain_text_has_no_windows(data: Path) -> None:
    content = recipe(data)
    fields = {"kind": "text", "text": "text", "train": "train.csv", "dev": "dev.csv", "windows": {}}
    content["tasks"] = {"plain": fields}
    with pytest.raises(UserError, match=r"tasks\.plain\.windows: must be left out for kind text"):
        train(content, data / "run")


def test_tags_of_words_have_windows_of_their_own(data: Path) -> None:
    content = recipe(data, {"kind": "tokens", "windows": {}})
    with pytest.raises(UserError, match=r"tasks\.mood\.windows: must be left out for kind tokens, which always reads"):
        train(content, data / "run")


def test_tasks_that_share_rows_share_their_windows(data: Path) -> None:
    for name in ("train.csv", "dev.csv"):
        lines = [line.split(",") for line in rows(40, before=12, after=4).splitlines()[1:]]
        body = [f"{text},{label},{'yes' if label == 'good' else ''}" for text, label in lines]
        (data / name).write_text("text,label,urgent\n" + "\n".join(body) + "\nand,good,no\n")
    windows = {"stride": 4, "pool": "max"}
    content = recipe(data, {"share_rows": "rows", "windows": windows}, train={"steps_per_epoch": 4})
    other = {**TASK, "kind": "yes_no", "label": "urgent", "share_rows": "rows"}
    for name, own in (("same", windows), ("none", None)):
        content["tasks"]["urgent"] = {**other, "windows": own}
        train(content, data / name)
        found = load(data / name).predict_tasks("and " * 12 + "good")
        assert found["mood"][0].windows == 3
        assert found["urgent"][0].windows == (3 if own else 1)


def test_texts_that_belong_together_have_windows(data: Path) -> None:
    for name in ("train.csv", "dev.csv"):
        lines = [f"{'and ' * 9}{i} good,{'and ' * (i % 12)}{i} bad" for i in range(24)]
        (data / name).write_text("a,b\n" + "\n".join(lines) + "\n")
    content = recipe(data, train={"steps_per_epoch": 3})
    task = {"kind": "match", "text": ["a", "b"], "train": "train.csv", "dev": "dev.csv", "windows": {"stride": 4}}
    content["tasks"] = {"pairs": task}
    train(content, data / "run")
    (prediction,) = load(data / "run").predict("pairs", "and " * 20, "good")
    assert (prediction.windows, prediction.truncated) == (5, False)
