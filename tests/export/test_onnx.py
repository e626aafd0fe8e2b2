"""One ONNX model of tasks of all kinds: onnxruntime answers as polytask does, and what differs is refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tokenizers
import torch

from polytask import Exported, Finished, UserError, export_onnx, load, load_onnx, recipe_from, train
from polytask.export.onnx import check_replays
from polytask.export.onnx_folder import RECORD, read_record, window_rows
from polytask.export.replay import Replay, read_dev_rows

TASKS: dict[str, dict[str, Any]] = {
    "opinion": {"kind": "classes", "text": "text", "label": "opinion", "sample": "opinions"},
    "question": {"kind": "yes_no", "text": ["question1", "question2"], "label": "duplicate", "sample": "questions"},
    "similarity": {
        "kind": "score",
        "range": [0, 5],
        "text": ["sentence1", "sentence2"],
        "label": "similarity",
        "sample": "similarity",
        "head": "joint",
    },
    "distance": {
        "kind": "score",
        "text": ["sentence1", "sentence2"],
        "label": "similarity",
        "sample": "similarity",
        "head": "bi",
    },
    "three": {
        "kind": "yes_no",
        "text": ["question1", "question2", "question1"],
        "label": "duplicate",
        "sample": "questions",
    },
    "long_pairs": {
        "kind": "yes_no",
        "text": ["question1", "question2"],
        "label": "duplicate",
        "sample": "questions",
        "head": "cosine",
        "windows": {"most": 4},
    },
    "decision": {
        "kind": "classes",
        "text": "report",
        "label": "decision",
        "sample": "inspections",
        "windows": {"stride": 40, "pool": "max"},
    },
    "topics": {"kind": "multilabel", "text": "text", "label": "topics", "sample": "tickets"},
    "reply": {
        "kind": "choice",
        "text": "message",
        "options": ["reply_0", "reply_1", "reply_2", "reply_3"],
        "label": "best",
        "sample": "replies",
    },
    "articles": {"kind": "match", "text": ["question", "article"], "sample": "articles"},
    "entities": {"kind": "tokens", "text": "text", "label": "spans", "sample": "entities"},
    "plain": {"kind": "text", "text": "text", "sample": "opinions"},
}
LONG = "The Café's naïve owner, Ada Lovelace, doesn't live in London any more. " * 12
TEXTS = ["Not bad at all.", "ok", LONG, "I want my money back!", ""]
PAIRS = [("How old is it?", "What is its age?"), ("a", "b c d"), (LONG, "short"), ("x", LONG)]


OPTIONS = [("When?", "At noon.", "It is blue."), ("What colour is it?", "Blue.", "On Sunday.", LONG, "A dog.")]


def examples(task: str) -> list[tuple[str, ...]]:
    """Short texts and long ones, which are truncated or read in windows."""
    if task == "reply":
        return OPTIONS
    number = 1 if isinstance(TASKS[task]["text"], str) else len(TASKS[task]["text"])
    return [(text,) for text in TEXTS] if number == 1 else [(*pair, *pair)[:number] for pair in PAIRS]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_settings: list[str]) -> Path:
    """A tiny run with a task of each kind, one of them plain text."""
    tasks = {}
    for name, given in TASKS.items():
        rest = {key: value for key, value in given.items() if key != "sample"}
        tasks[name] = {**rest, "train": f"sample:{given['sample']}-train", "dev": f"sample:{given['sample']}-dev"}
    shape = {"layers": 1, "hidden": 32, "heads": 4, "ffn": 64, "positions": 128}
    recipe = recipe_from({"name": "kinds", "encoder": shape, "max_length": 64, "tasks": tasks})
    settings = [setting for setting in tiny_settings if not setting.startswith("encoder")]
    return train(recipe, tmp_path_factory.mktemp("kinds") / "run", settings).folder


@pytest.fixture(scope="module")
def exported(run: Path) -> Exported:
    return export_onnx(run)


def test_dev_is_replayed_and_the_differences_are_in_the_card(run: Path, exported: Exported) -> None:
    assert exported.folder == run / "onnx"
    assert set(exported.replays) == set(TASKS) - {"plain"}
    assert exported.left_out == {"plain": "it is of kind text and has no predictions"}
    assert exported.unchecked == ()
    for one in exported.replays.values():
        assert one.largest < 1e-5
        assert one.flipped in (0, None)
        assert abs(one.change) < 1e-6
        assert one.change_low <= one.change_high
    assert exported.replays["similarity"].flipped is None
    card = (exported.folder / "README.md").read_text()
    assert "## ONNX export (float32)" in card
    assert "| opinion | 150 | " in card
    assert "plain is not part of the export: it is of kind text" in card
    assert card.startswith("---\nlibrary_name: polytask")


@pytest.mark.parametrize("task", [name for name in TASKS if name != "plain"])
def test_onnxruntime_answers_the_same(task: str, run: Path, exported: Exported) -> None:
    expected, found = (list(one.stream(task, examples(task))) for one in (load(run), load_onnx(run)))
    for one, other in zip(expected, found, strict=True):
        assert (one.tokens, one.truncated, one.windows) == (other.tokens, other.truncated, other.windows)
        assert (one.words, one.index) == (other.words, other.index)
        if isinstance(one.label, float):
            assert other.label == pytest.approx(one.label, abs=1e-4)
        else:
            assert one.label == other.label
        assert (one.probabilities is None) == (other.probabilities is None)
        for name, share in (one.probabilities or {}).items():
            assert other.probabilities[name] == pytest.approx(share, abs=1e-5)


def test_temperatures_thresholds_and_windows_are_part_of_the_export(run: Path, exported: Exported) -> None:
    record, bundle = read_record(exported.folder), load(run).bundle
    assert record.inputs == ("input_ids", "attention_mask", "token_type_ids", "windows")
    for name, task in record.tasks.items():
        assert task.entry.temperature == bundle.temperatures.get(name, 1.0)
        assert task.entry.thresholds == bundle.labels[name].thresholds
    assert record.tasks["opinion"].entry.temperature != 1
    assert set(record.tasks["topics"].entry.thresholds) != {0.5}
    assert load_onnx(run).predict("decision", LONG)[0].windows > 1
    abstaining = load_onnx(run, abstain_below=1.0)
    assert abstaining.predict("opinion", "Not bad.")[0].label is None


def test_a_text_in_windows_needs_all_of_them(run: Path, exported: Exported) -> None:
    """The output for long texts depends on the last of their windows."""
    predictor = load_onnx(run)
    one, other = (predictor.predict("decision", f"{LONG} {end}")[0].probabilities for end in ("closed", "open it"))
    assert one != other
    np.testing.assert_array_equal(window_rows(None, 2), [[0], [1]])
    np.testing.assert_array_equal(window_rows(torch.tensor([0, 1, 4, 5]), 5), [[0, -1, -1], [1, 2, 3], [4, -1, -1]])


def test_several_tasks_share_a_pass(run: Path, exported: Exported) -> None:
    predictor = load_onnx(exported.folder)
    assert predictor.bundle.model.passes(["opinion", "question", "articles"]) == [
        ("opinion", "question"),
        ("articles",),
    ]
    pairs = ["question", "similarity", "distance", "long_pairs", "articles"]
    assert list(predictor.predict_tasks("text", "other")) == pairs
    with pytest.raises(UserError, match="computes the outputs of its tasks only"):
        predictor.embed("a text")


def test_it_is_used_alone(run: Path, exported: Exported) -> None:
    """Only onnxruntime, tokenizers and export.json, as in docs/export.md."""
    folder = exported.folder
    record = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(record["max_length"])
    tokenizer.enable_padding(pad_id=record["special_ids"]["pad"])

    def logits(task: str, texts: list[Any]) -> Any:
        rows = tokenizer.encode_batch(texts)
        columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        batch = {name: np.array([getattr(row, key) for row in rows]) for name, key in columns.items()}
        batch["windows"] = np.arange(len(rows))[:, None]
        return session.run([record["tasks"][task]["output"]], batch)[0]

    scores = logits("opinion", TEXTS[:4])
    classes = record["tasks"]["opinion"]["entry"]["classes"]
    assert [classes[i] for i in scores.argmax(-1)] == [one.label for one in load(run).predict("opinion", TEXTS[:4])]
    yes = 1 / (1 + np.exp(-logits("question", PAIRS) / record["tasks"]["question"]["entry"]["temperature"]))
    expected = [one.probabilities["yes"] for one in load(run).predict("question", PAIRS)]
    np.testing.assert_allclose(yes, expected, atol=1e-5)
    text, *options = OPTIONS[1]
    scores = logits("reply", [(text, option) for option in options])[:, 0]
    assert options[scores.argmax()] == load(run).predict("reply", text, options)[0].label
    topics = record["tasks"]["topics"]["entry"]
    shares = 1 / (1 + np.exp(-logits("topics", TEXTS[:4])))
    chosen = [[topics["classes"][i] for i in np.flatnonzero(row >= topics["thresholds"])] for row in shares]
    assert chosen == [list(one.label) for one in load(run).predict("topics", TEXTS[:4])]


@pytest.fixture
def same_graph(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies the graph that was exported before, which takes much less time than to export it again."""

    def copy(bundle: Any, tasks: Any, path: Path) -> None:
        path.write_bytes((exported.folder / "model.onnx").read_bytes())

    monkeypatch.setattr("polytask.export.onnx.write_graph", copy)


@pytest.mark.usefixtures("same_graph")
def test_int8_is_smaller_and_checked_by_the_interval(run: Path, exported: Exported, tmp_path: Path) -> None:
    small = export_onnx(run, tmp_path / "small", int8=True)
    assert read_record(small.folder).precision == "int8"
    assert all(one.is_inside for one in small.replays.values())
    assert max(one.largest for one in small.replays.values()) > 1e-4
    sizes = [(one.folder / "model.onnx").stat().st_size for one in (exported, small)]
    assert sizes[1] < sizes[0]
    assert load_onnx(small.folder).predict("opinion", "Not bad.")[0].label in load(run).bundle.labels["opinion"].classes


REPLAY = Replay(100, 2e-6, 0, "accuracy", 0.9, 0.85, 0.95, 0.0, 0.0, 0.0)


def test_too_large_differences_are_refused() -> None:
    check_replays({"a": REPLAY}, False, "run")
    for largest in (2e-4, float("nan"), float("inf")):
        with pytest.raises(UserError, match="not exported: an output of task a differs by"):
            check_replays({"a": replace(REPLAY, largest=largest)}, False, "run")
    check_replays({"a": replace(REPLAY, largest=0.3, flipped=2, change=-0.04)}, True, "run")
    for change in (-0.06, 0.06):
        with pytest.raises(UserError, match=r"the dev accuracy of task a changes by [+-]0.0600 and leaves"):
            check_replays({"a": replace(REPLAY, change=change)}, True, "run")


@pytest.mark.usefixtures("same_graph")
def test_a_refused_export_leaves_nothing_behind(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytask.export.onnx.TOLERANCE", 1e-12)
    with pytest.raises(UserError, match="more than 1e-12"):
        export_onnx(run, tmp_path / "refused")
    assert not list(tmp_path.iterdir())


def test_damaged_folders_are_refused(exported: Exported, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no exported ONNX model here"):
        load_onnx(tmp_path)
    for path in exported.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = json.loads((tmp_path / RECORD).read_text())

    def write(**changes: Any) -> None:
        (tmp_path / RECORD).write_text(json.dumps({**content, **changes}))

    for changes, message in (
        ({"format": 9}, "format: must be 1"),
        ({"tasks": {}}, "damaged: it must describe tasks"),
        ({"files": {}}, "damaged: it must describe tasks"),
        ({"files": {**content["files"], "../x": "0"}}, "missing or damaged"),
        ({"tasks": {"keys": content["tasks"]["opinion"]}}, "this name is reserved"),
        ({"hidden": -1}, "hidden"),
        ({"unknown": 1}, "unknown"),
    ):
        write(**changes)
        with pytest.raises(UserError, match=message):
            load_onnx(tmp_path)
    write()
    with (tmp_path / "model.onnx").open("ab") as file:
        file.write(b"more")
    with pytest.raises(UserError, match=r"model\.onnx: missing or damaged"):
        load_onnx(tmp_path)


def test_a_model_folder_has_no_dev_rows(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run: it has no recipe.yaml"):
        read_dev_rows(run / "model")
    with pytest.raises(UserError, match="there is no such run"):
        export_onnx(tmp_path / "nowhere")


def test_missing_packages_are_named(run: Path, tiny_run: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'polytask\[onnx\]'"):
        export_onnx(tiny_run.folder)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"pip install 'polytask\[onnx\]'"):
        load_onnx(run)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["{name: pal, size: 12, heads: 3}", "prefix", "lora", "houlsby", "lhuc"])
def test_adapters_are_part_of_the_graph(adapter: str, tiny_settings: list[str], tmp_path: Path) -> None:
    recipe = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
    folder = train(recipe, tmp_path / "run", [*tiny_settings, f"adapter={adapter}"]).folder
    done = export_onnx(folder)
    assert max(one.largest for one in done.replays.values()) < 1e-5
    predictor = load_onnx(done.folder)
    assert predictor.predict("opinion", TEXTS)[0].label == load(folder).predict("opinion", TEXTS)[0].label
    assert list(predictor.bundle.model.sessions) == ["opinion"]  # type: ignore[attr-defined]
    assert all(task.own_pass for task in read_record(done.folder).tasks.values())
    assert len(predictor.bundle.model.passes(["question", "similarity"])) == 2
